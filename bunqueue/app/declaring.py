"""The part of an app that is told what runs its jobs: typed functions, routes, batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from bunqueue.app.adding import Adding
from bunqueue.app.batches import Batch, BatchHandler
from bunqueue.app.queue_config import QueueConfig, RateLimit
from bunqueue.app.task import AsyncTask, PlainTask, Task
from bunqueue.client.connection.options import Duration, shown
from bunqueue.client.options import checks
from bunqueue.client.options.job import JobOptions
from bunqueue.client.worker.active_job import Handler
from bunqueue.client.worker.routes import ANY, RunIn
from bunqueue.errors import OptionError

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Handler)
B = TypeVar("B", bound=BatchHandler)


class JobDecorator(Protocol):
    """What `app.job(...)` gives."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first that fits counts, as it should
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class Declaring(Adding):
    """See `Bunqueue`."""

    _stations: dict[str, QueueConfig]
    _concurrency: int

    # -- queues

    def add_queue(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate_limit: RateLimit | None = None,
        global_concurrency: int | None = None,
    ) -> None:
        """Say how a queue is worked; what jobs name without that is worked as the app's own.

        `concurrency` is how many of its jobs this process runs at a time; `rate_limit` and
        `global_concurrency` hold for all workers together, and are told to the server when this app starts to
        work.
        """
        station = self._station(name)
        if concurrency is not None:
            station.concurrency = checks.whole("concurrency", concurrency)
        if rate_limit is not None:
            station.rate_limit = checks.one("rate_limit", rate_limit, RateLimit)
        if global_concurrency is not None:
            station.global_concurrency = checks.whole("global_concurrency", global_concurrency)

    def _station(self, name: str | None) -> QueueConfig:
        name = name or self.name
        if name not in self._stations:
            self._stations[name] = QueueConfig(checks.queue_name(name), self._concurrency)
        return self._stations[name]

    # -- what runs jobs

    @overload
    def job(  # type: ignore[overload-overlap]  # the first that fits counts, as it should
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def job(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        aliases: Iterable[str] = (),
        unrecoverable: Iterable[type[BaseException]] = (),
        run_in: RunIn | None = None,
        at_most_once: bool = False,
        **options: Unpack[JobOptions],
    ) -> JobDecorator: ...

    def job(  # type: ignore[misc]  # mypy does not see that it takes what the third overload does
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        aliases: Iterable[str] = (),
        unrecoverable: Iterable[type[BaseException]] = (),
        run_in: RunIn | None = None,
        at_most_once: bool = False,
        **options: Unpack[JobOptions],
    ) -> Any:
        """Make a function a job; with or without options: `@app.job`, `@app.job(max_attempts=5)`.

        The job is called as the function, unless `name` says otherwise; `aliases` are names under which it
        was added earlier. Its queue is the app's own unless `queue` names another one. What is in
        `unrecoverable` and raised makes it a dead letter without another attempt. A plain function runs in a
        thread, or with `run_in="process"` in a process of its own. With `at_most_once` a job is completed
        before the function is called: it never runs twice, and its result is not kept. All other
        options are those of every job of this kind, unless it says otherwise when it is added.

        Raises TypeError for functions with *args, **kwargs or positional-only parameters, and for types that
        jobs cannot carry, as Pydantic models; those that are defined further down are looked at when the app
        starts, or a job is added.
        """

        def make(function: Callable[..., Any]) -> Task[..., Any]:
            station = self._station(queue)
            kind = AsyncTask if _is_coroutine(function) else PlainTask
            if run_in is not None and kind is AsyncTask:
                raise OptionError(
                    f"run_in: {shown(function)} is a coroutine function, which runs in the event loop"
                )
            task: Task[..., Any] = kind(
                self,
                function,
                name=name or function.__name__,
                queue=station.queue,
                aliases=tuple([aliases] if isinstance(aliases, str) else aliases),
                unrecoverable=tuple(unrecoverable),
                run_in=run_in,
                at_most_once=at_most_once,
                options=options,
            )
            for each in (task.name, *task.aliases):
                station.enter(station.tasks, each, task)
            return task

        return make if function is None else make(function)

    def route(self, name: str = ANY, *, queue: str | None = None) -> Callable[[H], H]:
        """Have a function run the jobs of a name, given the whole `ActiveJob`: for jobs that others add.

        Without a name, it runs all jobs for which there is nothing else.
        """

        def enter(handler: H) -> H:
            station = self._station(queue)
            station.enter(station.routes, name if name == ANY else checks.job_name(name), handler)
            return handler

        return enter

    def batch(
        self, name: str, *, size: int = 10, wait: Duration = 1_000, queue: str | None = None
    ) -> Callable[[B], B]:
        """Have a function run the jobs of a name together: it gets a list of up to `size` of them.

        It is called when there are `size`, or the first has waited for `wait`. It gives a list with a result
        for each, in their order, or None; an exception in the list fails that job alone, one that is raised
        all.
        """
        batch_options = (size, wait)

        def enter(handler: B) -> B:
            station = self._station(queue)
            station.enter(station.batches, name, Batch(name, handler, *batch_options))
            return handler

        return enter


def _is_coroutine(function: Any) -> bool:
    if not callable(function):
        raise TypeError(f"job: {shown(function)} is no function; write @app.job, or @app.job(max_attempts=5)")
    return inspect.iscoroutinefunction(function)
