"""Whether a client's socket is read. Several reasons to pause it may hold at once."""

from __future__ import annotations

import asyncio

SLOW_READER = 1  # the client does not read what we send
DEFERRED = 2  # enough commands wait behind its long polls
SHUTDOWN = 4
SLOWED = 8  # its address guesses tokens
_SHARD = 16


def full_shard(shard: int) -> int:
    """The reason "the socket to this shard is full"."""
    return _SHARD << shard


class ReadGate:
    """Reads from the socket while no reason to pause holds."""

    __slots__ = ("_reasons", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._reasons = 0

    @property
    def closed(self) -> bool:
        """True while the client's socket is not read."""
        return bool(self._reasons)

    def is_closed_for(self, reason: int) -> bool:
        """Whether this is one of the reasons why it is not read."""
        return bool(self._reasons & reason)

    def close(self, reason: int) -> None:
        """Pause reading for this reason, in addition to any others."""
        if not self._reasons and not self._transport.is_closing():
            self._transport.pause_reading()
        self._reasons |= reason

    def open(self, reason: int) -> None:
        """Remove a reason; resume reading if it was the last one."""
        if self._reasons & reason:
            self._reasons &= ~reason
            if not self._reasons and not self._transport.is_closing():
                self._transport.resume_reading()

    def open_for_good(self) -> None:
        """Read regardless of the reasons, to see the end of the connection."""
        self.open(self._reasons)
