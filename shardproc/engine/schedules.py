"""Schedules: what is due, what becomes of a run, and the commands that set them.

A schedule lives on the shard of its queue, so a job it pushes and its own step to the next time are one
transaction: however a shard ends, no run is lost and none happens twice.
"""

from __future__ import annotations

from contextlib import suppress
from heapq import nsmallest

import msgspec
from msgspec import UNSET, Raw

from bunqueue.model.ids import slot_of_queue
from bunqueue.model.job import DEFAULT_NAME, NIL, UNDEFINED
from bunqueue.model.names import queue_name_problem
from bunqueue.model.schedule import ScheduleError, next_run, next_tick
from bunqueue.protocol.commands import CommandError, ErrorReply, Ok
from bunqueue.protocol.commands.core import JobFields
from bunqueue.protocol.commands.cron import (
    Cron,
    CronDelete,
    CronFields,
    CronGet,
    CronList,
    CronListReply,
    CronNext,
    CronPause,
    CronReply,
    CronResume,
    CronRuns,
    CronRunsReply,
    CronView,
    SpawnOptions,
)
from bunqueue.protocol.numbers import number

from . import old_names, pushing
from .registry import handles, recovers
from .set_back import SetBack
from .slices import Steps, sliced
from .state import Client, State
from .timetable import Schedule

KIND = "cron"  # of the records
MANY = 1000  # schedules shown in one slice
MAX_A_TICK = 250  # runs before other commands have their turn: some 20 ms
LOOK_AGAIN_MS = 3_600_000  # at a schedule whose time zone this machine does not know

_decode = msgspec.json.Decoder(Schedule).decode
_NO_OPTIONS = SpawnOptions()


@handles(Cron)
def put(state: State, client: Client, command: Cron) -> CronReply | ErrorReply:
    _check(command)
    first = _next_after(command, state.now, state.now)
    if not state.is_home(command.queue):
        # The name has moved to a queue of another shard, whose answer is the one that counts.
        _remove(state, command.name)
        return ErrorReply(error="Cron job belongs to another shard")
    data = bytes(command.data)
    if client.version >= 3 and command.job_name is None:
        command.job_name, data = old_names.without_name(data)
    schedule = Schedule(
        **{field: getattr(command, field) for field in CronFields.__struct_fields__},
        data=NIL if data == UNDEFINED else data,
        next_run=state.now if command.immediately else first,
    )
    known = state.timetable.by_name.get(command.name)
    if known is not None and known.queue == command.queue:
        schedule.executions, schedule.paused = known.executions, known.paused
        schedule.next_run = known.next_run if _rhythm(known) == _rhythm(command) else first
    _keep(state, schedule)
    return CronReply(cron=_view(schedule))


@handles(CronDelete)
def delete(state: State, client: Client, command: CronDelete) -> Ok:
    if not _remove(state, command.name):
        raise CommandError("Cron job not found")
    return Ok()


@handles(CronGet)
def get(state: State, client: Client, command: CronGet) -> CronReply:
    return CronReply(cron=_view(_known(state, command.name)))


def _known(state: State, name: str) -> Schedule:
    schedule = state.timetable.by_name.get(name)
    if schedule is None:
        raise CommandError("Cron job not found")
    return schedule


@handles(CronPause)
def pause(state: State, client: Client, command: CronPause) -> CronReply:
    return _set_paused(state, command.name, True)


@handles(CronResume)
def resume(state: State, client: Client, command: CronResume) -> CronReply:
    return _set_paused(state, command.name, False)


def _set_paused(state: State, name: str, paused: bool) -> CronReply:
    schedule = _known(state, name)
    schedule.paused = paused
    _keep(state, schedule)
    return CronReply(cron=_view(schedule))


@handles(CronNext)
def next_runs(state: State, client: Client, command: CronNext) -> CronRunsReply:
    schedule = _known(state, command.name)
    left, limit = command.count, schedule.max_limit
    if limit is not None and limit > 0:
        left = min(left, limit - schedule.executions)
    runs: list[int] = []
    at = schedule.next_run
    while left > len(runs):
        runs.append(at)
        try:
            at = _next_after(schedule, at, at)
        except CommandError:  # there is no such date any more
            break
    return CronRunsReply(data=CronRuns([float(run) for run in runs]))


@handles(CronList)
@sliced
def list_all(state: State, client: Client, command: CronList) -> Steps:
    found = []
    for place, schedule in enumerate(list(state.timetable.by_name.values()), 1):
        found.append(_view(schedule))
        if place % MANY == 0:
            yield
    return CronListReply(crons=sorted(found, key=lambda view: view.name))


def next_ones(state: State, count: int) -> list[CronView]:
    """The schedules that run next, for an overview."""
    found = nsmallest(count, state.timetable.by_name.values(), key=lambda schedule: schedule.next_run)
    return [_view(schedule) for schedule in found]


@recovers(KIND, lambda key, value: slot_of_queue(_decode(value).queue))
def recover(state: State, key: str, value: str) -> None:
    """A schedule as it was stored; runs that were missed are looked at when the first tick comes."""
    state.timetable.put(_decode(value))


def run_due(state: State) -> None:
    """Run what is due, MAX_A_TICK at a time.

    A schedule that is late by several of its times runs once: nobody wants a heap of the same job.
    """
    for _ in range(MAX_A_TICK):
        schedule = state.timetable.take_due(state.now)
        if schedule is None:
            return
        _run(state, schedule)


def _run(state: State, schedule: Schedule) -> None:
    limit = schedule.max_limit
    if limit is not None and 0 < limit <= schedule.executions:
        _remove(state, schedule.name)
        return
    missed = schedule.next_run < state.away_until and schedule.skip_missed_on_restart
    unstaffed = schedule.skip_if_no_worker and not has_worker(state, schedule.queue)
    if not (missed or schedule.paused or unstaffed):
        schedule.executions += 1
        # Whether it gives a job is decided by the rules of a push: its unique key may be taken.
        with suppress(CommandError):
            pushing.push_fields(state, schedule.queue, _job_fields(schedule))
    try:
        schedule.next_run = _next_after(schedule, schedule.next_run, state.now)
    except CommandError:
        schedule.next_run = state.now + LOOK_AGAIN_MS
    _keep(state, schedule)


def set_back(state: State, back: SetBack) -> int:
    """The clock was ahead; how many schedules run earlier than they would have.

    A cron expression means the wall clock, so its next run is found anew.  No interval ends later than one
    interval from now.
    """
    moved = 0
    for schedule in list(state.timetable.by_name.values()):
        at, every = schedule.next_run, schedule.repeat_every
        if schedule.schedule:
            with suppress(CommandError):
                at = min(at, _next_after(schedule, at, back.now))
        elif every is not None and at > back.now + every:
            at = min(at - back.by, back.now + every)
        if at != schedule.next_run and schedule.next_run > back.now:
            schedule.next_run = at
            _keep(state, schedule)
            moved += 1
    return moved


def _check(command: Cron) -> None:
    """What every shard refuses alike, whether or not the queue is its own."""
    if problem := queue_name_problem(command.queue):
        raise CommandError(problem)
    if not command.schedule and command.repeat_every is None:
        raise CommandError("Cron job must have either schedule or repeatEvery")
    pushing.check_data(bytes(command.data))


def _next_after(fields: CronFields, last: int, now: int) -> int:
    """The next run after now; ``last`` is the one before, or the beginning of the intervals."""
    try:
        if fields.schedule:
            return next_run(fields.schedule, fields.timezone, now)
        assert fields.repeat_every is not None
        return next_tick(fields.repeat_every, last, now)
    except ScheduleError as error:
        raise CommandError(f"Invalid cron expression: {error}") from None


def _rhythm(fields: CronFields) -> tuple[str | None, int | None, str | None]:
    return (fields.schedule, None if fields.schedule else fields.repeat_every, fields.timezone)


def _keep(state: State, schedule: Schedule) -> None:
    state.timetable.put(schedule)
    state.out.keep(KIND, schedule.name, schedule)


def _remove(state: State, name: str) -> bool:
    """Whether there was such a schedule here."""
    if state.timetable.remove(name) is None:
        return False
    state.out.keep(KIND, name, None)
    return True


def _job_fields(schedule: Schedule) -> JobFields:
    """The job of a run, as a client would push it."""
    overlap_key = f"cron:{schedule.name}" if schedule.prevent_overlap else None
    options = schedule.job_options or _NO_OPTIONS
    return JobFields(
        data=Raw(schedule.data),
        name=schedule.job_name,
        priority=schedule.priority,
        unique_key=schedule.unique_key or overlap_key,
        dedup=schedule.dedup,
        **{field: getattr(options, field) for field in SpawnOptions.__struct_fields__},
    )


def has_worker(state: State, queue_name: str) -> bool:
    """Whether somebody works on a queue: says so, waits for its jobs, or has one in hand."""
    if queue_name in state.staffed or any(
        not waiter.done and not waiter.client.closed for waiter in state.parked(queue_name)
    ):
        return True
    queue = state.queues.get(queue_name)
    return queue is not None and any(job.lock and job.lock.conn for job in queue.active.values())


def _view(schedule: Schedule) -> CronView:
    limit, every = schedule.max_limit, schedule.repeat_every
    return CronView(
        name=schedule.name,
        job_name=schedule.job_name or DEFAULT_NAME,
        queue=schedule.queue,
        schedule=schedule.schedule or None,
        repeat_every=None if every is None else number(every),
        next_run_ms=float(schedule.next_run),
        executions=schedule.executions,
        max_limit=limit if limit is not None and limit > 0 else None,
        timezone=schedule.timezone,
        priority=schedule.priority,
        paused=True if schedule.paused else UNSET,
    )
