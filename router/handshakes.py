"""Clients that come over TLS, until they have shaken hands: only then the rest of the router hears of them.

A client that does not speak must cost little: how many there may be is bounded together with the connections.
"""

from __future__ import annotations

import asyncio
import ssl
from socket import socket

from bunqueue.logs import get_logger

from .connection import ClientConnection
from .hub import Hub

HANDSHAKE_S = 10.0
SHUTDOWN_S = 2.0  # for the client to say goodbye, too
PAUSE_S = 0.1  # when accepting fails: no file can be opened, mostly

_log = get_logger("router")


class Handshakes:
    """Accepts connections from listening sockets, which it closes in the end."""

    def __init__(self, hub: Hub, context: ssl.SSLContext) -> None:
        self.context = context
        """For those that come from now on."""
        self._hub = hub
        self._accepting: list[asyncio.Task[None]] = []
        self._greeting: set[asyncio.Task[None]] = set()
        self._failed = 0
        self._reason = ""

    def listen(self, sock: socket, backlog: int) -> None:
        """Let clients in."""
        sock.listen(backlog)
        sock.setblocking(False)
        self._accepting.append(asyncio.create_task(self._accept(sock)))

    async def _accept(self, sock: socket) -> None:
        loop = asyncio.get_running_loop()
        with sock:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(sock)
                except OSError:
                    await asyncio.sleep(PAUSE_S)
                    continue
                if len(self._hub.clients) + len(self._greeting) >= self._hub.max_connections:
                    accepted.close()
                    self._hub.refused += 1
                    continue
                greeting = loop.create_task(self._greet(accepted))
                self._greeting.add(greeting)
                greeting.add_done_callback(self._greeting.discard)

    async def _greet(self, accepted: socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: ClientConnection(self._hub),
                accepted,
                ssl=self.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as error:  # TLS errors are such, and timeouts
            self._failed += 1
            self._reason = getattr(error, "reason", None) or str(error) or type(error).__name__

    def tell(self) -> None:
        """Say who failed since the last time: one line, however many there were."""
        if self._failed:
            _log.warning("clients failed at the TLS handshake", clients=self._failed, last=self._reason)
            self._failed = 0

    def close(self) -> None:
        """Let nobody in any more, and give up what is half way."""
        for task in (*self._accepting, *self._greeting):
            task.cancel()
        self._accepting.clear()
