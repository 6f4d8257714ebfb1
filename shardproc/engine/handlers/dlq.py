"""The dead-letter queue: list, retry and remove its jobs; retry completed jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import UNSET

from bunqueue.model.backoff import names
from bunqueue.model.dead_letters import (
    CANCELLED,
    CAUSES,
    REASONS,
    UNKNOWN,
    OwnDlqConfig,
    cause_of,
    is_meant,
    reason_of,
)
from bunqueue.model.job import COMPLETED, FAILED, Job
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.base import Data, Removed
from bunqueue.protocol.commands.dlq import (
    CountDlq,
    Dlq,
    DlqConfigReply,
    DlqFilter,
    DlqStats,
    DlqStatsOf,
    Dropped,
    GetDlqConfig,
    GetDlqStats,
    PurgeDlq,
    RemoveDlqJob,
    RetriedReply,
    RetryCompleted,
    RetryDlq,
    SetDlqConfig,
)
from bunqueue.protocol.commands.query import CountReply
from bunqueue.protocol.configuration import changed

from ..lifecycle import dropped_letters, error_groups, removal, transitions
from ..lookup import known_queue
from ..memory.queue_configs import dlq_config, of_queue, store
from ..outbox import DeadLetter
from ..registry import handles
from ..slices import Steps, sliced
from ..state import Client, QueueState, State
from .error_groups import in_group
from .views.dead_letters import Entries
from .views.query import SLICE

ROWS = 200  # dead letters inspected per step, without their jobs

COUNTED = frozenset({*REASONS, CANCELLED})  # CANCELLED is counted only where there are any

_ALL = DlqFilter()

Wanted = Callable[[DeadLetter], bool]


@handles(SetDlqConfig)
def set_dlq_config(state: State, client: Client, command: SetDlqConfig) -> Ok:
    known_queue(state, command.queue)
    store(state, command.queue, changed(of_queue(state, command.queue, OwnDlqConfig), command.config))
    return Ok()


@handles(GetDlqConfig)
def get_dlq_config(state: State, client: Client, command: GetDlqConfig) -> DlqConfigReply:
    queue = known_queue(state, command.queue)
    dropped = queue.dropped if queue is not None else None
    return DlqConfigReply(config=dlq_config(state, command.queue), dropped=dropped or Dropped())


@handles(Dlq)
@sliced
def dlq(state: State, client: Client, command: Dlq) -> Steps:
    queue = known_queue(state, command.queue)
    chosen = command.filter or _ALL
    limit = command.count if chosen.limit is None else chosen.limit
    answer = Entries(state, client, command.queue)
    found = 0
    for step, rows in enumerate(_chosen(state, queue, chosen, limit)):
        if step:
            yield
        found += len(rows)
        if not answer.add_dead(rows):
            break
    reply = answer.dlq_reply(chosen, is_last=found < limit and not answer.is_full)
    reply.dropped = (queue.dropped if queue is not None else None) or UNSET
    return reply


@handles(CountDlq)
@sliced
def count_dlq(state: State, client: Client, command: CountDlq) -> Steps:
    queue = known_queue(state, command.queue)
    if queue is None or command.filter is None:
        return CountReply(count=0 if queue is None else queue.failed)
    count = 0
    for step, rows in enumerate(_walk(state, queue, command.filter)):
        if step:
            yield
        count += len(rows)
    return CountReply(count=count)


@handles(RetryDlq)
@sliced
def retry_dlq(state: State, client: Client, command: RetryDlq) -> Steps:
    queue = known_queue(state, command.queue)
    if queue is None:
        return RetriedReply(count=0)
    if command.job_id is not None:
        return RetriedReply(count=_retry_one(state, queue, command.job_id, FAILED))
    chosen = command.filter or _ALL
    limits = [limit for limit in (command.count, chosen.limit) if limit is not None]
    spared = _Spared(CANCELLED) if chosen.reason is None else None
    count = unreadable = 0
    pages = _chosen(state, queue, chosen, min(limits, default=queue.failed), spared)
    for step, rows in enumerate(pages):
        if step:
            yield
        came, lost = _retry(state, queue, [row.seq for row in rows], FAILED)
        count, unreadable = count + came, unreadable + lost
    _check_read(state, count, unreadable)
    _resolve(state, queue, chosen, count)
    reply = RetriedReply(count=count, cancelled=(spared.count if spared else 0) or UNSET)
    if command.filter is None and command.count is None:
        reply.dropped = queue.dropped or UNSET
    return reply


@handles(RetryCompleted)
@sliced
def retry_completed(state: State, client: Client, command: RetryCompleted) -> Steps:
    queue = known_queue(state, command.queue)
    if queue is None:
        return CountReply(count=0)
    if command.id is not None:
        return CountReply(count=_retry_one(state, queue, command.id, COMPLETED))
    until = state.now if command.timestamp is None else int(command.timestamp)
    left = queue.completed if command.count is None else command.count
    count, unreadable, after, more = 0, 0, None, bool(left)
    while more:
        seqs = state.archive.seqs(queue.id, frozenset({COMPLETED}), SLICE, False, after)
        jobs = state.archive.load(seqs).values()
        due = [job.seq for job in jobs if job.finished_at is not None and job.finished_at <= until]
        count += _retry(state, queue, due[: left - count], COMPLETED)[0]
        unreadable += len(state.archive.unreadable(seqs))
        more = len(seqs) == SLICE and count < left
        if more:
            after = seqs[-1]
            yield
    if count < left:
        _check_read(state, count, unreadable)
    return CountReply(count=count)


@handles(PurgeDlq)
@sliced
def purge_dlq(state: State, client: Client, command: PurgeDlq) -> Steps:
    queue = known_queue(state, command.queue)
    if command.filter is not None:
        return (yield from _purge_chosen(state, queue, command.filter))
    count, until = 0, state.now  # jobs that die after this moment are not purged
    while queue is not None and (old := state.archive.old_dead_letters(queue.id, until, SLICE)):
        removal.purge(state, queue, FAILED, [letter.seq for letter in old])
        count += len(old)
        if not queue.failed:
            break
        yield
    if queue is not None:
        removal.check(state, queue, count)
        dropped_letters.purged(state, queue)
    return CountReply(count=count)


def _purge_chosen(state: State, queue: QueueState | None, chosen: DlqFilter) -> Steps:
    """Remove the dead letters that match a filter."""
    count = 0
    limit = 0 if queue is None else queue.failed if chosen.limit is None else chosen.limit
    for step, rows in enumerate(_chosen(state, queue, chosen, limit)):
        if step:
            yield
        there = state.archive.load([row.seq for row in rows])
        seqs = [seq for seq, job in there.items() if job.state == FAILED]
        if queue is not None and seqs:
            removal.purge(state, queue, FAILED, seqs)
            count += len(seqs)
    if queue is not None:
        removal.check(state, queue, count)
        _resolve(state, queue, chosen, count)
    return CountReply(count=count)


def _resolve(state: State, queue: QueueState, chosen: DlqFilter, count: int) -> None:
    """The dead letters of a group have been dealt with, if there were any."""
    if chosen.error_group is not None and count:
        error_groups.resolve(state, queue.name, chosen.error_group)


@handles(RemoveDlqJob)
def remove_dlq_job(state: State, client: Client, command: RemoveDlqJob) -> Data[Removed]:
    queue = known_queue(state, command.queue)
    job = state.archive.find(command.job_id)
    found = queue is not None and job is not None and job.state == FAILED and job.queue == queue.name
    if found and queue is not None:
        removal.check(state, queue, 0)
    if found and queue is not None and job is not None:
        removal.purge(state, queue, FAILED, [job.seq])
    return Data(data=Removed(found))


@handles(GetDlqStats)
@sliced
def get_dlq_stats(state: State, client: Client, command: GetDlqStats) -> Steps:
    queue = known_queue(state, command.queue)
    pending = _wanted(state, command.queue, DlqFilter(retriable=True))
    expired = _wanted(state, command.queue, DlqFilter(expired=True))
    stats = DlqStats(0, dict.fromkeys(REASONS, 0), {command.queue: 0}, 0, 0, None, None)
    for step, rows in enumerate(_walk(state, queue, _ALL)):
        if step:
            yield
        for row in rows:
            reason, cause = reason_of(row.reason), cause_of(row.reason)
            reason = reason if reason in COUNTED else UNKNOWN
            stats.by_cause[cause] = stats.by_cause.get(cause, 0) + 1
            stats.by_reason[reason] = stats.by_reason.get(reason, 0) + 1
            stats.pending_retry += pending(row)
            stats.expired += expired(row)
        if rows and stats.oldest_entry_ms is None:
            stats.oldest_entry_ms = float(rows[0].entered_at)
        if rows:
            stats.newest_entry_ms = float(rows[-1].entered_at)
        stats.total += len(rows)
    stats.by_queue[command.queue] = stats.total
    if queue is not None and queue.dropped is not None:
        stats.dropped = queue.dropped
    return Data(data=DlqStatsOf(stats))


class _Spared:
    """Filters out the dead letters with one reason, and counts them."""

    def __init__(self, reason: str) -> None:
        self.count = 0
        self._reason = reason

    def without_spared(self, rows: list[DeadLetter]) -> list[DeadLetter]:
        rest = [row for row in rows if row.reason != self._reason]
        self.count += len(rows) - len(rest)
        return rest


def _chosen(
    state: State, queue: QueueState | None, chosen: DlqFilter, limit: int, spared: _Spared | None = None
) -> Iterator[list[DeadLetter]]:
    """The page of a queue's dead letters that a filter selects, in steps of at most SLICE; ``spared`` ones
    are left out."""
    skip = chosen.offset
    for found in _walk(state, queue, chosen):
        rows = spared.without_spared(found) if spared else found
        some = rows[skip : skip + limit]
        skip = max(0, skip - len(rows))
        limit -= len(some)
        for start in range(0, max(len(some), 1), SLICE):
            yield some[start : start + SLICE]
        if not limit:
            return


def _walk(state: State, queue: QueueState | None, chosen: DlqFilter) -> Iterator[list[DeadLetter]]:
    """The dead letters of a queue that pass a filter, oldest first, step by step.  Jobs that die in the
    meantime are ignored."""
    until, after = state.now, _begin(chosen.cursor)
    wanted = _wanted(state, queue.name if queue else "", chosen)
    while queue is not None and (rows := state.archive.dead_letters(queue.id, ROWS, after)):
        after = (rows[-1].entered_at, rows[-1].seq)
        found = [row for row in rows if row.entered_at <= until and wanted(row)]
        yield _matching(state, queue, found, chosen)
        if len(rows) < ROWS:
            return


def _begin(cursor: str | None) -> tuple[int, int]:
    """The time of death and the number of the last dead letter on the previous page."""
    if not cursor:
        return 0, 0
    at, _, seq = cursor.partition("-")
    return int(at), int(seq)


def _matching(
    state: State, queue: QueueState, found: list[DeadLetter], chosen: DlqFilter
) -> list[DeadLetter]:
    """The dead letters with the name and the error of a filter, which are stored with the jobs."""
    if found and (chosen.name is not None or chosen.error is not None):
        seqs = state.archive.matching([row.seq for row in found], chosen.name, chosen.error)
        found = [row for row in found if row.seq in seqs]
    if found and (asked := chosen.error_type) is not None:
        classes = state.archive.errors_of([row.seq for row in found])
        found = [row for row in found if names(asked, (classes.get(row.seq) or ("", ""))[0] or "")]
    if found and chosen.error_group is not None:
        seqs = in_group(state, queue, [row.seq for row in found], chosen.error_group)
        found = [row for row in found if row.seq in seqs]
    return found


def _wanted(state: State, queue: str, chosen: DlqFilter) -> Wanted:
    now, config = state.now, dlq_config(state, queue)

    def retriable(row: DeadLetter) -> bool:
        return config.auto_retry and row.next_retry_at is not None and row.next_retry_at <= now

    def expired(row: DeadLetter) -> bool:
        return config.max_age is not None and row.entered_at + config.max_age <= now

    tests: list[Wanted] = []
    if (asked := chosen.reason) is not None:
        if asked not in COUNTED and asked not in CAUSES:
            known = ", ".join(dict.fromkeys((*REASONS, *CAUSES)))
            raise CommandError(
                f"filter.reason {asked[:64]!r} is unknown; there are {known}",
                Code.INVALID_FIELD,
                field="filter.reason",
                value=asked,
                bound=known,
            )
        tests.append(lambda row: is_meant(asked, row.reason))
    if (older_than := chosen.older_than) is not None:
        tests.append(lambda row: row.entered_at < older_than)
    if (newer_than := chosen.newer_than) is not None:
        tests.append(lambda row: row.entered_at > newer_than)
    if chosen.retriable is not None:
        tests.append(lambda row: retriable(row) == chosen.retriable)
    if chosen.expired is not None:
        tests.append(lambda row: expired(row) == chosen.expired)
    return lambda row: all(test(row) for test in tests)


def _retry(state: State, queue: QueueState, seqs: list[int], finished: int) -> tuple[int, int]:
    """Retry finished jobs; returns how many were retried, and how many cannot be read."""
    jobs = state.archive.load(seqs).values()
    came = sum(revive(state, queue, job) for job in jobs if job.state == finished)
    return came, len(state.archive.unreadable(seqs))


def _check_read(state: State, count: int, unreadable: int) -> None:
    """CommandError if some of the jobs to retry could not be read."""
    if unreadable:
        text = f"{unreadable:,} jobs cannot be read, and do not run again; {count:,} others do"
        raise CommandError(f"{text}: {state.archive.problem()}", Code.STORAGE_DAMAGED)


def _retry_one(state: State, queue: QueueState, job_id: str, finished: int) -> int:
    job = state.archive.find(job_id)
    if job is None or job.state != finished or job.queue != queue.name:
        return 0
    return int(revive(state, queue, job))


def revive(state: State, queue: QueueState, job: Job) -> bool:
    """Retry a finished job, unless it is a dead letter whose unique key belongs to a live job."""
    if job.state == FAILED and not transitions.can_retake_key(state, queue, job):
        return False
    transitions.revive(state, queue, job)
    return True
