"""Whether a job meets conditions: a live job from memory, a finished one as loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bunqueue.model.job import ACTIVE, COMPLETED, FAILED, STATE_NAMES, WAITING, Job
from bunqueue.protocol.job_view import state_name
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.protocol.search.conditions import MISSING, Condition, matches, name_of, value_at

from ...state import QueueState

ONLY_STORED = frozenset({"error_type"})  # what memory does not have, even of live jobs


def meets(conditions: Iterable[Condition], queue: QueueState, job: Job) -> bool:
    """Whether a job of ``queue`` meets all of them, except those that only the file can test."""
    return all(
        condition.field in ONLY_STORED or matches(condition, _value(condition, queue, job))
        for condition in conditions
    )


def _value(condition: Condition, queue: QueueState, job: Job) -> Any:
    if condition.field == "data":
        return _data(condition, job)
    if condition.field == "worker":
        worker = _worker(queue, job)
        return None if worker is None else name_of(condition, worker)
    return _VALUES[condition.field](queue, job)


def _data(condition: Condition, job: Job) -> Any:
    try:
        return value_at(job.data, condition.path)
    except DECODE_ERRORS:
        return MISSING


def _states(queue: QueueState, job: Job) -> tuple[str, ...]:
    if job.state != WAITING:
        return (state_name(job, 3),)
    found = [STATE_NAMES[WAITING]]
    found += ["prioritized"] if job.priority > 0 else []
    found += ["paused"] if queue.paused else []
    return tuple(found)


def _worker(queue: QueueState, job: Job) -> str | None:
    if job.state == ACTIVE:
        return job.lock.owner or None if job.lock is not None else None
    return job.worker or None if job.state in (COMPLETED, FAILED) else None


def _group(queue: QueueState, job: Job) -> str | None:
    return None if job.extra is None else job.extra.group_id


_VALUES: Mapping[str, Callable[[QueueState, Job], Any]] = {
    "state": _states,
    "name": lambda queue, job: job.name,
    "tag": lambda queue, job: job.options.tags,
    "group": _group,
    "error": lambda queue, job: None if job.state == COMPLETED else job.error,
    "created": lambda queue, job: job.created_at,
    "finished": lambda queue, job: job.finished_at if job.state in (COMPLETED, FAILED) else None,
    "priority": lambda queue, job: job.priority,
    "attempts": lambda queue, job: job.attempts,
    "workflow": lambda queue, job: job.run is not None,
}
