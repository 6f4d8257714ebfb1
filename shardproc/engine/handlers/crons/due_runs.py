"""Runs of schedules: jobs that are due, missed, or triggered by a command.

A schedule is stored on the shard of its queue, so the job it pushes and its step to the next time are one
transaction: however a shard ends, no run is lost and none happens twice.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import UNSET, Raw

from bunqueue.model.names import outside
from bunqueue.model.schedule import times_between
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.core import Dedup, JobFields
from bunqueue.protocol.commands.cron import CronRunReply, CronTrigger, SpawnOptions

from ...lifecycle import last_runs
from ...memory.timetable import Missed, Schedule
from ...registry import handles
from ...state import Client, State
from .. import push
from .commands import ALL, CANCEL, QUEUE, SKIP, backlog_of, keep, known_schedule, next_after, remove

MAX_A_TICK = 250  # runs before other commands get their turn: about 20 ms
RECHECK_MS = 3_600_000  # before a schedule is checked again whose time zone this machine does not know
MAX_COUNTED = 1000  # times of an expression that are counted after a downtime: each takes about 30 us
COUNTED_A_RUN = 4  # counted times that take as long as one run

_NO_OPTIONS = SpawnOptions()
_CONFLICTS = {SKIP: Dedup(on_conflict="keep"), CANCEL: Dedup(on_conflict="supersede")}
"""What happens to a run whose last job has not ended, by `CronFields.overlap`."""


def run_due(state: State) -> None:
    """Run what is due, up to the work of MAX_A_TICK runs.

    A schedule that is late by several of its times runs once, unless it asks for all: few users want many
    copies of the same job.
    """
    left = MAX_A_TICK
    while left > 0 and (schedule := state.timetable.take_ready()) is not None:
        _push_if_allowed(state, schedule, schedule.take_back())
        if schedule.backlog and not schedule.is_running:  # the push added no job
            state.timetable.ready.append(schedule.name)
        keep(state, schedule)
        left -= 1
    while left > 0:
        schedule = state.timetable.take_due(state.now)
        if schedule is None:
            return
        left -= _run(state, schedule)


def _run(state: State, schedule: Schedule) -> int:
    """Run a schedule that is due, or skip it by its rules; the amount of work done, in runs."""
    limit = schedule.max_limit
    if limit is not None and 0 < limit <= schedule.executions:
        remove(state, schedule.name)
        return 1
    was_down = schedule.next_run < state.away_until and not schedule.paused
    deserted = schedule.skip_if_no_worker and not has_worker(state, schedule.queue)
    runs = not (schedule.paused or deserted or (was_down and schedule.skip_missed_on_restart))
    counted = _miss(state, schedule, made_up=runs) if was_down else 0
    wanted = 1
    if schedule.on_missed == ALL:  # also when only this shard was down, or late
        wanted = min(_times_until(schedule, state.now + 1), backlog_of(schedule))
    if limit is not None and limit > 0:
        wanted = min(wanted, limit - schedule.executions)
    if runs:
        schedule.executions += wanted
        for at in _times(schedule, wanted):
            _begin(state, schedule, at)
    try:
        schedule.next_run = next_after(schedule, schedule.next_run, state.now)
    except CommandError:
        schedule.next_run = state.now + RECHECK_MS
    keep(state, schedule)
    return (wanted if runs else 1) + (counted // COUNTED_A_RUN if schedule.schedule else 0)


def _times(schedule: Schedule, count: int) -> list[int]:
    """The first ``count`` times of a schedule that is due; all of them have passed."""
    times = [schedule.next_run]
    while len(times) < count:
        times.append(next_after(schedule, times[-1], times[-1]))
    return times


def _begin(state: State, schedule: Schedule, at: int) -> None:
    """Start the run for a time, or put it off until the last run's job has ended."""
    if schedule.overlap != QUEUE or not (schedule.backlog or schedule.is_running):
        _push_if_allowed(state, schedule, at)
    elif schedule.backlog < backlog_of(schedule):
        schedule.put_off(at)


def _push_if_allowed(state: State, schedule: Schedule, at: int) -> None:
    """Push the job of a run, if the rules of a push allow it: its unique key may be taken."""
    with suppress(CommandError):
        _push(state, schedule, at)


def _miss(state: State, schedule: Schedule, *, made_up: bool) -> int:
    """Count the times that passed during the server's downtime."""
    first = schedule.next_run
    times = _times_until(schedule, state.away_until)
    schedule.missed += times
    state.totals.cron_missed += times
    state.timetable.missed.append(Missed(schedule.name, schedule.queue, times, first, made_up))
    return times


def _times_until(schedule: Schedule, until: int) -> int:
    """The number of times of a due schedule before ``until``; at most MAX_COUNTED for an expression."""
    every = None if schedule.schedule else schedule.repeat_every
    return times_between(
        schedule.schedule, every, schedule.timezone, schedule.next_run, until, at_most=MAX_COUNTED
    )


@handles(CronTrigger)
def trigger(state: State, client: Client, command: CronTrigger) -> CronRunReply:
    schedule = known_schedule(state, client, command.name)
    if schedule.overlap == QUEUE and schedule.is_running and schedule.last_run is not None:
        if schedule.backlog >= backlog_of(schedule):
            raise CommandError(
                f"Schedule {schedule.name} has {schedule.backlog} runs that wait, which is its maxBacklog",
                Code.QUEUE_FULL,
                field="name",
                value=schedule.name,
            )
        schedule.put_off(state.now)
        keep(state, schedule)
        return CronRunReply(id=schedule.last_run.job_id, queue=schedule.queue, existing=True)
    job_id, is_new = _push(state, schedule, state.now, client.by)
    if is_new:
        keep(state, schedule)
    return CronRunReply(id=job_id, queue=schedule.queue, existing=not is_new)


def _push(state: State, schedule: Schedule, at: int, by: str | None = None) -> tuple[str, bool]:
    """Push the job of a run, perhaps for an identity; returns its id, and whether it is new.  Raises
    CommandError like a push."""
    job_id, is_new = push.push_fields(state, schedule.queue, _job_fields(schedule), by)
    if is_new:
        last_runs.begun(state, schedule, state.jobs[job_id], at)
    return job_id, is_new


def _job_fields(schedule: Schedule) -> JobFields:
    """The job of a run, as a client would push it."""
    overlap_key = None
    if schedule.prevent_overlap and schedule.overlap != QUEUE:
        overlap_key = f"cron:{outside(schedule.queue, schedule.name)}"
    options = schedule.job_options or _NO_OPTIONS
    return JobFields(
        data=Raw(schedule.data),
        name=schedule.job_name,
        priority=schedule.priority or UNSET,  # 0: that of its function
        unique_key=schedule.unique_key or overlap_key,
        dedup=_CONFLICTS.get(schedule.overlap or "", schedule.dedup),
        **{field: getattr(options, field) for field in SpawnOptions.__struct_fields__},
    )


def has_worker(state: State, queue_name: str) -> bool:
    """Whether a worker works on a queue: it is registered, waits for the queue's jobs, or has one in hand."""
    if queue_name in state.queues_with_workers or any(
        not waiter.done and not waiter.client.closed for waiter in state.parked(queue_name)
    ):
        return True
    queue = state.queues.get(queue_name)
    return queue is not None and any(job.lock and job.lock.conn for job in queue.active.values())
