"""Why the processes of shards have ended, and how often for the same reason.

A shard that dies again and again is the main problem of its server, whatever else is wrong. So `bunqueue
doctor` reports it first, and commands for that shard are refused with the reason.
"""

from __future__ import annotations

import signal
import time
from collections import Counter, deque

from bunqueue.server.host.machine_memory import oom_kills

OFTEN = 3  # deaths for one reason
SPAN_S = 3600.0  # period within which they count
MOST = 100  # deaths kept per shard
LONGEST = 300  # characters of a reason


class Deaths:
    """The deaths of all shards of this server."""

    def __init__(self) -> None:
        self._oom_kills = oom_kills()
        self._by_shard: dict[int, deque[tuple[float, str]]] = {}  # time, monotonic, and reason

    def note(self, shard: int, status: int | str, words: str) -> str:
        """Record that a process has ended with this status (negative for a signal) and these last words;
        returns the reason."""
        reason = (words or self._reason(status))[:LONGEST]
        self._by_shard.setdefault(shard, deque(maxlen=MOST)).append((time.monotonic(), reason))
        return reason

    def _reason(self, status: int | str) -> str:
        if not isinstance(status, int):
            return status
        if status >= 0:
            return f"it ended with status {status}: see the server's log"
        killed, self._oom_kills = self._oom_kills, oom_kills()
        if status == -signal.SIGKILL and self._oom_kills > killed:
            return (
                "the kernel killed it (signal 9), as its control group had used up its memory (oom_kill): "
                "give the server more memory, or set --memory-limit below what the group allows"
            )
        return f"it was killed by signal {-status}"

    def often(self) -> list[tuple[int, str, int]]:
        """Shard, reason and count of deaths, for each reason that has come OFTEN or more within SPAN_S."""
        since = time.monotonic() - SPAN_S
        found = []
        for shard, deaths in self._by_shard.items():
            counts = Counter(reason for at, reason in deaths if at >= since)
            found += [(shard, reason, count) for reason, count in counts.items() if count >= OFTEN]
        return found

    def summary(self, shard: int) -> str:
        """The same for one shard, as a part of a refusal; "" if there is nothing to report."""
        found = [(count, why) for number, why, count in self.often() if number == shard]
        return "".join(f"; it has died {count} times: {why}" for count, why in found)
