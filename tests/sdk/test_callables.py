"""The same callables run everywhere; what would run nothing is refused where it is declared."""

from __future__ import annotations

import asyncio
import copy
import functools
import multiprocessing
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated, Any

import pytest

from bunqueue import ActiveJob, AsyncQueue, Batch, Bunqueue, Depends, Middleware, OptionError, Route, Worker
from bunqueue.client.connection.endpoint_options import EndpointOptions

PATIENCE_MS = 60_000


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """An ordinary decorator, written for plain functions."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """One that forgets `functools.wraps`."""
    return lambda *args, **kwargs: function(*args, **kwargs)


def blocking(function: Callable[..., Any]) -> Callable[..., Any]:
    """One that makes a plain function of a coroutine function, as asgiref's does."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return wrapper


class Called:
    """An object instead of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, x: Any) -> Any:
        return self.function(x)


class CalledAsync(Called):
    async def __call__(self, x: Any) -> Any:
        return self.function(x)


class Holder:
    """Has handlers as methods."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def plain(self, x: Any) -> Any:
        return self.function(x)

    async def coroutine(self, x: Any) -> Any:
        return self.function(x)


def forms(twice: Callable[[Any], Any]) -> dict[str, Any]:
    """Ways to write down a function that calls `twice` with its only argument."""

    def plain(x: Any) -> Any:
        return twice(x)

    async def coroutine(x: Any) -> Any:
        await asyncio.sleep(0)
        return twice(x)

    def with_more(factor: int, x: Any) -> Any:
        return twice(x)

    async def with_more_async(factor: int, x: Any) -> Any:
        return twice(x)

    return {
        "function": plain,
        "coroutine function": coroutine,
        "lambda": lambda x: twice(x),
        "decorated": timed(plain),
        "decorated coroutine": timed(coroutine),
        "twice decorated coroutine": timed(timed(coroutine)),
        "blocking coroutine": blocking(coroutine),
        "lambda of a coroutine": lambda x: coroutine(x),
        "partial": functools.partial(with_more, 2),
        "partial of a coroutine": functools.partial(with_more_async, 2),
        "partial of a partial": functools.partial(functools.partial(with_more_async), 2),
        "object": Called(twice),
        "object with a coroutine": CalledAsync(twice),
        "method": Holder(twice).plain,
        "method with a coroutine": Holder(twice).coroutine,
        "future": lambda x: asyncio.wrap_future(_done(twice(x))),
    }


def _done(value: Any) -> Any:
    from concurrent.futures import Future

    future: Future[Any] = Future()
    future.set_result(value)
    return future


def twice_of_job(job: ActiveJob) -> Any:
    return 2 * job.data


def twice_of_jobs(jobs: list[ActiveJob]) -> Any:
    return [2 * job.data for job in jobs]


async def test_handlers_routes_and_batches(where: EndpointOptions, name: str) -> None:
    handlers: dict[str, Any] = {}
    for form, handler in forms(twice_of_job).items():
        if form == "future":
            continue  # of another event loop, in a thread
        handlers[f"handler: {form}"] = handler
        handlers[f"route: {form}"] = Route(handler)
    for form, handler in forms(twice_of_jobs).items():
        if form != "future":
            handlers[f"batch: {form}"] = Batch(handler, size=1)
    async with AsyncQueue(name, **where) as queue, Worker(name, handlers, concurrency=50, **where):
        handles = {kind: await queue.add(kind, 21, max_attempts=1) for kind in handlers}
        outcomes = {kind: await handle.wait(timeout=PATIENCE_MS) for kind, handle in handles.items()}
    assert {kind: each.error or each.result for kind, each in outcomes.items() if each.result != 42} == {}


async def opened() -> AsyncIterator[int]:
    yield 2


def opened_plain() -> Iterator[int]:
    yield 2


async def test_jobs_of_an_app(where: EndpointOptions, name: str) -> None:
    app = Bunqueue(name, **where, concurrency=20)
    tasks: dict[str, Any] = {}
    for form, function in forms(lambda x: 2 * x).items():
        if form not in ("future", "lambda of a coroutine"):
            tasks[form] = app.job(name=form, max_attempts=1)(function)

    @app.job(max_attempts=1)
    @timed
    async def with_dependency(x: int, factor: Annotated[int, Depends(opened_plain)]) -> int:
        await asyncio.sleep(0)
        return factor * x

    @app.job(max_attempts=1)
    async def with_async_dependency(x: int, factor: Annotated[int, Depends(opened)]) -> int:
        return factor * x

    @app.job(max_attempts=1, name="strict")
    @timed
    async def strict(x: int) -> str:  # its result is looked at when it has been awaited
        return x  # type: ignore[return-value]

    tasks |= {"dependency": with_dependency, "async dependency": with_async_dependency}
    async with app:
        handles = {form: await task.add_async(21) for form, task in tasks.items()}
        many = await app.async_flows.add(tasks["decorated coroutine"].starmap([(1,), (2,)]))
        wrong = await (await strict.add_async(1)).wait(timeout=PATIENCE_MS)
        outcomes = {form: await handle.wait(timeout=PATIENCE_MS) for form, handle in handles.items()}
        assert await many.job.result(timeout=PATIENCE_MS) == [2, 4]
    assert {form: each.error or each.result for form, each in outcomes.items() if each.result != 42} == {}
    assert "ResultError" in str(wrong.error)
    await app.close_async()


def generator(x: Any) -> Iterator[Any]:
    yield x


async def asynchronous_generator(x: Any) -> AsyncIterator[Any]:
    yield x


class Generating:
    def __call__(self, x: Any) -> Iterator[Any]:
        yield x


class GeneratingMiddleware(Middleware):
    async def running(self, job: ActiveJob, call_next: Any) -> Any:  # type: ignore[override]
        yield await call_next(job)


NOTHING_RUNS: list[Any] = [
    generator,
    asynchronous_generator,
    Generating(),
    functools.partial(generator, 1),
    timed(generator).__wrapped__,  # type: ignore[attr-defined]
]


def test_generator_functions_are_refused_where_they_are_declared() -> None:
    app = Bunqueue("refused")
    for function in NOTHING_RUNS:
        declarations: dict[str, Callable[[], object]] = {
            "Worker": lambda f=function: Worker("q", f),
            "map": lambda f=function: Worker("q", {"n": f}),
            "Route": lambda f=function: Worker("q", Route(f)),
            "Batch": lambda f=function: Batch(f),
            "job": lambda f=function: app.job(name="n")(f),
            "cron": lambda f=function: app.cron("@daily", name="s")(f),
            "workflow": lambda f=function: app.workflow(name="n")(f),
            "use": lambda f=function: app.use(f),
            "on": lambda f=function: app.on("failed")(f),
            "on_failed": lambda f=function: Worker("q", print, on_failed=f),
        }
        for what, declare in declarations.items():
            with pytest.raises((TypeError, OptionError)) as refused:
                declare()
            assert "is a generator function" in str(refused.value), (what, function)
    with pytest.raises(TypeError, match=r"middleware: running: .* is a generator function"):
        Worker("q", print, middleware=[GeneratingMiddleware()])


# -- typed jobs, by their names

typed = Bunqueue("typed")


@typed.job(max_attempts=5)
def square(x: int) -> int:
    return x * x


@typed.job
async def square_later(x: int) -> int:
    return x * x


def test_typed_jobs_can_be_pickled_and_copied() -> None:
    for task in (square, square_later):
        assert pickle.loads(pickle.dumps(task)) is task
        assert copy.copy(task) is task
        assert copy.deepcopy({"task": task})["task"] is task
    other = pickle.loads(pickle.dumps(square.options(delay=5_000).options(priority=3)))
    assert other is not square
    assert other.job(2).options == {"max_attempts": 5, "delay": 5_000, "priority": 3}
    assert square.job(2).options == {"max_attempts": 5}
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        assert list(pool.map(square, [1, 2, 3])) == [1, 4, 9]


def test_a_timeout_of_a_plain_function_warns_where_it_is_declared() -> None:
    app = Bunqueue("warned")

    def plain() -> None: ...
    async def coroutine() -> None: ...

    with pytest.warns(UserWarning, match=r"job '.*plain': a timeout cannot stop a plain function") as caught:
        app.job(timeout=5_000)(plain)
    assert [each.filename for each in caught] == [__file__]
    app.job(name="in-a-thread", timeout=5_000, run_in="thread")(plain)
    app.job(name="in-a-process", timeout=5_000, run_in="process")(plain)
    app.job(name="coroutine", timeout=5_000)(coroutine)
    app.job(name="without", max_attempts=2)(plain)
