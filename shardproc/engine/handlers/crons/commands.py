"""Schedules: the commands that set and show them.  `runs` starts them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from heapq import nsmallest
from operator import attrgetter

import msgspec
from msgspec import Raw

from bunqueue.model.ids import slot_of_queue
from bunqueue.model.job import DEFAULT_NAME, NIL, UNDEFINED
from bunqueue.model.names import prefix_of, queue_name_problem
from bunqueue.model.schedule import ScheduleError, UnknownZone, next_run, next_tick
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Data, ErrorReply, Ok, Reply
from bunqueue.protocol.commands.core import JobFields
from bunqueue.protocol.commands.cron import (
    DEFAULT_BACKLOG,
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
    CronRun,
    CronRuns,
    CronView,
    contradictions,
)
from bunqueue.protocol.numbers import number

from ...lifecycle import declared
from ...memory.clock_correction import SetBack
from ...memory.timetable import KIND, Schedule
from ...peer_calls import Steps, across
from ...registry import handles, recovers
from ...scoped import allows, is_limited
from ...slices import Steps as Slices
from ...slices import sliced
from ...state import Client, State
from .. import old_names, push_checks
from . import names

ALLOW, SKIP, QUEUE, CANCEL = "allow", "skip", "queue", "cancel"  # values of `CronFields.overlap`
NONE, ALL = "none", "all"  # values of `CronFields.on_missed`
MANY = 100  # schedules shown per slice
INSPECTED_PER_SLICE = 1000  # inspected per slice, to find the next ones of all
NOT_FOUND = "Cron job not found"

_decode = msgspec.json.Decoder(Schedule).decode


@handles(Cron)
def put(state: State, client: Client, command: Cron) -> Reply | None:
    _check(command)
    next_after(command, state.now, state.now)
    prefix = prefix_of(command.queue)
    if not command.name.startswith(prefix):  # nobody who lives there could name it
        text = f"the name of a schedule for the queue {command.queue} begins with {prefix}"
        raise CommandError(text, Code.INVALID_FIELD, field="name", value=command.name, bound=prefix)
    if not state.is_home(command.queue):
        known = state.timetable.by_name.get(command.name)
        if command.move and known is not None and allows(client, known.queue):
            remove(state, command.name)
        # The answer that counts comes from the queue's shard.
        return ErrorReply(error="Cron job belongs to another shard", code=Code.SCHEDULE_NOT_FOUND)
    if command.move and not is_limited(client):
        return _put(state, client, command)
    return _put_unless_taken(state, client, command)


@across
def _put_unless_taken(state: State, client: Client, command: Cron) -> Steps:
    yield from names.claim(state, client, command)
    return _put(state, client, command)


def _put(state: State, client: Client, command: Cron) -> CronReply:
    first = next_after(command, state.now, state.now)
    data = bytes(command.data)
    state.kept.admit(KIND, command.name, "name", command.name, len(data))
    tenant = state.tenants.of(command.queue)
    if tenant is not None and command.name not in state.timetable.by_name:
        there = sum(each.queue.startswith(tenant.prefix) for each in state.timetable.by_name.values())
        tenant.admit("schedules", there)
    if client.version >= 3 and command.job_name is None:
        command.job_name, data = old_names.without_name(data)
    if (functions := state.functions.get(command.queue)) is not None:
        job = JobFields(name=command.job_name)
        declared.admit(functions, command.queue, [job], [data], state.now)
    schedule = Schedule(
        **{field: getattr(command, field) for field in CronFields.__struct_fields__},
        data=NIL if data == UNDEFINED else data,
        next_run=state.now if command.immediately else first,
    )
    known = state.timetable.by_name.get(command.name)
    if known is not None and known.queue == command.queue:
        _check_limit(known, command.max_limit)
        schedule.executions, schedule.paused = known.executions, known.paused
        schedule.missed, schedule.last_run = known.missed, known.last_run
        schedule.app = command.app or known.app
        schedule.next_run = known.next_run if _rhythm(known) == _rhythm(command) else first
        if schedule.overlap == QUEUE:
            schedule.waiting_for = known.waiting_for[: backlog_of(schedule)]
    if schedule.overlap is not None:
        schedule.prevent_overlap = schedule.overlap != ALLOW
    if schedule.on_missed is not None:
        schedule.skip_missed_on_restart = schedule.on_missed == NONE
    keep(state, schedule)
    return CronReply(cron=_view(schedule))


def _check_limit(known: Schedule, limit: int | None) -> None:
    """CommandError for a new limit that the schedule has already reached: it would never run."""
    if limit is None or limit <= 0 or limit > known.executions or limit == known.max_limit:
        return
    text = f"Cron job {known.name} has run {known.executions} times, so a limit of {limit} would end it"
    more = f"more than {known.executions}"
    raise CommandError(text, Code.INVALID_FIELD, field="maxLimit", value=limit, bound=more)


@handles(CronDelete)
def delete(state: State, client: Client, command: CronDelete) -> Ok:
    known = known_schedule(state, client, command.name)
    if command.app is not None and known.app != command.app:
        raise CommandError(NOT_FOUND, Code.SCHEDULE_NOT_FOUND, field="name", value=command.name)
    remove(state, command.name)
    return Ok()


@handles(CronGet)
def get(state: State, client: Client, command: CronGet) -> CronReply:
    return _shown(state, known_schedule(state, client, command.name))


def known_schedule(state: State, client: Client, name: str) -> Schedule:
    """A schedule that exists for a client.  CommandError if it does not."""
    schedule = state.timetable.by_name.get(name)
    if schedule is None or not allows(client, schedule.queue):
        raise CommandError(NOT_FOUND, Code.SCHEDULE_NOT_FOUND, field="name", value=name)
    return schedule


@handles(CronPause)
def pause(state: State, client: Client, command: CronPause) -> CronReply:
    return _set_paused(state, client, command.name, True)


@handles(CronResume)
def resume(state: State, client: Client, command: CronResume) -> CronReply:
    return _set_paused(state, client, command.name, False)


def _set_paused(state: State, client: Client, name: str, paused: bool) -> CronReply:
    schedule = known_schedule(state, client, name)
    schedule.paused = paused
    if schedule.backlog and not paused:
        state.timetable.ready.append(name)
    keep(state, schedule)
    return _shown(state, schedule)


@handles(CronNext)
def next_runs(state: State, client: Client, command: CronNext) -> Data[CronRuns]:
    schedule = known_schedule(state, client, command.name)
    left, limit = command.count, schedule.max_limit
    if limit is not None and limit > 0:
        left = min(left, limit - schedule.executions)
    runs: list[int] = []
    at = schedule.next_run
    while left > len(runs):
        runs.append(at)
        try:
            at = next_after(schedule, at, at)
        except CommandError:  # the expression has no further date
            break
    return Data(data=CronRuns([float(run) for run in runs]))


@handles(CronList)
@sliced
def list_all(state: State, client: Client, command: CronList) -> Slices:
    by_name, found = state.timetable.by_name, []
    for place, name in enumerate(sorted(by_name), 1):
        schedule = by_name.get(name)
        if schedule is not None and allows(client, schedule.queue):
            found.append(_view(schedule))
        if place % MANY == 0:
            yield
    return CronListReply(crons=found)


def next_ones(state: State, client: Client, count: int) -> Generator[None, None, list[CronView]]:
    """The schedules with the earliest next runs, for an overview."""
    schedules = [each for each in state.timetable.by_name.values() if allows(client, each.queue)]
    found: list[Schedule] = []
    for start in range(0, len(schedules), INSPECTED_PER_SLICE):
        found = nsmallest(
            count, found + schedules[start : start + INSPECTED_PER_SLICE], key=attrgetter("next_run")
        )
        yield
    return [_view(schedule) for schedule in found]


def slot_of_record(key: str, value: str) -> int:
    """The slot of a stored record."""
    return slot_of_queue(_decode(value).queue)


@recovers(KIND, slot_of_record)
def recover(state: State, key: str, value: str) -> None:
    """Restore a schedule from storage; missed runs are handled by the first tick."""
    schedule = _decode(value)
    state.timetable.put(schedule)
    if schedule.backlog:
        state.timetable.ready.append(schedule.name)


def set_back(state: State, back: SetBack) -> int:
    """Correct the schedules after the clock was ahead; returns how many now run earlier.

    A cron expression refers to the wall clock, so its next run is computed again.  No interval ends later
    than one interval from now.
    """
    moved = 0
    for schedule in list(state.timetable.by_name.values()):
        at, every = schedule.next_run, schedule.repeat_every
        if schedule.schedule:
            with suppress(CommandError):
                at = min(at, next_after(schedule, at, back.now))
        elif every is not None and at > back.now + every:
            at = min(at - back.by, back.now + every)
        if (last := schedule.last_run) is not None:
            last.at = back.moment(last.at)
        if at != schedule.next_run and schedule.next_run > back.now:
            schedule.next_run = at
            keep(state, schedule)
            moved += 1
    return moved


def _check(command: Cron) -> None:
    """Refuse what every shard refuses, whether or not it owns the queue."""
    if problem := queue_name_problem(command.queue):
        raise CommandError(problem, Code.INVALID_QUEUE, field="queue", value=command.queue)
    if not command.schedule and command.repeat_every is None:
        text = "Cron job must have either schedule or repeatEvery"
        raise CommandError(
            text, Code.INVALID_SCHEDULE, field="schedule", value=None, bound="schedule, repeatEvery"
        )
    push_checks.check_data(bytes(command.data))
    if command.job_options is not None:
        push_checks.check_keeping(command.job_options, "jobOptions.")
        if command.job_options.workflow:
            push_checks.check_arguments(bytes(command.data))
    for field, problem in contradictions(command):
        raise CommandError(f"{field}: {problem}", Code.INVALID_FIELD, field=field)


def backlog_of(schedule: Schedule) -> int:
    """How many runs of a schedule may wait, or make up for missed ones."""
    return schedule.max_backlog or DEFAULT_BACKLOG


def next_after(fields: CronFields, last: int, now: int) -> int:
    """The next run after now; ``last`` is the previous one, or the start of the intervals."""
    try:
        if fields.schedule:
            return next_run(fields.schedule, fields.timezone, now)
        assert fields.repeat_every is not None
        return next_tick(fields.repeat_every, last, now)
    except ScheduleError as error:
        field = "timezone" if isinstance(error, UnknownZone) else "schedule"
        raise CommandError(
            f"Invalid cron expression: {error}",
            Code.INVALID_SCHEDULE,
            field=field,
            value=getattr(fields, field),
        ) from None


def _rhythm(fields: CronFields) -> tuple[str | None, int | None, str | None]:
    return (fields.schedule, None if fields.schedule else fields.repeat_every, fields.timezone)


def keep(state: State, schedule: Schedule) -> None:
    state.timetable.put(schedule)
    state.out.keep(KIND, schedule.name, schedule)


def remove(state: State, name: str) -> bool:
    """Remove a schedule; whether it existed here."""
    if state.timetable.remove(name) is None:
        return False
    state.out.keep(KIND, name, None)
    return True


def _shown(state: State, schedule: Schedule) -> CronReply:
    """Show a schedule with the data of its jobs.  Lists have no room for that data, and a client that sets a
    schedule knows it."""
    return CronReply(cron=_view(schedule, with_data=True))


def _view(schedule: Schedule, *, with_data: bool = False) -> CronView:
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
        prevent_overlap=schedule.prevent_overlap,
        skip_if_no_worker=schedule.skip_if_no_worker,
        skip_missed_on_restart=schedule.skip_missed_on_restart,
        overlap=schedule.overlap,
        on_missed=schedule.on_missed,
        max_backlog=schedule.max_backlog,
        backlog=schedule.backlog,
        unique_key=schedule.unique_key,
        dedup=schedule.dedup,
        job_options=schedule.job_options,
        app=schedule.app,
        paused=schedule.paused,
        missed=schedule.missed,
        last_run=_last_run(schedule),
        data=Raw(schedule.data) if with_data and schedule.data != NIL else None,
    )


def _last_run(schedule: Schedule) -> CronRun | None:
    run = schedule.last_run
    if run is None:
        return None
    return CronRun(
        at_ms=float(run.at),
        job_id=run.job_id,
        outcome=run.outcome,
        ended_at_ms=None if run.ended_at is None else float(run.ended_at),
    )
