"""Failed attempts and dead letters, counted by kinds of errors as they occur.

A failure is only noted while its command runs, and counted once a batch: what succeeds pays nothing. Groups
are stored with the batch, so a restart shows what was known before. Numbers of dead letters are not counted
along, as these go in many ways: they are read from the file, see `handlers.error_groups`.
"""

from __future__ import annotations

from msgspec import json

from bunqueue.model.durations import DAY_MS
from bunqueue.model.errors_alike import kind_of_pattern, pattern_of
from bunqueue.model.names import parts_of, record_key

from ..memory.error_groups import (
    MAX_CLASSES,
    MAX_GROUPS,
    MAX_OF_SHARD,
    OTHER,
    RECORD,
    ErrorGroup,
    Example,
    QueueErrors,
    tally,
)
from ..outbox import Attempt
from ..registry import at_queue_in, recovers, when_obliterated
from ..state import QueueState, State
from .events import ERROR_RETURNED, emit_queue

MAX_ERROR, MAX_STACK = 2_000, 6_000  # characters of an example; a stack keeps its end
FRESH_MS = 60_000  # an example is replaced by a later one after this time
QUIET_MS = 10 * 60_000  # without failures for so long, a group is over until it comes back
GIVES_WAY_MS = 60 * 60_000  # a group without failures for so long makes room for a new one
FORGOTTEN_MS = 7 * DAY_MS  # and without dead letters, it is forgotten after this time

_decode = json.Decoder(ErrorGroup).decode


def of_queue(state: State, name: str) -> QueueErrors:
    """The groups of a queue, which are created on first use."""
    found = state.errors.queues.get(name)
    if found is None:
        found = state.errors.queues[name] = QueueErrors()
    return found


def record(state: State) -> None:
    """Put what has failed in this batch into its groups, and store these."""
    errors = state.errors
    pending, errors.pending = errors.pending, []
    last: tuple[object, str] | None = None
    for queue, job, attempt in pending:
        if attempt is not None:
            group_id = _count(state, queue, job.name, job.id, attempt)
            last = (job, group_id)
            continue
        if last is None or last[0] is not job:
            seen = (
                state.archive.errors_of([job.seq]).get(job.seq, (None, None))
                if job.attempts
                else (None, None)
            )
            died = Attempt(job.seq, job.attempts, job.worker, None, state.now, "", job.error, None, seen[0])
            last = (job, _count(state, queue, job.name, job.id, died))
        of_queue(state, queue.name).groups[last[1]].dead += 1
    for name, group_id in errors.touched:
        known = errors.queues.get(name)
        state.out.keep(RECORD, record_key(name, group_id), known.groups.get(group_id) if known else None)
    errors.touched.clear()


def _count(state: State, queue: QueueState, name: str, job_id: str, attempt: Attempt) -> str:
    """Count a failed attempt; returns the id of its group."""
    now, found = state.now, of_queue(state, queue.name)
    pattern = pattern_of(attempt.error)
    group_id = admit(state, queue.name, attempt.error_type, pattern)
    group = found.groups[group_id]
    _returns(state, queue, group_id, group, attempt)
    group.count(now)
    if attempt.outcome:
        tally(group.outcomes, attempt.outcome)
        _classify(found, attempt, muted=group.muted is not None)
    tally(group.names, name)
    tally(group.workers, attempt.worker or None)
    tally(group.versions, attempt.version)
    if group.example is None or now - group.example.at >= FRESH_MS:
        group.example = example_of(job_id, name, attempt)
    state.errors.touched.add((queue.name, group_id))
    return group_id


def example_of(job_id: str, name: str, attempt: Attempt) -> Example:
    """A failed attempt as it is shown with its group."""
    stack = attempt.stack[-MAX_STACK:] if attempt.stack else None
    error = (attempt.error or "")[:MAX_ERROR]
    return Example(
        job_id, name, attempt.ended_at, attempt.number, error, attempt.worker, attempt.version, stack
    )


def _classify(found: QueueErrors, attempt: Attempt, *, muted: bool) -> None:
    key = (attempt.outcome, attempt.error_type or "", muted)
    if key not in found.classes and len(found.classes) >= MAX_CLASSES:
        key = (attempt.outcome, OTHER, muted)  # outcomes are few
    found.classes[key] += 1


def _returns(state: State, queue: QueueState, group_id: str, group: ErrorGroup, attempt: Attempt) -> None:
    """Report a watched group that was over."""
    over = group.resolved is not None or (group.failures and state.now - group.last >= QUIET_MS)
    if not over:
        return
    group.resolved = None
    if group.watched is not None and group.muted is None:
        group.returned = state.now
        error = attempt.error or ""
        emit_queue(state, ERROR_RETURNED, queue, group=group_id, error=error, reason=group.pattern)


def admit(state: State, queue: str, error_type: str | None, pattern: str) -> str:
    """The id of the group for a kind of error, which is created if there is room: else OTHER."""
    found, errors = of_queue(state, queue), state.errors
    group_id = kind_of_pattern(error_type, pattern)
    if group_id in found.groups:
        return group_id
    if len(found.groups) >= MAX_GROUPS and not _make_room(state, queue, found):
        group_id = OTHER
    elif errors.count >= MAX_OF_SHARD:
        group_id = OTHER
    if group_id not in found.groups:
        other = group_id == OTHER
        if OTHER in found.groups:  # which may have had dead letters of this kind
            found.recount()
        found.groups[group_id] = ErrorGroup(
            None if other else error_type, "" if other else pattern, state.now, state.now
        )
        errors.count += 1
    return group_id


def _make_room(state: State, queue: str, found: QueueErrors) -> bool:
    """Merge the group whose last failure is the oldest into OTHER, if it was GIVES_WAY_MS ago or more."""
    quiet = {
        group_id: group.last
        for group_id, group in found.groups.items()
        if group_id != OTHER and not _is_marked(group) and state.now - group.last >= GIVES_WAY_MS
    }
    if not quiet:
        return False
    oldest = min(quiet, key=lambda group_id: quiet[group_id])
    gone = found.groups[oldest]
    forget(state, queue, oldest)
    if OTHER not in found.groups:
        found.groups[OTHER] = ErrorGroup(None, "", gone.first, gone.last)
        state.errors.count += 1
    found.recount()
    rest = found.groups[OTHER]
    rest.failures, rest.dead = rest.failures + gone.failures, rest.dead + gone.dead
    rest.first, rest.last = min(rest.first, gone.first), max(rest.last, gone.last)
    state.errors.touched.add((queue, OTHER))
    return True


def _is_marked(group: ErrorGroup) -> bool:
    return group.muted is not None or group.watched is not None


def forget(state: State, queue: str, group_id: str) -> None:
    """Forget a group."""
    found = state.errors.queues.get(queue)
    if found is not None and found.groups.pop(group_id, None) is not None:
        state.errors.count -= 1
        state.out.keep(RECORD, record_key(queue, group_id), None)
        if not found.groups:
            del state.errors.queues[queue]


def forget_old(state: State, queue: str) -> None:
    """Forget the groups of a queue that were quiet for days, and have no dead letters."""
    found = state.errors.queues.get(queue)
    if found is None:
        return
    for group_id, group in list(found.groups.items()):
        if state.now - group.last >= FORGOTTEN_MS and not _is_marked(group) and not found.kept[group_id]:
            forget(state, queue, group_id)


def resolve(state: State, queue: str, group_id: str) -> None:
    """Say that a group is over: the next failure in it is its return."""
    found = state.errors.queues.get(queue)
    group = found.groups.get(group_id) if found is not None else None
    if group is not None:
        group.resolved = state.now
        state.errors.touched.add((queue, group_id))


@recovers(RECORD, at_queue_in)
def recover(state: State, key: str, value: str) -> None:
    queue, group_id = parts_of(key)
    of_queue(state, queue).groups[group_id] = _decode(value)
    state.errors.count += 1


@when_obliterated
def obliterated(state: State, queue: QueueState) -> None:
    """Forget the groups of a queue."""
    state.errors.pending = [entry for entry in state.errors.pending if entry[0] is not queue]
    found = state.errors.queues.get(queue.name)
    for group_id in list(found.groups) if found is not None else ():
        forget(state, queue.name, group_id)
