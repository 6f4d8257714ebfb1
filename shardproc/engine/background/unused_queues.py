"""Removes queues that are no longer used: they have no jobs and no settings, and no client waits for their
jobs.  The next push creates the queue again.
"""

from __future__ import annotations

from bunqueue.model.groups import NO_DEFAULTS

from ..lifecycle import dropped_letters, events
from ..lifecycle.events import emit_queue
from ..memory import queue_configs
from ..state import QueueState, State

UNUSED_MS = 60_000  # before an unused queue is removed: a drained queue may get jobs at any time


def check(state: State, queue: QueueState, scheduled: set[str]) -> None:
    """Drop the queue if it has been unused for long; ``scheduled`` are the queues that schedules push to."""
    unused = state.maintenance.unused
    if not _is_unused(state, queue) or queue.name in scheduled:
        unused.pop(queue, None)
        return
    ended = queue.total_completed + queue.total_failed  # shows use since the last check
    since, then = unused.setdefault(queue, (state.now, ended))
    if ended != then:
        unused[queue] = (state.now, ended)
    elif state.now - since >= UNUSED_MS and state.archive.problem() is None:
        dropped_letters.purged(state, queue)
        emit_queue(state, events.OBLITERATED, queue, reason="unused")
        queue_configs.forget(state, queue.name)
        state.drop(queue)


def scheduled(state: State) -> set[str]:
    """The queues that schedules of this shard push to."""
    return {schedule.queue for schedule in state.timetable.by_name.values()}


def _is_unused(state: State, queue: QueueState) -> bool:
    if queue.jobs or queue.late or queue.completed or queue.failed or queue.ended_keys:
        return False
    if queue.waiters or queue.listeners or queue.name in state.queues_with_workers:
        return False
    if dropped_letters.is_recent(state, queue):
        return False
    return not queue.paused and not _has_limits(queue) and not queue_configs.has_any(state, queue.name)


def _has_limits(queue: QueueState) -> bool:
    limits = queue.limits
    if limits is None:
        return False
    own, groups = limits.own, limits.groups
    if own.bucket is not None or own.concurrency is not None or limits.group_defaults != NO_DEFAULTS:
        return True
    return bool(limits.breakers) or (groups is not None and bool(groups.by_id))
