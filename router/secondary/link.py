"""One end of the connection between the first router and a secondary one; nothing else can be at the other
end."""

from __future__ import annotations

import asyncio
import socket
from typing import TypeVar

from ..cluster.wire import HostConnection


class RouterLink(HostConnection):
    """Like a connection between hosts, but without a greeting, and open as long as both processes live."""

    def __init__(self) -> None:
        super().__init__()
        self.greeted = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._watch is not None:
            self._watch.cancel()


AnyLink = TypeVar("AnyLink", bound=RouterLink)


async def connected(link: AnyLink, sock: socket.socket) -> AnyLink:
    """The link over one end of the socket pair."""
    sock.setblocking(False)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=sock)
    return link
