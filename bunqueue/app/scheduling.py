"""The part of an app that is told what is to run by the clock."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast, overload

from bunqueue.app.declaring import Declaring
from bunqueue.app.schedules import Schedule, stale_of
from bunqueue.app.task import AsyncTask, PlainTask, Task
from bunqueue.client.blocking.queue import JobHandle
from bunqueue.client.connection.options import Duration
from bunqueue.client.flow_plan import FlowJob
from bunqueue.client.queue import AsyncJobHandle
from bunqueue.errors import OptionError
from bunqueue.protocol.commands.cron import CronView

P = ParamSpec("P")
R = TypeVar("R")
AnyTask = TypeVar("AnyTask", bound=Task[..., Any])


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


class Scheduling(Declaring):
    """See `Bunqueue`."""

    _schedules: dict[str, Schedule]

    def cron(
        self,
        expression: str | None = None,
        /,
        *,
        every: Duration | None = None,
        tz: str | None = None,
        name: str | None = None,
        data: Mapping[str, Any] | None = None,
        **policy: Unpack[SchedulePolicy],
    ) -> CronDecorator:
        """Have a job run at every time of a cron expression, in the time zone `tz` (UTC), or so often.

            @app.cron("0 9 * * mon-fri", tz="Europe/Rome")
            async def report() -> None: ...

        `data` are its arguments. `name` is that of the schedule, unique on the whole server; unless given,
        the names of queue and job. The server learns of it when the app starts to work, and keeps to it from
        then on, also while no worker is there. The name belongs to this app and that queue: an app that
        declares a name of another one does not start, and raises ScheduleConflict. Raises ArgumentsError when
        `data` lacks an argument, or has one that there is not; types are looked at when a job runs.
        """

        def enter(job: Any) -> Any:
            task: Task[..., Any] = job if isinstance(job, Task) else self.job(job)
            given = {**(data or {})}
            task.check_names(given)
            planned: FlowJob[Any] = FlowJob(task.name, given, queue=task.queue, **task.own_options)
            self.add_schedule(planned, expression, every=every, tz=tz, name=name, **policy)
            return task

        return cast(CronDecorator, enter)

    def add_schedule(
        self,
        job: FlowJob[Any],
        expression: str | None = None,
        /,
        *,
        every: Duration | None = None,
        tz: str | None = None,
        name: str | None = None,
        **policy: Unpack[SchedulePolicy],
    ) -> None:
        """Have a job run by the clock, with its arguments: `app.add_schedule(send.job("ada"), "@daily")`.

        For the rest see `cron`. Raises OptionError.
        """
        schedule = Schedule(
            name=name or f"{job.queue}:{job.name}",
            queue=job.queue,
            job=job.name,
            data=cast(Mapping[str, Any], job.data),
            expression=expression,
            every=every,
            tz=tz,
            options=job.options,
            policy=policy,
        )
        schedule.command({}, self.name)  # what is wrong with it is told where it stands
        if schedule.name in self._schedules and self._schedules[schedule.name] != schedule:
            raise OptionError(
                f"there is a schedule {schedule.name!r} already; give one of them another name="
            )
        self._schedules[schedule.name] = schedule

    # -- what the server has of it

    def run_schedule(self, name: str) -> JobHandle[Any]:
        """Add the job of a schedule now; see `Admin.run_cron`."""
        return self.admin.run_cron(name)

    async def run_schedule_async(self, name: str) -> AsyncJobHandle[Any]:
        """As `run_schedule`, for coroutines."""
        return await self.async_admin.run_cron(name)

    def stale_schedules(self) -> list[CronView]:
        """Schedules that this app once declared and declares no longer; they still run. An app is known by
        its name."""
        return stale_of(self.name, self._schedules, self.admin.list_crons())

    async def stale_schedules_async(self) -> list[CronView]:
        """As `stale_schedules`, for coroutines."""
        return stale_of(self.name, self._schedules, await self.async_admin.list_crons())

    def prune_schedules(self) -> list[CronView]:
        """Remove what `stale_schedules` gives, and nothing of anybody else; what was removed. The jobs stay.

        Call it once the last program with the old declarations has ended: each declares them anew when it
        starts.
        """
        admin = self.admin
        return [each for each in self.stale_schedules() if admin.delete_cron(each.name, app=self.name)]

    async def prune_schedules_async(self) -> list[CronView]:
        """As `prune_schedules`, for coroutines."""
        admin, stale = self.async_admin, await self.stale_schedules_async()
        return [each for each in stale if await admin.delete_cron(each.name, app=self.name)]
