"""Middleware around adding and around running: over a server and embedded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from support.waiting import eventually

from bunqueue import (
    ActiveJob,
    AsyncFlowProducer,
    AsyncQueue,
    BunqueueError,
    CallNext,
    FlowJob,
    Middleware,
    NewJob,
    OptionError,
    Queue,
    Worker,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions

tenant: ContextVar[str] = ContextVar("tenant")


class Stamp(Middleware):
    """Notes what it sees, plainly; and who was around it."""

    def __init__(self, mark: str, seen: list[Any]) -> None:
        self.mark = mark
        self.seen = seen

    @contextmanager
    def adding(self, job: NewJob) -> Iterator[None]:
        assert job.id is None
        assert isinstance(job.data, dict)
        job.data = {**job.data, "path": job.data.get("path", "") + self.mark}
        self.seen.append((self.mark, job.name, job.queue))
        try:
            yield
        except BunqueueError as error:
            self.seen.append((self.mark, type(error).__name__))
            raise
        self.seen.append((self.mark, job.id))


class AsyncStamp(Stamp):
    """The same, for middleware that has to wait for something."""

    @asynccontextmanager
    async def adding(self, job: NewJob) -> AsyncIterator[None]:  # type: ignore[override]
        await asyncio.sleep(0)
        with super().adding(job):
            yield
        await asyncio.sleep(0)


async def test_the_first_is_the_outermost(where: EndpointOptions, name: str) -> None:
    seen: list[Any] = []
    async with AsyncQueue(name, middleware=[Stamp("a", seen), AsyncStamp("b", seen)], **where) as queue:
        handle = await queue.add("n", {"x": 1}, priority=2)
        assert seen == [("a", "n", name), ("b", "n", name), ("b", handle.id), ("a", handle.id)]
        job = await handle.job()
        assert (job.data, job.priority) == ({"x": 1, "path": "ab"}, 2)


async def test_each_job_of_a_bulk_goes_through(where: EndpointOptions, name: str) -> None:
    seen: list[Any] = []
    async with AsyncQueue(name, middleware=[Stamp("a", seen)], **where) as queue:
        handles = await queue.add_bulk([("m", {}), NewJob("n", {}, priority=5)])
        assert [await handle.job() for handle in handles]
        assert [(job.name, job.data, job.priority) for job in await queue.get_jobs()] == [
            ("m", {"path": "a"}, 0),
            ("n", {"path": "a"}, 5),
        ]
    assert seen == [("a", "m", name), ("a", "n", name), ("a", handles[1].id), ("a", handles[0].id)]


async def test_each_job_of_a_flow_goes_through(where: EndpointOptions, name: str) -> None:
    seen: list[Any] = []
    async with AsyncFlowProducer(middleware=[Stamp("a", seen)], **where) as flows:
        node = await flows.add(FlowJob("parent", queue=name).after(FlowJob("child", queue=f"{name}-b")))
        assert (await node.children[0].job.job()).data == {"path": "a"}
    assert seen[:2] == [("a", "parent", name), ("a", "child", f"{name}-b")]
    assert seen[2:] == [("a", node.children[0].job.id), ("a", node.job.id)]


@pytest.mark.parametrize("kind", [Stamp, AsyncStamp])
def test_around_blocking_queues(where: EndpointOptions, name: str, kind: type[Stamp]) -> None:
    seen: list[Any] = []
    with Queue(name, middleware=[kind("a", seen)], **where) as queue:
        handle = queue.add("n", {})
        assert handle.job().data == {"path": "a"}
        assert seen == [("a", "n", name), ("a", handle.id)]
        with pytest.raises(OptionError):
            queue.add("n", {}, priority=10**7)
        assert seen[2:] == [("a", "n", name), ("a", "OptionError")]


def test_plain_middleware_stays_in_the_caller_s_thread_and_context(where: EndpointOptions, name: str) -> None:
    class Tenant(Middleware):
        @contextmanager
        def adding(self, job: NewJob) -> Iterator[None]:
            job.options["tags"] = [tenant.get(), threading.current_thread().name]
            yield

    class AsyncTenant(Middleware):
        @asynccontextmanager
        async def adding(self, job: NewJob) -> AsyncIterator[None]:
            job.data = tenant.get()
            yield

    tenant.set("acme")
    with Queue(name, middleware=[Tenant(), AsyncTenant()], **where) as queue:
        job = queue.add("n").job()
    assert (job.tags, job.data) == (["acme", threading.current_thread().name], "acme")


async def test_what_middleware_raises_keeps_a_job_from_being_added(where: EndpointOptions, name: str) -> None:
    class No(Middleware):
        def adding(self, job: NewJob) -> Any:
            raise PermissionError("not today")

    class Swallow(Middleware):
        @contextmanager
        def adding(self, job: NewJob) -> Iterator[None]:
            try:
                yield
            except PermissionError:
                pass

    async with AsyncQueue(name, middleware=[No()], **where) as queue:
        with pytest.raises(PermissionError, match="not today"):
            await queue.add("n")
        assert await queue.count() == 0
    async with AsyncQueue(name, middleware=[Swallow(), No()], **where) as queue:
        with pytest.raises(BunqueueError, match="job 'n' was not added: middleware swallowed the reason"):
            await queue.add("n")


class Around(Middleware):
    def __init__(self, mark: str, seen: list[Any]) -> None:
        self.mark = mark
        self.seen = seen

    async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
        job.data += self.mark
        try:
            result = await call_next(job)
        except ValueError as error:
            self.seen.append((self.mark, str(error)))
            raise
        self.seen.append((self.mark, result))
        return result + self.mark


@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_around_runs(where: EndpointOptions, name: str, kind: str) -> None:
    async def coroutine(job: ActiveJob) -> Any:
        return function(job)

    def function(job: ActiveJob) -> Any:
        if job.data.startswith("bad"):
            raise ValueError(job.data)
        return job.data

    seen: list[Any] = []
    middleware = [Around("1", seen), Middleware(), Around("2", seen)]
    handler = coroutine if kind == "coroutine" else function
    async with AsyncQueue(name, **where) as queue:
        good = await queue.add("n", "good")
        async with Worker(name, handler, middleware=middleware, on_failed=print, **where):
            await eventually(good.result, "the job has a result")
            bad = await queue.add("n", "bad", max_attempts=1)
            await eventually(lambda: len(seen) == 4, "the other job has failed")
        assert await good.result() == "good1221"
        assert seen == [("2", "good12"), ("1", "good122"), ("2", "bad12"), ("1", "bad12")]
        assert (await bad.job()).error == "ValueError: bad12"


async def test_runs_can_be_answered_refused_and_repeated(where: EndpointOptions, name: str) -> None:
    runs: list[str] = []

    async def run(job: ActiveJob) -> str:
        runs.append(job.name)
        if job.name == "again" and runs.count("again") < 3:
            raise ValueError
        return "ran"

    class Judge(Middleware):
        async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
            if job.name == "cached":
                return "from the cache"
            if job.name == "refused":
                raise PermissionError("refused")
            for _ in range(2):
                try:
                    return await call_next(job)
                except ValueError:
                    continue
            return await call_next(job)

    async with AsyncQueue(name, default_job_options={"max_attempts": 1}, **where) as queue:
        cached, refused, again = [await queue.add(word) for word in ("cached", "refused", "again")]
        async with Worker(name, run, middleware=[Judge()], on_failed=lambda job, error: None, **where):
            await eventually(again.result, "the last job has a result")
        assert runs == ["again", "again", "again"]
        assert (await cached.result(), await again.result()) == ("from the cache", "ran")
        assert (await refused.job()).error == "PermissionError: refused"


def test_what_is_no_middleware_is_told() -> None:
    async def run(job: ActiveJob) -> None: ...

    for make in (lambda **given: Queue("q", **given), lambda **given: Worker("q", run, **given)):
        with pytest.raises(TypeError, match="middleware: 'x' is not allowed; give objects of subclasses"):
            make(middleware=["x"])


def test_nothing_is_paid_for_middleware_that_adds_nothing() -> None:
    with Queue("q", middleware=[Around("1", [])]) as queue:
        assert queue._around is None
