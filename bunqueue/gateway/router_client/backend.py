"""The gateway's connections to the router: quick commands share a few, each waiting command has its own.

A connection may have only a limited number of commands that are answered late.  Beyond that, all others wait.
When the client has left, the only way to withdraw a parked command is to close its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bunqueue.protocol.commands import COMMANDS
from bunqueue.server.host.descriptors import MAX_WAITING

from .connection import RouterConnection, RouterDisconnected

SHARED = 2  # connections for commands that are answered at once; a large answer blocks only one
SPARE = 16  # idle connections that are kept for reuse
READERS = 4  # read-only clients may use one in this many of the waiting commands
ANSWER_S = 30.0  # for an answer, on top of the time that the command itself may take


class Busy(Exception):
    """The maximum number of commands is already waiting."""


class Unanswered(Exception):
    """No answer came in time.  The outcome of a command that changes something is unknown."""


class Backend:
    """All connections to the router."""

    def __init__(self, path: str, max_waiting: int = MAX_WAITING) -> None:
        """``max_waiting`` is the number of commands that may wait at the same time, each with a
        connection."""
        self._path = path
        self._max_waiting = max_waiting
        self._shared: list[RouterConnection] = []
        self._spare: list[RouterConnection] = []
        self._opening = asyncio.Lock()
        self._parked = 0
        self._reading = 0  # of these, for clients that may only read

    async def call(self, name: str, fields: dict[str, Any]) -> bytes:
        """Carry out a command that is answered at once.  Returns its reply, a MessagePack map.

        Raises RouterGone, Unanswered, and the encoder's errors for fields that cannot be encoded.
        """
        command = {**fields, "cmd": name}
        try:
            return await self._answer(await self._line(), command)
        except RouterDisconnected as error:
            if error.asked and not COMMANDS[name].repeatable:
                raise
        return await self._answer(await self._line(), command)

    async def _answer(self, line: RouterConnection, command: dict[str, Any], waits_ms: float = 0) -> bytes:
        try:
            async with asyncio.timeout(waits_ms / 1000 + ANSWER_S):
                return await line.ask(command)
        except TimeoutError:
            raise Unanswered from None

    async def _line(self) -> RouterConnection:
        """The shared connection with the fewest requests.  Opens missing ones."""
        lines = self._shared = [line for line in self._shared if not line.closed]
        if len(lines) < SHARED:
            async with self._opening:
                while len(self._shared) < SHARED:
                    self._shared.append(await RouterConnection.open(self._path))
            lines = self._shared
        return min(lines, key=lambda line: line.load)

    async def wait(self, name: str, fields: dict[str, Any], waits_ms: float, *, reads: bool = False) -> bytes:
        """Carry out a command that may wait.  If the call is cancelled, the server also drops the command.

        ``reads``: for a client that may only read.  Such clients leave room for the others.

        Raises Busy, RouterGone, Unanswered, and the encoder's errors for fields that cannot be encoded.
        """
        if reads and self._reading >= self._max_waiting // READERS:
            raise Busy
        self._reading += reads
        try:
            async with self._leased() as line:
                return await self._answer(line, {**fields, "cmd": name}, waits_ms)
        finally:
            self._reading -= reads

    @asynccontextmanager
    async def _leased(self) -> AsyncIterator[RouterConnection]:
        """A connection for a single command.  If the command is not answered, the connection is closed."""
        if self._parked >= self._max_waiting:
            raise Busy
        self._parked += 1
        line = None
        try:
            line = await self._unused()
            yield line
        except BaseException:
            if line is not None:
                line.close()
            raise
        else:
            if len(self._spare) < SPARE and not line.closed:
                self._spare.append(line)
            else:
                line.close()
        finally:
            self._parked -= 1

    async def _unused(self) -> RouterConnection:
        while self._spare:
            line = self._spare.pop()
            if not line.closed:
                return line
        return await RouterConnection.open(self._path)

    def close(self) -> None:
        """Close all connections."""
        for line in (*self._shared, *self._spare):
            line.close()
        self._shared.clear()
        self._spare.clear()
