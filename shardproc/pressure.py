"""Decides whether a shard's memory has room for more jobs.

Memory that jobs leave behind when they go is not always returned to the system, as other jobs lie between
them; but new jobs fit in there. So memory that is still taken does not count once a good part of the jobs is
gone: else a shard that was full once would refuse pushes for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from bunqueue import process_stats as vitals
from bunqueue.logs import get_logger

CHECK_S = 0.1  # between two checks: some MB of pushes
WARN, CALM = 0.8, 0.7  # of the share: for a warning, and for allowing another one
ROOM = 0.9  # of the share, and of the jobs when it was reached: below both, there is room again
FOR_JOBS = 0.1  # of the share: the least that is left for jobs
CREEP = 1.05  # of the memory at which jobs were refused: above it, later jobs are larger
FREED = 0.95  # of the jobs at the last time: below it, returning memory is worth trying
QUIET_S = 10.0  # between two log lines that pushes are refused

MIB = 1024 * 1024
_log = get_logger("shard")


class Pressure:
    """Compares the process's memory with its share of the limit."""

    def __init__(
        self, share: int, free: Callable[[], None] = lambda: None, used: Callable[[], int] = vitals.memory
    ) -> None:
        """``share``: bytes; 0 for no limit. ``free`` drops what can be rebuilt, such as caches."""
        self.share = share
        self.full = False
        self._free, self._used = free, used
        self.next_check = 0.0 if share else float("inf")
        """When `check` has something to do, by the monotonic clock."""
        self._warned = False
        self._mark = 0  # bytes when jobs were refused, since memory was last below the share
        self._jobs = 0  # in memory at that time
        self._logged_full = False  # it was logged that memory is full
        self._quiet_until = 0.0
        self._trimmed = 0  # jobs when memory was last returned

    def started(self, without_jobs: int) -> None:
        """Note the memory taken before the jobs were read: by settings, queues and the process itself.
        Jobs always get a part of the memory, or pushes would be refused for ever, as no worker could
        change that."""
        least = int(without_jobs + FOR_JOBS * self.share)
        if self.share and ROOM * self.share < least:
            _log.error(
                "settings and queues leave too little memory for jobs, so the limit is exceeded for these: "
                "remove settings or obliterate queues, or raise --memory-limit",
                taken_mib=without_jobs // MIB,
                limit_mib=self.share // MIB,
            )
            self.share = int(least / ROOM)

    def check(self, jobs: int) -> bool:
        """Check, if it is time to; returns whether ``full`` has changed. ``jobs``: the number in memory."""
        now = time.monotonic()
        if now < self.next_check:
            return False
        self.next_check = now + CHECK_S
        before = self.full
        if self._mark:
            self._trim(jobs)
        used = self._used()
        self.full = self._stays_full(used, jobs) if before else self._becomes_full(used, jobs)
        if self.full is not before:
            self._log_change(used, jobs, now)
        self._warn(used)
        return self.full is not before

    def _trim(self, jobs: int) -> None:
        """Return memory to the system when a part of the jobs is gone: rarely, as it takes some ms."""
        if jobs < FREED * self._trimmed:
            self._trimmed = jobs
            self._free()
            give_back()
        else:
            self._trimmed = max(self._trimmed, jobs)

    def _becomes_full(self, used: int, jobs: int) -> bool:
        if used < self.share:
            if used < ROOM * self.share:
                self._mark = 0
            return False
        if used <= CREEP * self._mark and jobs < self._jobs:
            return False
        self._mark, self._jobs, self._trimmed = used, jobs, jobs
        self._free()
        return True

    def _stays_full(self, used: int, jobs: int) -> bool:
        return used >= ROOM * self.share and jobs > ROOM * self._jobs

    @property
    def refusal(self) -> str:
        """The error text for clients that want to add something."""
        return (
            f"Memory limit of the shard reached ({self._mark // MIB} of {self.share // MIB} MiB): "
            "let workers take jobs, remove some, or raise --memory-limit; then this is accepted again"
        )

    def _log_change(self, used: int, jobs: int, now: float) -> None:
        figures = {"used_mib": used // MIB, "limit_mib": self.share // MIB, "jobs": jobs}
        if self.full and now >= self._quiet_until:
            self._quiet_until, self._logged_full = now + QUIET_S, True
            _log.error("the memory limit is reached, pushes are refused", **figures)
        elif not self.full and self._logged_full:
            self._logged_full = False
            _log.info("there is memory again, pushes are accepted", **figures)

    def _warn(self, used: int) -> None:
        if not self._warned and used >= WARN * self.share:
            self._warned = True
            _log.warning(
                "memory is getting short, pushes will be refused at the limit",
                used_mib=used // MIB,
                limit_mib=self.share // MIB,
            )
        elif self._warned and used < CALM * self.share:
            self._warned = False


def give_back() -> None:
    """Return memory that is free within the process to the system, where the C library can."""
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    with suppress(Exception):  # not glibc, or a system that forbids loading code
        import ctypes

        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
        return trim
    return lambda size: None
