"""Job ids and lock tokens, and the shard that a queue or an id belongs to.

An id is a UUIDv7 whose 12-bit ``rand_a`` field is the *slot* of its queue.  So a command that has only an id
finds its shard without a table, for every number of shards.  The slot is a hint: a client-chosen id does not
have a slot, and is searched for on the shard of its hash.
"""

from __future__ import annotations

import re
from collections.abc import Callable

SLOTS = 4096  # as many as fit into rand_a; 64 times the largest number of shards
MAX_SHARDS = 64
UUID_LENGTH = 36
MAX_HASHED = 256  # characters of an id: hashing is in Python, and a command may have ten thousand ids

# int(text, 16) alone would also accept signs, blanks and underscores.
_TAG = re.compile("-7[0-9a-f]{3}")
_OURS = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)

_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193
_INCARNATION_BITS = 48
_DIGITS = 12  # random digits at the end of a token
_VARIANT = 4  # digits, with 14 usable bits
_VARIANTS = {f"{digit:x}": f"{8 | digit & 3:x}" for digit in range(16)}  # the first of them
_BATCH = 256  # tokens per batch of random bits


def fnv1a32(text: str) -> int:
    """The 32-bit FNV-1a hash of the UTF-8 bytes of ``text``."""
    value = _FNV_OFFSET
    for byte in text.encode("utf-8", "surrogatepass"):
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def slot_of_queue(queue: str) -> int:
    """The slot (0..4095) of a queue name; its shard is ``slot & (shards - 1)``."""
    return fnv1a32(queue) & (SLOTS - 1)


def slot_of_id(job_id: str) -> int:
    """The slot in an id or a lock token; for foreign ids, the slot of their hash.  Of long ids only the
    beginning is hashed."""
    if len(job_id) == UUID_LENGTH and _TAG.fullmatch(job_id, 13, 18):
        return int(job_id[15:18], 16)
    return slot_of_queue(job_id[:MAX_HASHED])


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def seq_of_id(job_id: str) -> int | None:
    """The sequence number in an id made by a shard; None for a client-chosen id.

    It is the key of the job's rows, so storing a job needs no second index.  Like the slot it is a hint: code
    that uses it must compare the whole id.
    """
    return int(job_id[24:], 16) if _OURS.fullmatch(job_id) else None


class IdFactory:
    """Makes lock tokens, and job ids that ascend even if the clock stalls or jumps back.

    ``random_bits(n)`` supplies the randomness, so that a test can reproduce a run exactly.
    """

    __slots__ = ("_digits", "_ms", "_next", "_prefixes", "_random_bits")

    def __init__(self, random_bits: Callable[[int], int]) -> None:
        self._random_bits = random_bits
        self._ms = -1
        self._digits = ""  # random digits, fetched in batches: a system call for each token costs more
        self._next = 0  # index of the next unused digit
        self._prefixes: dict[int, str] = {}

    def job_id(self, slot: int, now_ms: int, seq: int) -> str:
        """The id of the job with number ``seq`` (below 2**48); ids ascend with the number."""
        return self.prefix(slot, now_ms) + seq.to_bytes(6).hex()  # twice as fast as a format

    def prefix(self, slot: int, now_ms: int) -> str:
        """The common prefix of all ids of a slot at that time; the number follows as 12 hex digits."""
        prefix = self._prefixes.get(slot) if now_ms <= self._ms else None
        return prefix or self._new_prefix(slot, now_ms)

    def incarnation(self) -> int:
        """A number that distinguishes this run of a process from its other runs."""
        return self._random_bits(_INCARNATION_BITS)

    def token(self, slot: int, now_ms: int) -> str:
        """A lock token; it is as unpredictable as ``random_bits``."""
        prefix = self._prefixes.get(slot) if now_ms <= self._ms else None
        if prefix is None:
            prefix = self._new_prefix(slot, now_ms)
        begin = self._next
        end = begin + _DIGITS
        if end > len(self._digits):
            self._fetch()
            begin, end = 0, _DIGITS
        self._next = end
        return prefix + self._digits[begin:end]

    def _fetch(self) -> None:
        self._digits = f"{self._random_bits(_BATCH * _DIGITS * 4):0{_BATCH * _DIGITS}x}"
        self._next = 0

    def _new_prefix(self, slot: int, now_ms: int) -> str:
        if now_ms > self._ms:
            self._ms = now_ms
            self._prefixes.clear()
        stamp = self._ms.to_bytes(6).hex()
        if self._next + _VARIANT > len(self._digits):
            self._fetch()
        begin = self._next
        self._next = end = begin + _VARIANT
        variant = _VARIANTS[self._digits[begin]] + self._digits[begin + 1 : end]
        prefix = f"{stamp[:8]}-{stamp[8:]}-7{slot:03x}-{variant}-"
        self._prefixes[slot] = prefix
        return prefix
