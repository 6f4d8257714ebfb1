"""The frames that the server pushes to a subscriber: what happened in its queue."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.msgpack import Encoder

from bunqueue.model.events import LOST
from bunqueue.model.marks import Mark
from bunqueue.protocol.framing import frame

_encode = Encoder().encode

_Data: TypeAlias = Annotated[Raw, Mark.CONTENT]
_Text: TypeAlias = Annotated[str, Mark.CONTENT]


class Event(Struct, kw_only=True, rename="camel", gc=False):
    """One event; its type decides which of the optional fields it has."""

    event_type: str
    queue: Annotated[str, Mark.QUEUE]
    job_id: Annotated[str, Mark.ID]  # "" if the event is about the queue
    timestamp: float  # epoch ms; a float, as all times on the wire
    data: _Data | UnsetType = UNSET  # completed: the result; failed: the job's data; progress: a map
    data_bytes: int | UnsetType = UNSET  # size of large data that were left out
    error: _Text | UnsetType = UNSET
    terminal: bool | UnsetType = UNSET
    prev: str | UnsetType = UNSET
    delay: float | UnsetType = UNSET
    reason: _Text | UnsetType = UNSET  # failed: "cancelled", "undone", "stuck"; undoing, breaker: why
    progress: float | UnsetType = UNSET
    step: str | UnsetType = UNSET  # step: its name; signalled: the name of the signal
    status: str | UnsetType = UNSET  # step: how it ended; signalled: taken or kept; breaker: open or closed
    name: str | UnsetType = UNSET  # breaker: the job name that it applies to, unless it applies to all jobs
    group: str | UnsetType = UNSET  # error-returned: the id of the group of errors
    count: int | UnsetType = UNSET  # lost: how many events are missing here
    message: _Text | UnsetType = UNSET  # progress, in the log: with it


class Pushed(Struct, gc=False):
    """A frame."""

    type: str
    event: Event


def event_frame(event: Event) -> bytes:
    """An event as a frame, ready to send."""
    return frame(_encode(Pushed("event", event)))


def lost_frame(queue: str, count: int, now: int) -> bytes:
    """A frame that reports missing events: there were too many, or they were not read in time."""
    return event_frame(Event(event_type=LOST, queue=queue, job_id="", timestamp=float(now), count=count))
