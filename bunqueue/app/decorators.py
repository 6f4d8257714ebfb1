"""The types of `app.job(...)` and `app.cron(...)`, for type checkers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar, overload

from bunqueue.app.task import AsyncTask, PlainTask, Task
from bunqueue.protocol.commands.cron import OnMissed, Overlap

P = ParamSpec("P")
R = TypeVar("R")
AnyTask = TypeVar("AnyTask", bound=Task[..., Any])


class JobDecorator(Protocol):
    """The type of `app.job(...)`."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first that fits counts, as it should
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class SchedulePolicy(TypedDict, total=False):
    """What to do with runs that cannot happen as planned; docs/cron.md has the rules."""

    immediately: bool
    """The first run of a new schedule happens at once."""
    prevent_overlap: bool
    """Skip a run while the job of the last one is still there; True unless given."""
    skip_if_no_worker: bool
    """Skip a run while no worker works on the queue."""
    skip_missed_on_restart: bool
    """False: run once, immediately, for the runs that were missed while the server was down."""
    overlap: Overlap
    """What to do with a run while the job of the last one has not ended: "allow", "skip", "queue" (it waits)
    or "cancel" (the last job is cancelled, then it runs). Replaces `prevent_overlap`."""
    on_missed: OnMissed
    """How many runs make up for those that were missed while the server was down: "none", "one" or "all".
    Replaces `skip_missed_on_restart`."""
    max_backlog: int
    """The maximum number of runs that wait with `overlap="queue"`, or make up for missed ones with
    `on_missed="all"`."""
    limit: int
    """Remove the schedule after this number of runs."""


class CronDecorator(Protocol):
    """The type of `app.cron(...)`. It goes above `@app.job`, or makes the function a job on its own."""

    @overload
    def __call__(self, job: AnyTask, /) -> AnyTask: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first that fits counts, as it should
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
