"""The event log of a shard, unpacked: each row has up to a thousand events.

Event numbers increase with the commits and are never reused, so a reader has to remember only "after number
N".
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, NamedTuple

from msgspec.msgpack import Decoder

from bunqueue.model.events import NAMES, OBLITERATED
from bunqueue.server.folder.shard_file import ShardFile
from bunqueue.server.folder.shard_values import to_json

_decode: Any = Decoder(list[list[Any] | None]).decode  # null: deleted on request
_NAMED = b"\xa5queue"  # the key of the field with the queue's name, as MessagePack
UNKNOWN = "unknown"  # a kind written by a newer version

_ROWS = """
select first_seq, at, payload from events
where first_seq >= (select coalesce(max(first_seq), 0) from events where first_seq <= ?) and first_seq <= ?
order by first_seq
"""


class EventRow(NamedTuple):
    """An event: the columns of the table ``events`` after host and shard; ``at`` is in epoch ms."""

    seq: int
    at: int
    kind: str
    queue: str | None
    job_id: str | None
    error: str | None
    terminal: bool | None
    fields: str | None


class Bounds(NamedTuple):
    """The numbers of the oldest event that is kept and of the newest one. For an empty log, 1 and 0."""

    first: int
    last: int


def bounds(file: ShardFile) -> Bounds:
    """The range of event numbers in the log."""
    if file.is_empty:
        return Bounds(1, 0)
    oldest = file.one("select min(first_seq) from events")
    newest = file.one("select first_seq + count - 1 from events order by first_seq desc limit 1")
    return Bounds(oldest[0], newest[0]) if oldest and newest else Bounds(1, 0)


def oldest(file: ShardFile) -> tuple[int, int] | None:
    """The number and time (epoch ms) of the oldest event that is kept, or None if there are no events."""
    if file.is_empty:
        return None
    found = file.one("select first_seq, at from events order by first_seq limit 1")
    return None if found is None else (found[0], found[1])


def first_since(file: ShardFile, at: int) -> int:
    """The number of the first event at ``at`` (epoch ms) or later. Without such an event, the number of the
    next one."""
    found = None if file.is_empty else file.one("select min(first_seq) from events where at >= ?", at)
    if found is None or found[0] is None:
        return bounds(file).last + 1
    return int(found[0])


def events(
    file: ShardFile, after: int, until: int, kinds: Container[int] | None = None
) -> Iterator[EventRow]:
    """The events with numbers above ``after``, up to ``until``, in order. With ``kinds``, only events of
    these kinds.

    The others cost almost nothing, because no row is built for them.
    """
    if file.is_empty:
        return
    names = _Names(file)
    for rows in file.chunks(_ROWS, (after + 1, until), 16):
        for first, at, payload in rows:
            for seq, entry in enumerate(_decode(payload), first):
                if entry is None or (kinds is not None and entry[0] not in kinds):
                    continue
                if after < seq <= until:
                    yield _event(seq, at, entry, names)


def _event(seq: int, at: int, entry: list[Any], names: _Names) -> EventRow:
    kind, queue_id, job_id, *more = entry
    name = NAMES[kind] if kind < len(NAMES) else UNKNOWN
    queue = names.of(queue_id, seq, at)
    if not more:
        return EventRow(seq, at, name, queue, job_id or None, None, None, None)
    fields = more[0]
    error = fields.get("error")
    return EventRow(seq, at, name, queue, job_id or None, error, fields.get("terminal"), to_json(fields))


class _Names:
    """Names of queues, including obliterated ones: the last event of such a queue has the name.

    The number of an obliterated queue may have passed to another queue, which is younger than the event.
    """

    def __init__(self, file: ShardFile) -> None:
        self._file = file
        self._known: dict[int, tuple[str, int]] = {}  # name and creation time, epoch ms
        for rows in file.chunks("select id, name, created_at from queues"):
            self._known.update((queue_id, (name, made)) for queue_id, name, made in rows)
        self._gone: dict[int, list[tuple[int, str]]] | None = None  # number of the event, name

    def of(self, queue_id: int, seq: int, at: int) -> str | None:
        """The queue of the event ``seq``, which happened at ``at``."""
        name, made = self._known.get(queue_id, (None, at + 1))
        if made <= at:
            return name
        if self._gone is None:
            self._gone = self._obliterated()
        ends = (name for end, name in self._gone.get(queue_id, ()) if end >= seq)
        return next(ends, name)

    def _obliterated(self) -> dict[int, list[tuple[int, str]]]:
        found: dict[int, list[tuple[int, str]]] = {}
        for rows in self._file.chunks("select first_seq, payload from events order by first_seq", size=16):
            for first, payload in rows:
                if _NAMED not in payload:
                    continue
                for seq, entry in enumerate(_decode(payload), first):
                    if entry is not None and entry[0] == OBLITERATED:
                        found.setdefault(entry[1], []).append((seq, entry[3]["queue"]))
        return found
