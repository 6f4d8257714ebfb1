"""Limits on what a shard keeps because a client set it: for each kind, and in total.

Settings stay when jobs go, so they must not take the memory that jobs need: pushes would be refused, and no
worker could help.  Each kind has a bound, and all together have a share of the memory; so do queues, and the
keys of ended jobs.  Only new settings are refused.  Commands that free memory never are, and everything in an
existing file is recovered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.base import CommandError

MIB = 1 << 20
UNLIMITED = 1 << 30  # bytes to share if there is no memory limit
SETTINGS, QUEUES, KEYS = 1 / 5, 1 / 8, 1 / 8  # of the memory; the rest is for jobs and file pages
EACH, A_CHARACTER = 1_200, 4  # bytes of a setting, and of each character of its key and value: measured
QUEUE = 2_500  # bytes of an empty queue with limits
KEY, A_KEY_CHARACTER = 300, 2  # bytes of an ended job's key, and of each of its characters
MAX_QUEUES = 100_000
LITTLE = 1_024  # bytes by which an existing setting may always grow


class Bound(NamedTuple):
    """The maximum number of records of one kind."""

    most: int
    what: str  # what is counted
    by_queue: bool = True  # at most one per queue: these may be set even when memory is full


class Kept:
    """The settings of one shard."""

    def __init__(self) -> None:
        self.bounds: Mapping[str, Bound] = {}  # by the kind of the record
        self.memory = UNLIMITED
        self.size = 0  # approximate bytes of all settings
        self.refusal = ""  # the error text while memory is full
        self._sizes: dict[str, dict[str, int]] = {}  # kind -> key -> bytes

    def count(self, kind: str) -> int:
        """How many of a kind there are."""
        return len(self._sizes.get(kind, ()))

    def note(self, kind: str, key: str, characters: int | None) -> None:
        """Note a record whose JSON has this many characters; None: the record has been removed."""
        if kind not in self.bounds:
            return
        sizes = self._sizes.setdefault(kind, {})
        self.size -= sizes.pop(key, 0)
        if characters is not None:
            sizes[key] = size = _size(key, characters)
            self.size += size

    def admit(self, kind: str, key: str, field: str, value: str, characters: int = 0) -> None:
        """CommandError unless this may be set.  ``field`` and ``value`` are those of the command;
        ``characters``: the characters beside the key, where there may be many."""
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
        """CommandError unless this many new queues may be added to the existing ones."""
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
