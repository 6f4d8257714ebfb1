"""Depends: values that handlers need, per job and per worker, in coroutines and threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

from bunqueue import ActiveJob, ArgumentsError, Bunqueue, Depends
from bunqueue.app.workflow import Flow
from bunqueue.testing import Sandbox

said: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    said.clear()


def pool() -> Iterator[str]:
    said.append("open pool")
    yield "pool"
    said.append("close pool")


async def apool() -> AsyncIterator[str]:
    said.append("open apool")
    yield "apool"
    said.append("close apool")


async def aclient(pool: Annotated[str, Depends(apool, per="worker")]) -> str:
    said.append("make aclient")
    return f"client of {pool}"


def session(pool: Annotated[str, Depends(pool, per="worker")], job: ActiveJob) -> Iterator[str]:
    said.append(f"begin {job.name}")
    try:
        yield f"session of {pool}"
    except ValueError:
        said.append("rollback")
        raise
    said.append("commit")


def user(db: Annotated[str, Depends(session)]) -> str:
    return f"user by {db}"


Session = Annotated[str, Depends(session)]


def an_app() -> Bunqueue:
    return Bunqueue("needs", embedded=True)


def test_a_coroutine_gets_what_it_needs_and_each_once() -> None:
    app = an_app()

    @app.job
    async def order(
        id: int, db: Session, who: str = Depends(user), client: str = Depends(aclient)
    ) -> list[Any]:
        return [id, db, who, client]

    with Sandbox() as sandbox:
        order.add(7)
        order.add(id=8)
        first, second = sandbox.drain(app)
    assert first.result == [7, "session of pool", "user by session of pool", "client of apool"]
    assert first.data == {"id": 7}
    assert second.result[0] == 8
    assert [said.count(what) for what in ("open pool", "open apool", "begin order", "commit")] == [1, 1, 2, 2]
    assert said.count("make aclient") == 2  # per job, as it says nothing else
    assert said[-2:] == ["close apool", "close pool"]


def test_a_plain_function_in_a_thread() -> None:
    app = an_app()

    @app.job
    def order(db: Session, who: Annotated[str, Depends(user)]) -> list[str]:
        return [db, who]

    with Sandbox() as sandbox:
        order.add()  # type: ignore[call-arg]  # mypy wants a default
        (ran,) = sandbox.drain(app)
    assert ran.result == ["session of pool", "user by session of pool"]
    assert said == ["open pool", "begin order", "commit", "close pool"]


@pytest.mark.parametrize("plain", [False, True])
def test_what_a_job_raises_reaches_its_dependencies(plain: bool) -> None:
    app = an_app()
    if plain:

        @app.job(name="order", max_attempts=1)
        def fails(db: str = Depends(session)) -> None:
            raise ValueError("no")

    else:

        @app.job(name="order", max_attempts=1)
        async def fails_too(db: str = Depends(session)) -> None:
            raise ValueError("no")

    with Sandbox() as sandbox:
        app.add("order")
        (ran,) = sandbox.drain(app)
    assert (ran.outcome, str(ran.error)) == ("failed", "no")
    assert said == ["open pool", "begin order", "rollback", "close pool"]


@pytest.mark.parametrize("plain", [False, True])
def test_a_dependency_cannot_hide_a_failure(plain: bool) -> None:
    app = an_app()

    def quiet() -> Iterator[int]:
        try:
            yield 1
        except ValueError:
            pass

    async def order(one: int = Depends(quiet)) -> None:
        raise ValueError("no")

    def plain_order(one: int = Depends(quiet)) -> None:
        raise ValueError("no")

    app.job(name="order", max_attempts=1)(plain_order if plain else order)
    with Sandbox() as sandbox:
        app.add("order")
        assert sandbox.drain(app)[0].outcome == "failed"


def test_a_dependency_that_fails_fails_the_attempt_and_its_retry_makes_it_anew() -> None:
    app, tries = an_app(), []

    def shaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("away")
        return "there"

    @app.job(backoff=1000)
    async def order(what: str = Depends(shaky, per="worker")) -> str:
        return what

    with Sandbox() as sandbox:
        order.add()
        assert [ran.outcome for ran in sandbox.drain(app, within=5000)] == ["failed", "completed"]


def test_overrides_and_their_own_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    app = an_app()

    async def fake(client: str = Depends(aclient)) -> str:
        return f"fake with {client}"

    @app.job
    async def order(db: str = Depends(session)) -> str:
        return db

    monkeypatch.setitem(app.dependency_overrides, session, fake)
    with Sandbox() as sandbox:
        order.add()
        assert sandbox.drain(app)[0].result == "fake with client of apool"
    assert "open pool" not in said


def test_a_dependency_is_no_argument() -> None:
    app = an_app()

    @app.job(unique=True)
    async def order(id: int, db: str = Depends(session)) -> str:
        return db

    with Sandbox() as sandbox:
        with pytest.raises(ArgumentsError, match="db"):
            order.add(1, db="mine")
        order.add(1)
        assert not order.add(1).created
        assert len(sandbox.drain(app)) == 1


def test_a_route_is_given_its_job_and_more() -> None:
    app = an_app()

    @app.route("shipped")
    async def shipped(job: ActiveJob[dict[str, int]], db: str = Depends(session)) -> list[Any]:
        return [job.data["id"], db]

    with Sandbox() as sandbox:
        app.add("shipped", {"id": 7})
        assert sandbox.drain(app)[0].result == [7, "session of pool"]


async def test_a_worker_keeps_values_until_it_stops() -> None:
    """Without a sandbox: jobs at the same time in the loop and in threads share what is per worker."""
    app = an_app()

    @app.job
    async def one(pool: str = Depends(pool, per="worker"), apool: str = Depends(apool, per="worker")) -> str:
        return pool + apool

    @app.job
    def two(pool: str = Depends(pool, per="worker")) -> str:
        return pool

    async with app:
        handles = [await task.add_async() for task in (one, two) for _ in range(8)]
        results = await asyncio.gather(*[handle.result() for handle in handles])
        assert results == ["poolapool"] * 8 + ["pool"] * 8
        assert sorted(said) == ["open apool", "open pool"]
    assert said[-2:] == ["close apool", "close pool"]


def unknown(what: int) -> int:
    return what


async def awaited() -> int:
    return 1


def needs_awaited(x: int = Depends(awaited)) -> int:
    return x


def kept_with_job(job: ActiveJob) -> int:
    return 1


def kept_with_less(x: str = Depends(session)) -> int:
    return 1


@pytest.mark.parametrize(
    ("dependency", "words"),
    [
        (Depends(unknown), "'db'.*unknown.*'what' would be given by nobody"),
        (Depends(needs_awaited), "awaited, which is async: make the function a coroutine"),
        (Depends(kept_with_job, per="worker"), "kept for many jobs and cannot be given one"),
        (Depends(kept_with_less, per="worker"), "needs session, which is made for each"),
        (Depends(pool, per="worker"), "in a process of its own"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_declared(dependency: Any, words: str) -> None:
    def order(id: int, db: Any = dependency) -> None: ...

    run_in: Any = "process" if "process" in words else None
    with pytest.raises(TypeError, match=words):
        an_app().job(run_in=run_in)(order)


def test_circles_and_workflows_are_refused() -> None:
    app = an_app()

    def circle(x: int) -> int:
        return x

    circle.__defaults__ = (Depends(circle),)
    with pytest.raises(TypeError, match="depends on itself"):

        @app.job
        async def order(x: int = Depends(circle)) -> None: ...

    with pytest.raises(TypeError, match="workflow 'plan': its parameter 'db' is a dependency"):

        @app.workflow
        async def plan(flow: Flow, db: str = Depends(session)) -> None: ...
