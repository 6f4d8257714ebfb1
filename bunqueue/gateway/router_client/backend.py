"""The gateway's connections to the router: quick commands share a few, each waiting command has its own.

A connection may have only a limited number of commands that are answered late.  Beyond that, all others wait.
When the client has left, the only way to withdraw a parked command is to close its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bunqueue.model.scope import Scope
from bunqueue.protocol.commands import COMMANDS
from bunqueue.server.host.descriptors import MAX_WAITING

from .connection import RouterConnection, RouterDisconnected

SHARED = 2  # connections for commands that are answered at once; a large answer blocks only one
SPARE = 16  # idle connections that are kept for reuse
MAX_SCOPES = 32  # with connections of their own
READERS = 4  # read-only clients may use one in this many of the waiting commands
ANSWER_S = 30.0  # for an answer, on top of the time that the command itself may take


class Busy(Exception):
    """The maximum number of commands is already waiting."""


class Unanswered(Exception):
    """No answer came in time.  The outcome of a command that changes something is unknown."""


class _Lines:
    """The connections whose commands are limited to one scope."""

    def __init__(self) -> None:
        self.shared: list[RouterConnection] = []
        self.spare: list[RouterConnection] = []

    def close(self) -> None:
        for line in (*self.shared, *self.spare):
            line.close()
        self.shared.clear()
        self.spare.clear()


class Backend:
    """All connections to the router."""

    def __init__(self, path: str, max_waiting: int = MAX_WAITING) -> None:
        """``max_waiting`` is the number of commands that may wait at the same time, each with a
        connection."""
        self._path = path
        self._max_waiting = max_waiting
        self._lines: dict[Scope | None, _Lines] = {}  # the one used last is the last
        self._opening = asyncio.Lock()
        self._parked = 0
        self._reading = 0  # of these, for clients that may only read

    async def call(self, name: str, fields: dict[str, Any], scope: Scope | None = None) -> bytes:
        """Carry out a command that is answered at once, limited to a scope.  Returns its reply, a MessagePack
        map.

        Raises RouterGone, Unanswered, and the encoder's errors for fields that cannot be encoded.
        """
        command = {**fields, "cmd": name}
        try:
            return await self._answer(await self._line(scope), command)
        except RouterDisconnected as error:
            if error.asked and not COMMANDS[name].repeatable:
                raise
        return await self._answer(await self._line(scope), command)

    async def _answer(self, line: RouterConnection, command: dict[str, Any], waits_ms: float = 0) -> bytes:
        try:
            async with asyncio.timeout(waits_ms / 1000 + ANSWER_S):
                return await line.ask(command)
        except TimeoutError:
            raise Unanswered from None

    def _lines_of(self, scope: Scope | None) -> _Lines:
        """The connections for a scope; those that were not used for longest make room for new ones."""
        lines = self._lines.pop(scope, None) or _Lines()
        self._lines[scope] = lines
        if len(self._lines) > MAX_SCOPES:
            for other, idle in list(self._lines.items()):
                if other is not None and other != scope and not any(line.load for line in idle.shared):
                    del self._lines[other]
                    idle.close()
                    break
        return lines

    async def _line(self, scope: Scope | None) -> RouterConnection:
        """The shared connection with the fewest requests.  Opens missing ones."""
        lines = self._lines_of(scope)
        lines.shared = [line for line in lines.shared if not line.closed]
        if len(lines.shared) < SHARED:
            async with self._opening:
                while len(lines.shared) < SHARED:
                    lines.shared.append(await RouterConnection.open(self._path, scope))
        return min(lines.shared, key=lambda line: line.load)

    async def wait(
        self,
        name: str,
        fields: dict[str, Any],
        waits_ms: float,
        scope: Scope | None = None,
        *,
        reads: bool = False,
    ) -> bytes:
        """Carry out a command that may wait.  If the call is cancelled, the server also drops the command.

        ``reads``: for a client that may only read.  Such clients leave room for the others.

        Raises Busy, RouterGone, Unanswered, and the encoder's errors for fields that cannot be encoded.
        """
        if reads and self._reading >= self._max_waiting // READERS:
            raise Busy
        self._reading += reads
        try:
            async with self._leased(scope) as line:
                return await self._answer(line, {**fields, "cmd": name}, waits_ms)
        finally:
            self._reading -= reads

    @asynccontextmanager
    async def _leased(self, scope: Scope | None) -> AsyncIterator[RouterConnection]:
        """A connection for a single command.  If the command is not answered, the connection is closed."""
        if self._parked >= self._max_waiting:
            raise Busy
        self._parked += 1
        line = None
        try:
            line = await self._unused(scope)
            yield line
        except BaseException:
            if line is not None:
                line.close()
            raise
        else:
            lines = self._lines_of(scope)
            if len(lines.spare) < (SPARE if scope is None else SHARED) and not line.closed:
                lines.spare.append(line)
            else:
                line.close()
        finally:
            self._parked -= 1

    async def _unused(self, scope: Scope | None) -> RouterConnection:
        spare = self._lines_of(scope).spare
        while spare:
            line = spare.pop()
            if not line.closed:
                return line
        return await RouterConnection.open(self._path, scope)

    def close(self) -> None:
        """Close all connections."""
        for lines in self._lines.values():
            lines.close()
        self._lines.clear()
