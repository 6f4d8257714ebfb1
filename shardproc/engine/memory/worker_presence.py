"""Whether workers can reach the shard at all, and which of them it waits for.  Silence caused by the shard
itself does not count against a worker."""

from __future__ import annotations

from bunqueue.model.job import DEFAULT_LOCK_TTL_MS, Extra, Job, Lock

from .lazy_heap import LazyHeap

NEVER = 1 << 62  # ms; later than any time
RESUME_MS = 2_000  # time for pending data to arrive: it is in socket buffers


class Reachability:
    """The shard's own downtime, and the workers that may be about to reconnect."""

    __slots__ = ("reconnects", "resumes_at")

    def __init__(self) -> None:
        # Until then (epoch ms) no silent worker loses a job; NEVER: the shard cannot receive from anyone.
        self.resumes_at = 0
        # Jobs whose connection broke, with their lock at that time, by the time to stop waiting for the
        # worker
        self.reconnects: LazyHeap[int, tuple[Job, Lock]] = LazyHeap(_is_awaited)


def _is_awaited(entry: tuple[int, int, tuple[Job, Lock]]) -> bool:
    """Whether the shard still waits for the worker of a job."""
    job, lock = entry[2]
    return job.lock is lock and lock.conn == 0 and not lock.renewed


def remember(job: Job, lock: Lock | None) -> None:
    """Remember the lock of the last holder: it may come back and show that it still works on the job, or has
    finished."""
    job.lost_token = lock.token if lock is not None else ""
    ttl = lock.ttl if lock is not None and lock.ttl != DEFAULT_LOCK_TTL_MS else 0
    if job.extra is not None or ttl:
        job.extra = job.extra or Extra()
        job.extra.lost_ttl = ttl
