"""Events on their way from the shards' logs to listeners."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import msgspec

from bunqueue.model.events import LOST
from bunqueue.model.rights import ANYBODY
from bunqueue.model.scope import Scope
from bunqueue.protocol.namespaces import shown_event

from ..http.transcode import read_json, write_json

UNKNOWN = "x"  # in an id, for a shard with an unknown position
MAX_SHARDS = 64

Positions = list[int]
"""The number of the last event seen of each shard; -1: unknown, so reading starts with new events."""


class EventBatch(NamedTuple):
    """Some events, possibly none, and the id of the position after them."""

    entries: list[Entry]
    place: str


class Filter(msgspec.Struct, frozen=True):
    """The events that a listener wants.  None means all."""

    queues: frozenset[str] | None = None
    types: frozenset[str] | None = None
    job_id: str | None = None
    scope: Scope | None = None
    """Of the listener: it gets events of its queues only, without what jobs hold if it may not read that."""

    def wants(self, entry: Entry) -> bool:
        if entry.kind == LOST:
            return True
        if self.scope is not None and not self.scope.allows(entry.queue):
            return False
        if self.job_id is not None and entry.job_id != self.job_id:
            return False
        if self.types is not None and entry.kind not in self.types:
            return False
        return self.queues is None or entry.queue in self.queues

    def as_fields(self) -> dict[str, Any]:
        """The filter as fields of GetEvents; `shown` does the rest."""
        found = {"queues": self.queues, "types": self.types, "jobId": self.job_id}
        return {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in found.items()
            if value is not None
        }

    def shown(self, batch: EventBatch) -> EventBatch:
        """Events as the listener may have them."""
        if self.scope is None or not batch.entries:
            return batch
        return EventBatch([self._shown(entry) for entry in batch.entries if self.wants(entry)], batch.place)

    def _shown(self, entry: Entry) -> Entry:
        assert self.scope is not None
        hides = not self.scope.shows(ANYBODY)
        event = shown_event(self.scope.prefix, read_json(entry.body), hides=hides)
        if entry.kind == LOST and not self.scope.is_everywhere:
            event["count"] = None  # they may be events of other queues
        return msgspec.structs.replace(entry, body=write_json(event))


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An event, ready to be sent."""

    shard: int
    seq: int
    kind: str
    queue: str
    job_id: str
    places: str  # where to continue after this event, for all shards
    body: bytes  # JSON
    back: tuple[int, ...] = ()  # for a loss: unavailable shards; a listener with their positions lost nothing


def as_entry(event: dict[str, Any], places: Positions) -> Entry:
    """An event of the log.  Advances ``places`` to it."""
    shard, seq = event["shard"], event["seq"]
    places[shard] = seq
    event["timestamp"] = int(event["timestamp"])
    return Entry(
        shard,
        seq,
        event["eventType"],
        event["queue"],
        event["jobId"],
        format_position(places),
        write_json(event),
    )


def lost(count: int | None, places: Positions, back: tuple[int, ...] = ()) -> Entry:
    """An entry for up to ``count`` missing events; None means an unknown number.  ``back``: see `Entry`."""
    event = {
        "eventType": LOST,
        "queue": "",
        "jobId": "",
        "timestamp": time.time_ns() // 1_000_000,
        "count": count,
    }
    return Entry(0, -1, LOST, "", "", format_position(places), write_json(event), back)


def format_position(places: Positions) -> str:
    """Positions as text: the id of an event."""
    return "-".join([str(place) if place >= 0 else UNKNOWN for place in places])


def parse_position(text: str, shards: int) -> Positions | None:
    """The positions in the id of an event, or None if it is malformed.

    An id from a time with another number of shards gives no positions: all of them are unknown.
    """
    parts = text.split("-")
    if len(parts) > MAX_SHARDS:
        return None
    if not all(part == UNKNOWN or (part.isascii() and part.isdigit() and len(part) < 16) for part in parts):
        return None
    if len(parts) != shards:
        return [-1] * shards
    return [-1 if part == UNKNOWN else int(part) for part in parts]


def unknown_to(known: Positions, batch: EventBatch) -> EventBatch:
    """The events after ``known``.  Their ids include the positions in ``known``."""
    fresh = [entry for entry in batch.entries if _is_news(entry, known)]
    entries = [msgspec.structs.replace(entry, places=_later(entry.places, known)) for entry in fresh]
    return EventBatch(entries, _later(batch.place, known))


def _is_news(entry: Entry, known: Positions) -> bool:
    if entry.kind != LOST:
        return entry.seq > known[entry.shard]
    places = parse_position(entry.places, len(known)) or known
    return not entry.back or any(known[shard] < places[shard] for shard in entry.back)


def _later(place: str, known: Positions) -> str:
    """The later one of two positions, for each shard."""
    places = parse_position(place, len(known)) or known
    return format_position([max(pair) for pair in zip(places, known, strict=True)])
