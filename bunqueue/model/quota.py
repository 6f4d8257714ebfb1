"""How much a namespace may use of a router and of a shard, and what it uses of a router.

Pure: the time comes from the caller.  Rates are counted in whole seconds, each from the first command after
the last one: that costs two comparisons for a command, and a refusal can say when the next second begins.
"""

from __future__ import annotations

from typing import NamedTuple

WINDOW_S = 1.0


class Quota(NamedTuple):
    """The bounds of a namespace, the first four at each router, the others on each shard; None: no bound."""

    connections: int | None = None
    """Of its clients over TCP."""
    commands: int | None = None
    """In a second, over all surfaces."""
    bytes: int | None = None
    """Of these commands; the last one in a second may go beyond."""
    payload: int | None = None
    """Bytes of one command."""
    queues: int | None = None
    jobs: int | None = None
    """Those that have not ended."""
    schedules: int | None = None
    webhooks: int | None = None
    """For its queues."""


NO_QUOTA = Quota()


class Excess(NamedTuple):
    """The bound that is in the way."""

    field: str
    value: int
    bound: int
    retry_after: int | None = None
    """In how many ms the same may be allowed; None: that is not known, or never."""


class Usage:
    """What the clients of one namespace use."""

    __slots__ = ("_begins", "bytes", "commands", "connections", "quota")

    def __init__(self, quota: Quota = NO_QUOTA) -> None:
        self.quota = quota
        self.connections = 0
        self.commands = self.bytes = 0  # in this second
        self._begins = 0.0

    def join(self) -> Excess | None:
        """Count a connection, unless there are as many as may be."""
        most = self.quota.connections
        if most is not None and self.connections >= most:
            return Excess("connections", self.connections, most)
        self.connections += 1
        return None

    def leave(self) -> None:
        """A connection that was counted has ended."""
        self.connections -= 1

    def take(self, size: int, now_s: float) -> Excess | None:
        """Count a command of so many bytes, unless it exceeds a bound."""
        commands, total, payload = self.quota[1:4]
        if payload is not None and size > payload:
            return Excess("payload", size, payload)
        if now_s - self._begins >= WINDOW_S:
            self._begins, self.commands, self.bytes = now_s, 0, 0
        if commands is not None and self.commands >= commands:
            return Excess("commands", self.commands, commands, self._left(now_s))
        if total is not None and self.bytes >= total:
            return Excess("bytes", self.bytes, total, self._left(now_s))
        self.commands += 1
        self.bytes += size
        return None

    def _left(self, now_s: float) -> int:
        return max(1, round((self._begins + WINDOW_S - now_s) * 1000))
