"""Whether the shard can hear workers at all, and which of them it waits for.  Silence that the shard itself
caused does not count against a worker."""

from __future__ import annotations

from bunqueue.model.job import DEFAULT_LOCK_TTL_MS, Extra, Job, Lock

from .lazy_heap import LazyHeap

NEVER = 1 << 62  # ms; later than any time
SETTLE_MS = 2_000  # for what was said meanwhile to arrive: it lies in sockets


class Hearing:
    """What a shard knows of its own absence, and of workers that may be on their way back to it."""

    __slots__ = ("reconnects", "settled_at")

    def __init__(self) -> None:
        # Until then (epoch ms) no silent worker loses a job; NEVER: the shard hears nobody.
        self.settled_at = 0
        # Jobs whose connection broke, with their lock at that time, by when to give up waiting for the worker
        self.reconnects: LazyHeap[int, tuple[Job, Lock]] = LazyHeap(_is_awaited)


def _is_awaited(entry: tuple[int, int, tuple[Job, Lock]]) -> bool:
    """Whether the worker of a job is still being waited for."""
    job, lock = entry[2]
    return job.lock is lock and lock.conn == 0 and not lock.renewed


def remember(job: Job, lock: Lock | None) -> None:
    """The last holder of the job may come back and show that the work on it goes on, or is done."""
    job.lost_token = lock.token if lock is not None else ""
    ttl = lock.ttl if lock is not None and lock.ttl != DEFAULT_LOCK_TTL_MS else 0
    if job.extra is not None or ttl:
        job.extra = job.extra or Extra()
        job.extra.lost_ttl = ttl
