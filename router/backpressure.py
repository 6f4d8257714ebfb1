"""Whether a client's socket is read.  There may be several reasons at once not to."""

from __future__ import annotations

import asyncio
from typing import Protocol

SLOW_READER = 1  # it does not read what we send
HELD = 2  # enough commands wait behind its long polls
SHUTDOWN = 4
_SHARD = 8


def full_shard(shard: int) -> int:
    """The reason that the socket to this shard is full."""
    return _SHARD << shard


class Feeder(Protocol):
    """Whoever sends commands to shards."""

    gate: ReadGate


class ReadGate:
    """Reads while there is no reason against it."""

    __slots__ = ("_reasons", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._reasons = 0

    @property
    def closed(self) -> bool:
        """True while the client cannot be heard."""
        return bool(self._reasons)

    def close(self, reason: int) -> None:
        """Do not read, for this reason among others."""
        if not self._reasons and not self._transport.is_closing():
            self._transport.pause_reading()
        self._reasons |= reason

    def open(self, reason: int) -> None:
        """The reason is gone: read, if it was the last."""
        if self._reasons & reason:
            self._reasons &= ~reason
            if not self._reasons and not self._transport.is_closing():
                self._transport.resume_reading()

    def open_for_good(self) -> None:
        """Read whatever the reasons were: to see the end of the connection."""
        self.open(self._reasons)
