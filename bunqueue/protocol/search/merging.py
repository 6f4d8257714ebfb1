"""Merges the jobs that several shards have found into one page, with the cursor after it."""

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, convert
from msgspec.msgpack import Decoder

from bunqueue.protocol.commands.find import Position

from . import cursor as cursors
from .cursor import DONE, Cursor

Answer = dict[str, Any]

_decode: Any = Decoder().decode
_decode_fields = Decoder(dict[str, Raw]).decode
_decode_jobs = Decoder(list[Raw]).decode


def read(payload: memoryview) -> Answer:
    """An answer whose jobs stay encoded: they are only put into another list."""
    fields = _decode_fields(payload)
    return {name: _decode_jobs(value) if name == "jobs" else _decode(value) for name, value in fields.items()}


def page(answers: Sequence[Answer]) -> Answer:
    """The merged answer of the shards, without the fields that only the merge needs."""
    parts = [_Part(answer) for answer in answers if "position" in answer]
    if not parts:
        return answers[0]
    merged, limit = answers[0], parts[0].position.limit
    jobs: list[Raw] = []
    while len(jobs) < limit and (part := _next(parts)) is not None:
        jobs.append(part.take())
    merged["jobs"] = jobs
    merged["cursor"] = cursors.written(_after(parts))
    merged["plan"] = {
        "by": max((answer["plan"]["by"] for answer in answers), key=len),
        "jobs": sum(answer["plan"]["jobs"] for answer in answers),
    }
    merged["progress"] = {
        name: sum(answer["progress"][name] for answer in answers) for name in merged["progress"]
    }
    if limit:
        merged["progress"]["found"] = len(jobs)
    del merged["position"]
    return merged


class _Part:
    """The jobs of one shard, beginning with the first that was not taken."""

    def __init__(self, answer: Answer) -> None:
        self.position: Position = convert(answer["position"], Position)
        self.cursor: Cursor = cursors.read(answer["cursor"])
        self._jobs: list[Raw] = answer["jobs"]
        self._taken = 0
        self._sign = 1 if self.position.asc else -1

    @property
    def is_empty(self) -> bool:
        return self._taken == len(self._jobs)

    @property
    def ends(self) -> bool:
        """Whether the shard has no further jobs."""
        return self.cursor.places[self.position.shard] == DONE

    @property
    def head(self) -> float:
        """The sort key of the next job: the smaller, the earlier.  Without a next job here, a lower bound for
        the shard's further jobs."""
        at = self.position.created if self.is_empty else self.position.times[self._taken]
        return at * self._sign

    def take(self) -> Raw:
        self._taken += 1
        return self._jobs[self._taken - 1]

    @property
    def place(self) -> int:
        """Where the shard should continue."""
        if self.is_empty:
            return self.cursor.places[self.position.shard]
        return self.position.seqs[self._taken - 1] if self._taken else self.position.start


def _next(parts: Sequence[_Part]) -> _Part | None:
    """The part with the next job; None if the next job may be one that its shard has not found yet."""
    waiting = [part for part in parts if not (part.is_empty and part.ends)]
    first = min(waiting, key=lambda part: (part.head, part.is_empty), default=None)
    if first is None or first.is_empty:
        return None
    return first


def _after(parts: Sequence[_Part]) -> Cursor:
    """The cursor after the jobs that were taken."""
    found = parts[0].cursor
    for part in parts:
        found.places[part.position.shard] = part.place
    return found
