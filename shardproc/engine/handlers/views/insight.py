"""Information for operators: attempts, groups, shards.  Why a job waits is in wait_reasons.py."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest

from bunqueue.model.dead_letters import COMPLETED_OUTCOME, INTERRUPTED
from bunqueue.model.job import COMPLETED, Job
from bunqueue.protocol.commands import Data
from bunqueue.protocol.commands.insight import (
    Attempts,
    AttemptsReply,
    AttemptView,
    GetAttempts,
    GroupView,
    GroupViews,
    ListGroups,
    ListShards,
    ShardView,
    ShardViews,
    ShardViewsReply,
    Waiting,
    WhyWaiting,
)
from bunqueue.protocol.job_view import state_name

from ...lookup import known_job, known_queue
from ...memory.vitals import MB
from ...outbox import Attempt
from ...ready.group import Group
from ...registry import handles
from ...scoped import reads
from ...slices import Steps, sliced
from ...state import Client, State
from .stats import store_view
from .wait_reasons import reasons_of

GROUPS_A_SLICE = 500
SHOWN_A_SLICE = 100


@handles(GetAttempts)
def get_attempts(state: State, client: Client, command: GetAttempts) -> AttemptsReply:
    job = known_job(state, command.id)
    return AttemptsReply(data=Attempts([_attempt(*each) for each in numbered_attempts(state, job)]))


def numbered_attempts(state: State, job: Job) -> list[tuple[Attempt, int]]:
    """The latest finished attempts of a job with their numbers, oldest first."""
    past = state.archive.attempts([job.seq], interrupted=True).get(job.seq, [])
    if job.state == COMPLETED and job.finished_at is not None:
        number, ended = job.attempts + 1, job.finished_at
        last = Attempt(job.seq, number, job.worker, job.started_at, ended, COMPLETED_OUTCOME, None, None)
        past = [*past, last]
    return list(zip(past, _counted(past), strict=True))


def next_number(state: State, job: Job) -> int:
    """The number of the running attempt."""
    past = numbered_attempts(state, job)
    if not past:
        return job.attempts + 1
    last, number = past[-1]
    return number + (last.outcome != INTERRUPTED)


def _counted(past: list[Attempt]) -> Iterator[int]:
    """The numbers of attempts.  They continue when a dead letter is retried, although the job's own count
    restarts at 1.  An interrupted attempt does not count, so the next one has the same number."""
    before = last = 0
    again = False
    for attempt in past:
        if before + attempt.number < last or (before + attempt.number == last and not again):
            before = last
        last = before + attempt.number
        again = attempt.outcome == INTERRUPTED
        yield last


def _attempt(attempt: Attempt, number: int) -> AttemptView:
    return AttemptView(
        number,
        attempt.worker or None,
        None if attempt.started_at is None else float(attempt.started_at),
        float(attempt.ended_at),
        attempt.outcome,
        attempt.error,
        attempt.stack,
        attempt.error_type,
        None if attempt.delay is None else float(attempt.delay),
    )


@handles(WhyWaiting)
def why_waiting(state: State, client: Client, command: WhyWaiting) -> Data[Waiting]:
    job = known_job(state, command.id)
    return Data(data=Waiting(state_name(job, 3), reasons_of(state, job, errors=reads(client))))


@handles(ListGroups)
@sliced
def list_groups(state: State, client: Client, command: ListGroups) -> Steps:
    queue = known_queue(state, command.queue)
    groups = queue.limits.groups if queue is not None and queue.limits is not None else None
    found: list[tuple[str, Group]] = []
    if groups is not None:
        for place, (group_id, group) in enumerate(list(groups.by_id.items()), 1):
            if group.members or not group.record.is_over(state.now):
                found.append((group_id, group))
            if place % GROUPS_A_SLICE == 0:
                yield
    end = command.offset + command.limit
    some = nsmallest(end, found, key=lambda entry: entry[0])[command.offset :]
    shown = []
    for place, (_, group) in enumerate(some, 1):
        shown.append(_group(group))
        if place % SHOWN_A_SLICE == 0:
            yield
    return Data(data=GroupViews(shown, len(found)))


def _group(group: Group) -> GroupView:
    record = group.record
    duration = None if record.max is None else record.duration
    return GroupView(
        group.id,
        group.queued,
        group.active,
        record.paused,
        record.concurrency,
        record.max,
        duration,
        record.weight,
    )


@handles(ListShards)
def list_shards(state: State, client: Client, command: ListShards) -> ShardViewsReply:
    vitals = state.vitals()
    view = ShardView(
        state.shard,
        state.shards,
        len(state.queues),
        len(state.jobs),
        vitals.memory / MB,
        vitals.sqlite / MB,
        float(state.now - state.started_at),
        None if vitals.fault is None else vitals.fault.error,
        store_view(vitals),
    )
    return ShardViewsReply(data=ShardViews([view]))
