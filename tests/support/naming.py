"""Which shard a queue belongs to, from the written description and not from the server's code."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count


def shard_of(queue: str, shards: int = 2) -> int:
    """The shard of a queue: the low bits of FNV-1a."""
    value = 0x811C9DC5
    for byte in queue.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value & (shards - 1)


def slot_of(job_id: str) -> int:
    """The slot in a server-made id: the twelve bits after the UUID's version."""
    assert job_id[14] == "7", job_id
    return int(job_id[15:18], 16)


def queues_on(shard: int, prefix: str = "q", shards: int = 2) -> Iterator[str]:
    """Names of queues that live on one shard."""
    for number in count():
        name = f"{prefix}-{number}"
        if shard_of(name, shards) == shard:
            yield name


def queue_on(shard: int, prefix: str = "q", shards: int = 2) -> str:
    """One name of a queue that lives on one shard."""
    return next(queues_on(shard, prefix, shards))
