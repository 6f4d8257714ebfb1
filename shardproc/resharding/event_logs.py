"""The event logs of a family of shards: split by queue, or merged by time.

Where one log becomes several, all keep its numbers: an event that is elsewhere leaves a gap, and a client
that has read up to a number continues from it in each of them. Where several become one, it gets new numbers
above all old ones: a client that has read up to an old number reads the whole log once more, but misses
nothing.

The log also stores pushes with idempotency keys, and must show since when it knows all of them: its oldest
row does, or a row with an empty list (see `shardproc.engine.handlers.idempotency.recover`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from shardproc.storage.transfer import EventRow

from .plan import Family, QueueNumbers, shard_of

_decode: Any = Decoder(list[list[Any] | None]).decode
_decode_pushed: Any = Decoder(list[tuple[str, Any]]).decode
_encode = Encoder().encode


class Batch(Struct):
    """A row of a log, decoded."""

    source: int
    first_seq: int
    at: int
    entries: list[Any]  # None: was forgotten on request
    pushed: (
        list[tuple[str, Any]] | None
    )  # queue and key, separated by a blank, and answer; []: older ones are lost
    is_oldest: bool


def read(source: int, log: Iterable[EventRow]) -> Iterator[Batch]:
    """A log in order; msgspec.DecodeError when it is damaged."""
    is_oldest = True
    for first_seq, at, _, payload, pushed in log:
        known = None if pushed is None else _decode_pushed(pushed)
        yield Batch(source, first_seq, at, _decode(payload), known, is_oldest)
        is_oldest = False


def shared_out(
    logs: Sequence[Iterator[Batch]], numbers: QueueNumbers, family: Family, new: int, first: int | None
) -> Iterator[tuple[int, EventRow]]:
    """The rows of the targets' logs, in order, from the sources' logs; numbered from ``first``, if given.

    ``new`` is the number of all shards.
    """
    batch, number = None, 0
    parts: dict[int, Part] = {}
    for batch in _showing_gaps(merge(*logs, key=attrgetter("at")), several=len(logs) > 1):
        parts = _split(batch, numbers, new)
        if batch.is_oldest or batch.pushed == []:
            _complete(parts, batch, family)
        number = batch.first_seq if first is None else first
        for target, part in parts.items():
            yield target, part.row(number)
        if first is not None:
            first += len(batch.entries)
    if batch is not None:  # a log resumes after its newest row, so each gets that one
        had = set(parts)
        _complete(parts, batch, family)
        for target in parts.keys() - had:
            yield target, parts[target].row(number)


def _showing_gaps(batches: Iterable[Batch], *, several: bool) -> Iterator[Batch]:
    """Add a row that marks a gap. Where ``several`` logs become one, others may have older rows than a log
    whose own old rows are forgotten, and which does not know the pushes before them. The added row shows
    that, with one forgotten event."""
    for batch in batches:
        if several and batch.is_oldest and batch.first_seq > 1:
            yield Batch(batch.source, batch.first_seq, batch.at, [None], [], is_oldest=True)
            batch.is_oldest = False
        yield batch


class Part:
    """What one target gets of a batch."""

    def __init__(self, batch: Batch) -> None:
        self._at = batch.at
        self.entries: list[Any] = [None] * len(batch.entries)  # each stays in its position
        self.pushed: list[tuple[str, Any]] | None = [] if batch.pushed == [] else None

    def row(self, first_seq: int) -> EventRow:
        """A row of the target's log."""
        pushed = None if self.pushed is None else _encode(self.pushed)
        return first_seq, self._at, len(self.entries), _encode(self.entries), pushed


def _split(batch: Batch, numbers: QueueNumbers, new: int) -> dict[int, Part]:
    """The events and pushes of a batch by their targets."""
    parts: dict[int, Part] = {}
    for position, entry in enumerate(batch.entries):
        if entry is not None:
            target, entry[1] = numbers.of(batch.source, entry[1])
            part = parts.get(target)
            if part is None:
                part = parts[target] = Part(batch)
            part.entries[position] = entry
    for key, answer in batch.pushed or ():
        target = shard_of(key.partition(" ")[0], new)
        part = parts.setdefault(target, Part(batch))
        part.pushed = [*(part.pushed or ()), (key, answer)]
    return parts


def _complete(parts: dict[int, Part], batch: Batch, family: Family) -> None:
    """Give all targets a row, even if it has no events."""
    for target in family.targets:
        parts.setdefault(target, Part(batch))
