"""The frames that a subscriber gets without having asked: what happened in its queue."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.msgpack import Encoder

from bunqueue.model.events import LOST
from bunqueue.protocol.framing import frame

_encode = Encoder().encode


class Event(Struct, kw_only=True, rename="camel", gc=False):
    """One event; which of the optional fields it has depends on its type."""

    event_type: str
    queue: str
    job_id: str  # "" when it is about the queue
    timestamp: float  # epoch ms; a float, as all times on the wire
    data: Raw | UnsetType = UNSET  # completed: the result; failed: the job's data; progress: a map
    data_bytes: int | UnsetType = UNSET  # of data that were left out, as they are large
    error: str | UnsetType = UNSET
    terminal: bool | UnsetType = UNSET
    prev: str | UnsetType = UNSET
    delay: float | UnsetType = UNSET
    reason: str | UnsetType = UNSET  # failed: "cancelled", "undone", "stuck"; undoing, breaker: why
    progress: float | UnsetType = UNSET
    step: str | UnsetType = UNSET  # step: its name; signalled: that of the signal
    status: str | UnsetType = UNSET  # step: how it ended; signalled: taken or kept; breaker: open or closed
    name: str | UnsetType = UNSET  # breaker: of the jobs that it is for, unless it is for all
    count: int | UnsetType = UNSET  # of "lost": how many events were left out here


class _Pushed(Struct, gc=False):
    type: str
    event: Event


def event_frame(event: Event) -> bytes:
    """An event as a frame, ready to send."""
    return frame(_encode(_Pushed("event", event)))


def lost_frame(queue: str, count: int, now: int) -> bytes:
    """Says that events are missing at this place, because they were too many or not read in time."""
    return event_frame(Event(event_type=LOST, queue=queue, job_id="", timestamp=float(now), count=count))
