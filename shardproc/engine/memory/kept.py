"""What a shard keeps because somebody set it: how much of each kind, and of all.

It stays when jobs go, so it must not take the memory that they need: pushes would be refused, and no worker
could help.  Each kind has a bound, and all together have a part of the memory; so have queues, and the keys
of ended jobs.  Only what is new is refused.  What frees memory never is, nor what a file has already: all of
that is recovered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.base import CommandError

MIB = 1 << 20
UNLIMITED = 1 << 30  # bytes that are shared out where there is no limit of memory
SETTINGS, QUEUES, KEYS = 1 / 5, 1 / 8, 1 / 8  # of the memory; the rest is for jobs, and the pages of the file
EACH, A_CHARACTER = 1_200, 4  # bytes that a setting takes, and each character of its key and value: measured
QUEUE = 2_500  # bytes of an empty queue with limits
KEY, A_KEY_CHARACTER = 300, 2  # of the key of an ended job
MAX_QUEUES = 100_000
LITTLE = 1_024  # bytes by which a setting that is there may grow at any time


class Bound(NamedTuple):
    """How many of a kind a shard keeps."""

    most: int
    what: str  # of what
    by_queue: bool = True  # one a queue at most: who runs the server may set these also when memory is full


class Kept:
    """Of one shard."""

    def __init__(self) -> None:
        self.bounds: Mapping[str, Bound] = {}  # by the kind of the record
        self.memory = UNLIMITED
        self.size = 0  # bytes of all settings, about
        self.refusal = ""  # why nothing more is kept, as memory is full
        self._sizes: dict[str, dict[str, int]] = {}  # kind -> key -> bytes

    def count(self, kind: str) -> int:
        """How many of a kind there are."""
        return len(self._sizes.get(kind, ()))

    def note(self, kind: str, key: str, characters: int | None) -> None:
        """A record is kept from now on whose JSON has so many characters; None: it is no more."""
        if kind not in self.bounds:
            return
        sizes = self._sizes.setdefault(kind, {})
        self.size -= sizes.pop(key, 0)
        if characters is not None:
            sizes[key] = size = _size(key, characters)
            self.size += size

    def admit(self, kind: str, key: str, field: str, value: str, characters: int = 0) -> None:
        """CommandError unless this may be set. ``field`` and its ``value`` are those of the command that it
        comes from; ``characters``: how many it has beside its key, where that may be many."""
        bound, sizes = self.bounds[kind], self._sizes.get(kind, {})
        known, room = sizes.get(key), int(SETTINGS * self.memory)
        grows = _size(key, characters) - (known or 0)
        if known is not None and grows <= LITTLE:
            return
        if self.refusal and not bound.by_queue:
            raise CommandError(self.refusal, Code.MEMORY_LIMIT, field=field, value=value)
        if known is None and len(sizes) >= bound.most:
            _refuse(f"{bound.most:,} {bound.what}", Code.TOO_MANY_SETTINGS, field, value, bound.most)
        if self.size + grows > room:
            text = f"{room // MIB:,} MiB of settings, {len(sizes):,} {bound.what} among them"
            _refuse(text, Code.TOO_MANY_SETTINGS, field, value, room)

    def admit_queues(self, new: int, queues: int, field: str, value: str) -> None:
        """CommandError unless so many new queues may be beside so many that are there."""
        if self.refusal:
            raise CommandError(self.refusal, Code.MEMORY_LIMIT, field=field, value=value)
        most = min(MAX_QUEUES, int(QUEUES * self.memory) // QUEUE)
        if queues + new > most:
            _refuse(f"{most:,} queues", Code.TOO_MANY_QUEUES, field, value, most)

    @property
    def key_room(self) -> int:
        """Bytes that the keys of ended jobs may take."""
        return int(KEYS * self.memory)


def _size(key: str, characters: int) -> int:
    return EACH + A_CHARACTER * (len(key) + characters)


def _refuse(most: str, code: Code, field: str, value: str, bound: int) -> None:
    text = f"The shard keeps no more than {most}: remove what is no longer needed, or raise --memory-limit"
    raise CommandError(text, code, field=field, value=value, bound=bound)
