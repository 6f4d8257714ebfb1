"""Jobs with ``repeat``: each one that completes is followed by another."""

from __future__ import annotations

from contextlib import suppress

from msgspec import convert, to_builtins
from msgspec.structs import replace

from bunqueue.model.job import Extra, Job
from bunqueue.model.schedule import ScheduleError, UnknownZone, next_run
from bunqueue.model.workflow import UNAMBIGUOUS, Run
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.base import MAX_SAFE, path_of
from bunqueue.protocol.commands.times import Repeat

from ..memory.clock_correction import SetBack
from ..outbox import ROW
from ..state import QueueState, State
from . import unique_keys

MAX_CHAIN = 1000  # completed jobs inspected to find the latest successor

_ALWAYS = frozenset({"limit", "count"})  # fields that are shown even if they are unset


def check(repeat: Repeat, now: int, where: str) -> None:
    """CommandError unless it has either ``every`` or a valid ``pattern``."""
    if (repeat.every is None) == (repeat.pattern is None):
        raise CommandError(
            f"{where}repeat needs either every or pattern",
            Code.INVALID_SCHEDULE,
            field=path_of(f"{where}repeat"),
            bound="every, pattern",
        )
    if repeat.pattern is not None:
        try:
            next_run(repeat.pattern, repeat.tz, _not_before(repeat, now))
        except ScheduleError as error:
            field, value = (
                ("tz", repeat.tz) if isinstance(error, UnknownZone) else ("pattern", repeat.pattern)
            )
            raise CommandError(
                f"{where}Invalid repeat pattern: {error}",
                Code.INVALID_SCHEDULE,
                field=path_of(f"{where}repeat.{field}"),
                value=value,
            ) from None


def _not_before(repeat: Repeat, now: int) -> int:
    """The time after which a job may be repeated."""
    return max(now, int(repeat.start_date or 0) - 1)


def as_map(repeat: Repeat) -> dict[str, float | int | str | None]:
    """As stored with the job."""
    fields = to_builtins(repeat).items()
    return {name: value for name, value in fields if value is not None or name in _ALWAYS}


def _next_at(repeat: Repeat, now: int) -> int | None:
    """When the next job is due; None: there is no next one."""
    if repeat.limit is not None and repeat.count >= repeat.limit:
        return None
    if repeat.pattern is not None:
        try:
            at = next_run(repeat.pattern, repeat.tz, _not_before(repeat, now))
        except ScheduleError:  # the pattern has no further date
            return None
    else:
        at = max(now + max(1, int(repeat.every or 0)), int(repeat.start_date or 0))
    return None if repeat.end_date is not None and at > repeat.end_date else at


def set_back(job: Job, extra: Extra, back: SetBack) -> int:
    """The corrected run time of a job that was planned by a wrong clock."""
    at = job.run_at - back.by
    if extra.repeat is None:
        return at
    repeat = convert(extra.repeat, Repeat)
    if repeat.pattern is not None and repeat.count:  # it refers to the wall clock
        with suppress(ScheduleError):
            return min(job.run_at, next_run(repeat.pattern, repeat.tz, _not_before(repeat, back.now)))
    return max(at, int(repeat.start_date or 0)) if repeat.count else at


def last_of(state: State, job_id: str) -> Job | None:
    """The live successor of a completed job."""
    for _ in range(MAX_CHAIN):
        done = state.archive.known(job_id)
        if done is None or done.extra is None or done.extra.repeated_by is None:
            break
        job_id = done.extra.repeated_by
        if (job := state.jobs.get(job_id)) is not None:
            return job
    return None


def successor(state: State, queue: QueueState, job: Job, extra: Extra) -> Job | None:
    """The job that follows a completed one; None if none follows.

    It is a separate job with a new id.  It does not inherit the first job's links to other jobs, or its
    history.
    """
    repeat = convert(extra.repeat, Repeat)
    run_at = _next_at(repeat, state.now)
    if run_at is None:
        return None
    key_ttl = extra.deduplication_ttl
    seq = state.next_seq
    state.next_seq += 1
    state.totals.pushed += 1
    state.out.durable = state.out.durable or job.options.durable
    again = Job(
        seq,
        state.ids.job_id(queue.slot, state.now, seq),
        queue.name,
        job.name,
        job.data,
        job.shared,
        job.priority,
        state.now,
        run_at,
        extra=_repeated(extra, repeat, None if key_ttl is None else state.now + int(key_ttl)),
        run=Run(declared=True, keys=UNAMBIGUOUS) if job.run is not None and job.run.declared else None,
    )
    extra.repeated_by = again.id
    state.out.touch(job, ROW)
    unique_keys.hand_on(state, queue, job, again)
    return again


def _repeated(extra: Extra, repeat: Repeat, key_until: int | None) -> Extra:
    """The part of a run that the next one inherits."""
    return replace(
        extra,
        custom_id=None,
        parent_id=None,
        depends_on=[],
        children_ids=[],
        stacktrace=None,
        own_id=False,
        failures=None,
        ignored=None,
        auto_retries=None,
        watched=False,
        drops=0,
        cause=None,
        planned_at=None,
        repeat={**(extra.repeat or {}), "count": min(repeat.count + 1, MAX_SAFE)},
        key_until=key_until,
    )
