"""What `app.job(...)` and `app.cron(...)` give, for type checkers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar, overload

from bunqueue.app.task import AsyncTask, PlainTask, Task
from bunqueue.protocol.commands.cron import OnMissed, Overlap

P = ParamSpec("P")
R = TypeVar("R")
AnyTask = TypeVar("AnyTask", bound=Task[..., Any])


class JobDecorator(Protocol):
    """What `app.job(...)` gives."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first that fits counts, as it should
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class SchedulePolicy(TypedDict, total=False):
    """What becomes of runs that cannot be as planned; docs/cron.md has the rules."""

    immediately: bool
    """The first run of a new schedule is at once."""
    prevent_overlap: bool
    """No run while the job of the last one is there; True unless given."""
    skip_if_no_worker: bool
    """No run while nobody works on the queue."""
    skip_missed_on_restart: bool
    """False: one run at once for those that a server missed that was down."""
    overlap: Overlap
    """What becomes of a run while the job of the last one has not ended: "allow", "skip", "queue" (it waits)
    or "cancel" (the last job is cancelled, then it runs). Instead of `prevent_overlap`."""
    on_missed: OnMissed
    """How many runs make up for those that a server missed that was down: "none", "one" or "all". Instead of
    `skip_missed_on_restart`."""
    max_backlog: int
    """How many runs may wait with `overlap="queue"`, or make up for missed ones with `on_missed="all"`."""
    limit: int
    """The schedule vanishes after so many runs."""


class CronDecorator(Protocol):
    """What `app.cron(...)` gives; it stands above `@app.job`, or makes a job of the function itself."""

    @overload
    def __call__(self, job: AnyTask, /) -> AnyTask: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first that fits counts, as it should
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
