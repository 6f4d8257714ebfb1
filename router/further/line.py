"""One end of the line between the first router and another one; nobody else can be at the other end."""

from __future__ import annotations

import asyncio
import socket
from typing import TypeVar

from ..cluster.wire import HostConnection


class Line(HostConnection):
    """As between hosts, but without a greeting, and without an end while both processes live."""

    def __init__(self) -> None:
        super().__init__()
        self.greeted = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._watch is not None:
            self._watch.cancel()


AnyLine = TypeVar("AnyLine", bound=Line)


async def connected(line: AnyLine, sock: socket.socket) -> AnyLine:
    """The line over one end of the pair."""
    sock.setblocking(False)
    await asyncio.get_running_loop().create_unix_connection(lambda: line, sock=sock)
    return line
