"""Events: each one goes into the log, and to the subscribers of its queue.

A log entry is a plain tuple ``(kind, queue id, job id)``, with a map of fields as an optional fourth part;
the kinds are those of `bunqueue.model.events`.  Every transition of the lifecycle logs its events through
`emit`, except the hottest ones, which do it inline.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw
from msgspec.msgpack import Encoder

from bunqueue.model.events import (
    BREAKER,
    COMPLETED,
    CONTINUED,
    DELAYED,
    DISCARDED,
    DROPPED,
    DUPLICATED,
    ERROR_RETURNED,
    FAILED,
    NAMES,
    OBLITERATED,
    PAUSED,
    PROGRESS,
    PULLED,
    PURGED,
    PUSHED,
    READY,
    RELEASED,
    REMOVED,
    RESUMED,
    RETRIED,
    REVIVED,
    SIGNALLED,
    STALLED,
    STEP,
    SUSPENDED,
    UNDOING,
    UNPUBLISHED,
    WAITING,
    WAITING_CHILDREN,
)
from bunqueue.model.job import Job
from bunqueue.protocol.event_frames import Event, event_frame

from ..outbox import OldLetter
from ..state import QueueState, State

__all__ = [
    "BREAKER",
    "COMPLETED",
    "CONTINUED",
    "DELAYED",
    "DISCARDED",
    "DROPPED",
    "DUPLICATED",
    "ERROR_RETURNED",
    "FAILED",
    "OBLITERATED",
    "PAUSED",
    "PROGRESS",
    "PULLED",
    "PURGED",
    "PUSHED",
    "READY",
    "RELEASED",
    "REMOVED",
    "RESUMED",
    "RETRIED",
    "REVIVED",
    "SIGNALLED",
    "STALLED",
    "STEP",
    "SUSPENDED",
    "UNDOING",
    "WAITING",
    "WAITING_CHILDREN",
    "emit",
    "emit_dropped",
    "emit_purged",
    "emit_queue",
    "publish",
]

MAX_DATA = 256 * 1024  # bytes of a payload repeated in an event; larger ones are left out
MAX_LOGGED = 1024  # characters of an error repeated in the log

_encode = Encoder().encode


def emit(state: State, kind: int, job: Job, **fields: Any) -> None:
    """Log that ``kind`` happened to ``job``, and publish it.  ``fields`` are those of
    `bunqueue.protocol.event_frames.Event`:

    FAILED: error, terminal; RETRIED: prev; DELAYED: delay; PROGRESS: progress, message; STEP and SIGNALLED:
    step, status; UNDOING: reason.
    """
    queue = state.queues[job.queue]
    _log(state, kind, queue, job.id, fields)
    if queue.listeners:
        publish(state, queue, kind, job, **fields)


def emit_queue(state: State, kind: int, queue: QueueState, **fields: Any) -> None:
    """Log that ``kind`` happened to a queue: PAUSED, RESUMED, PURGED, OBLITERATED; BREAKER: status, name,
    reason; ERROR_RETURNED: group, error, reason."""
    if kind == OBLITERATED:  # its row is deleted, so the name is kept here
        fields["queue"] = queue.name
    _log(state, kind, queue, "", fields)
    if queue.listeners and kind not in UNPUBLISHED:
        publish(state, queue, kind, None, **fields)


def emit_dropped(state: State, queue: QueueState, letter: OldLetter, why: str) -> None:
    """Log a dead letter that was dropped without a command.  Unlike other DROPPED jobs, this is published."""
    fields: dict[str, Any] = {"reason": why, "error": letter.error or letter.reason}
    _log(state, DROPPED, queue, letter.id, fields)
    if queue.listeners:
        _send(state, queue, DROPPED, letter.id, fields)


def emit_purged(state: State, queue: QueueState, finished: str, seqs: list[int], own: dict[int, str]) -> None:
    """Log that ``finished`` jobs were removed; ``own`` holds the ids that do not contain the job's number."""
    if own:
        numbers = [seq for seq in seqs if seq not in own]
        emit_queue(state, PURGED, queue, finished=finished, seqs=numbers, ids=list(own.values()))
    else:
        emit_queue(state, PURGED, queue, finished=finished, seqs=seqs)


def publish(
    state: State, queue: QueueState, kind: int, job: Job | None, *, message: str | None = None, **fields: Any
) -> None:
    """Send an event to the subscribers of its queue once it is committed."""
    if kind in UNPUBLISHED or kind == DROPPED:
        return
    if kind == FAILED and job is not None:
        fields["data"] = Raw(job.data)
    elif kind == PROGRESS:
        fields["data"] = Raw(_encode({"progress": fields["progress"], "message": message}))
    if fields.get("data") and len(fields["data"]) > MAX_DATA:
        fields["data"], fields["data_bytes"] = UNSET, len(fields["data"])
    _send(state, queue, kind, job.id if job is not None else "", fields)


def _send(state: State, queue: QueueState, kind: int, job_id: str, fields: dict[str, Any]) -> None:
    event = Event(
        event_type=NAMES[kind], queue=queue.name, job_id=job_id, timestamp=float(state.now), **fields
    )
    state.out.publish(queue.name, event_frame(event))


def _log(state: State, kind: int, queue: QueueState, job_id: str, fields: dict[str, Any]) -> None:
    if not fields:
        state.out.events.append((kind, queue.id, job_id))
        return
    error = fields.get("error")
    if error is not None and len(error) > MAX_LOGGED:
        fields = {**fields, "error": error[:MAX_LOGGED]}
    state.out.events.append((kind, queue.id, job_id, fields))
