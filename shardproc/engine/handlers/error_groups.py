"""ListErrors, GetErrorGroup, SetErrorGroup: errors in groups, with the number of dead letters of each.

Dead letters are removed in many ways, so a count that only adds and subtracts could drift. The number is read
from the file. The last count is kept: only newer dead letters are read, or all of them if some were removed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from msgspec import UNSET, UnsetType

from bunqueue.model.errors_alike import kind_of_pattern, pattern_of
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Data
from bunqueue.protocol.commands.error_groups import (
    ErrorExample,
    ErrorGroups,
    ErrorGroupView,
    GetErrorGroup,
    ListErrors,
    SetErrorGroup,
)

from ..lifecycle import error_groups
from ..lookup import known_queue
from ..memory.error_groups import MINUTES, OTHER, ErrorGroup, QueueErrors
from ..registry import handles
from ..scoped import allows
from ..slices import Steps, sliced
from ..state import Client, QueueState, State

ROWS = 200  # dead letters read per step
RATE_MINUTES = 5
MINUTE_MS = 60_000


@handles(ListErrors)
@sliced
def list_errors(state: State, client: Client, command: ListErrors) -> Steps:
    error_groups.record(state)
    names = [command.queue] if command.queue is not None else _with_errors(state, client)
    found: list[ErrorGroupView] = []
    for name in names:
        yield from _count_kept(state, name)
        error_groups.forget_old(state, name)
        found += _views(state, name)
        yield
    found.sort(key=lambda view: (-view.kept, -view.failures, view.queue, view.id))
    return Data(data=ErrorGroups(found[: command.limit], len(found)))


def _with_errors(state: State, client: Client) -> list[str]:
    found = {*state.errors.queues, *(queue.name for queue in state.queues.values() if queue.failed)}
    return sorted(name for name in found if allows(client, name))


@handles(GetErrorGroup)
@sliced
def get_error_group(state: State, client: Client, command: GetErrorGroup) -> Steps:
    error_groups.record(state)
    yield from _count_kept(state, command.queue)
    known_group(state, command.queue, command.group)
    return Data(data=_view(state, command.queue, command.group))


@handles(SetErrorGroup)
@sliced
def set_error_group(state: State, client: Client, command: SetErrorGroup) -> Steps:
    error_groups.record(state)
    yield from _count_kept(state, command.queue)
    group = known_group(state, command.queue, command.group)
    group.muted = _since(state, command.muted, group.muted)
    group.watched = _since(state, command.watched, group.watched)
    group.resolved = _since(state, command.resolved, group.resolved)
    state.errors.touched.add((command.queue, command.group))
    return Data(data=_view(state, command.queue, command.group))


def _since(state: State, wanted: bool | UnsetType, before: int | None) -> int | None:
    if wanted is UNSET:
        return before
    return (before or state.now) if wanted else None


def known_group(state: State, queue: str, group_id: str) -> ErrorGroup:
    """A group, or the error that clients expect."""
    found = state.errors.queues.get(queue)
    group = found.groups.get(group_id) if found is not None else None
    if group is None:
        text = f"queue {queue} has no group of errors {group_id}: bunqueue errors list {queue}"
        raise CommandError(text, Code.ERROR_GROUP_NOT_FOUND, field="group", value=group_id)
    return group


def group_of(state: State, queue: str, error_type: str | None, error: str | None) -> str:
    """The id of the group of a dead letter's error."""
    group_id = kind_of_pattern(error_type, pattern_of(error))
    found = state.errors.queues.get(queue)
    return group_id if found is not None and group_id in found.groups else OTHER


def in_group(state: State, queue: QueueState, seqs: list[int], group_id: str) -> set[int]:
    """The dead letters among these that belong to a group."""
    errors = state.archive.errors_of(seqs)
    return {seq for seq, of in errors.items() if group_of(state, queue.name, *of) == group_id}


def _count_kept(state: State, name: str) -> Generator[None]:
    """Count the dead letters of a queue by group; groups that are not known yet, as their failures are from
    before groups were counted, are made from them."""
    queue = known_queue(state, name)
    if queue is None or not queue.failed:
        if (known := state.errors.queues.get(name)) is not None:
            known.recount()
        return
    found = error_groups.of_queue(state, name)
    if found.kept_at is None or queue.total_failed - queue.failed != found.kept_at[0] - found.kept_at[1]:
        found.recount()  # some have gone
    if found.kept_at == (queue.total_failed, queue.failed):
        return
    for _ in range(2):  # once more from the start if one was inserted before the last one counted
        now = (queue.total_failed, queue.failed)
        kept, after, new = found.kept.copy(), found.kept_after, set[str]()
        for counted, last in _walk(state, queue, after, new):
            kept.update(counted)
            after = last
            yield
        found.recount()
        if kept.total() == queue.failed and (queue.total_failed, queue.failed) == now:
            found.kept, found.kept_at, found.kept_after = kept, now, after
            return
    found.kept = kept  # they changed during both counts: slightly out of date


def _walk(
    state: State, queue: QueueState, after: tuple[int, int], new: set[str]
) -> Iterator[tuple[list[str], tuple[int, int]]]:
    """The groups of some dead letters, and the last one of them; step by step."""
    found = error_groups.of_queue(state, queue.name)
    while rows := state.archive.dead_letters(queue.id, ROWS, after):
        after = (rows[-1].entered_at, rows[-1].seq)
        errors = state.archive.errors_of([row.seq for row in rows])
        counted = []
        for row in rows:
            error_type, error = errors.get(row.seq, (None, None))
            pattern = pattern_of(error)
            group_id = kind_of_pattern(error_type, pattern)
            if group_id not in found.groups and OTHER in found.groups:
                group_id = OTHER  # which has counted it
            elif group_id not in found.groups:
                group_id = error_groups.admit(state, queue.name, error_type, pattern)
                if not found.groups[group_id].failures:
                    new.add(group_id)
                    _begin(state, queue, group_id, found.groups[group_id], row.seq, row.entered_at)
            if group_id in new:
                _add(state, queue, group_id, found.groups[group_id], row.entered_at)
            counted.append(group_id)
        yield counted, after
        if len(rows) < ROWS:
            return


def _begin(
    state: State, queue: QueueState, group_id: str, group: ErrorGroup, seq: int, entered_at: int
) -> None:
    """What a dead letter tells about a group."""
    group.first = group.last = entered_at
    job = state.archive.load([seq]).get(seq)
    past = state.archive.attempts([seq]).get(seq)
    if job is not None and past:
        group.example = error_groups.example_of(job.id, job.name, past[-1])


def _add(state: State, queue: QueueState, group_id: str, group: ErrorGroup, entered_at: int) -> None:
    group.failures += 1
    group.dead += 1
    group.first, group.last = min(group.first, entered_at), max(group.last, entered_at)
    state.errors.touched.add((queue.name, group_id))


def _views(state: State, queue: str) -> list[ErrorGroupView]:
    found = state.errors.queues.get(queue)
    return [_view(state, queue, group_id) for group_id in found.groups] if found is not None else []


def _view(state: State, queue: str, group_id: str) -> ErrorGroupView:
    found: QueueErrors = state.errors.queues[queue]
    group, now = found.groups[group_id], state.now
    return ErrorGroupView(
        queue,
        group_id,
        group.type,
        group.pattern,
        group.failures,
        group.dead,
        found.kept[group_id],
        float(group.first),
        float(group.last),
        group.rate(now, RATE_MINUTES),
        _minutes(group, now),
        group.outcomes,
        group.names,
        group.workers,
        group.versions,
        _example(group),
        *(_moment(at) for at in (group.muted, group.watched, group.resolved, group.returned)),
    )


def _minutes(group: ErrorGroup, now: int) -> list[int]:
    counts, newest = dict(group.minutes), now // MINUTE_MS
    return [counts.get(minute, 0) for minute in range(newest - MINUTES + 1, newest + 1)]


def _example(group: ErrorGroup) -> ErrorExample | None:
    one = group.example
    if one is None:
        return None
    at = float(one.at)
    return ErrorExample(one.job_id, one.name, at, one.attempt, one.error, one.worker, one.version, one.stack)


def _moment(at: int | None) -> float | None:
    return None if at is None else float(at)
