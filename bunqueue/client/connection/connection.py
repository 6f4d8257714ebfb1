"""One connection to a server: the handshake, and a look at whether the server is still there."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from bunqueue.client.connection import handshake
from bunqueue.client.connection.options import ConnectionOptions, seconds
from bunqueue.client.connection.replies import decode_reply
from bunqueue.client.connection.requests import Request
from bunqueue.client.connection.sockets import tune
from bunqueue.client.connection.wire import Host, WireConnection
from bunqueue.errors import CommandFailed
from bunqueue.protocol.commands import server


class Connection(WireConnection[Request]):
    """A connection of the client. Its host calls `handshake` first; before that nothing else may be sent."""

    def __init__(self, host: Host[Request], address: str, options: ConnectionOptions) -> None:
        super().__init__(host, address)
        self.knows_pushes = False
        """Whether the server knows a push again that is repeated."""
        self._options = options
        self._gone = self._loop.create_future()
        self._failed_pings = 0
        self._ping_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        tune(transport.get_extra_info("socket"), self._options)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        super().connection_lost(exc)
        if not self._gone.done():
            self._gone.set_result(None)

    def expire(self, request: Request) -> None:
        """A request ran past its deadline; too many in a row mean that nobody is there."""
        self.pending.pop(request.id, None)
        self.timeouts += 1
        if 0 < self._options.max_command_timeouts <= self.timeouts:
            self.abort(f"{self.timeouts} commands in a row got no answer")

    async def handshake(self, token: str | None, deadline: float) -> None:
        """Authenticate, then agree on the protocol: before Auth a server answers nothing else.

        Raises AuthError, whatever the reason of a refusal, ConnectionLost, CommandTimeout or BunqueueError.
        """
        for command, reply in handshake.greetings(token):
            request = Request(command, self._loop.create_future(), deadline)
            self.send(request)
            try:
                answer = decode_reply(await request.future, reply, command, self._address)
                self.knows_pushes = handshake.knows_pushes(answer)
            except CommandFailed as error:
                raise handshake.refused(command, error, self._address) from None
        self._look_later()

    def _look_later(self) -> None:
        interval = seconds(self._options.ping_interval)
        if interval and not self.closed:
            self._silent = True
            self._ping_timer = self._loop.call_later(interval, self._look)

    def _look(self) -> None:
        """Ask a connection that was silent for a whole interval whether anybody is there."""
        if not self._silent:
            self._look_later()
            return
        timeout = min(seconds(self._options.ping_interval), seconds(self._options.command_timeout))
        request = Request(server.Ping(), self._loop.create_future(), self._loop.time() + timeout)
        request.future.add_done_callback(self._pinged)
        self.send(request)

    def _pinged(self, future: asyncio.Future[bytes]) -> None:
        if self.closed or future.cancelled():
            return
        self._failed_pings = 0 if future.exception() is None else self._failed_pings + 1
        if self._failed_pings >= self._options.max_ping_failures:
            self.abort(f"{self._failed_pings} pings in a row got no answer")
        else:
            self._look_later()

    def hang_up(self) -> None:
        """Without the event loop, which is closed; the socket itself goes with the last reference to it."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is not None:
            with suppress(OSError, ValueError):  # uvloop has closed it already
                sock.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Send what is waiting and end the connection."""
        self.reason = "it was closed"
        if self._transport is not None and not self.closed:
            self.shut()
            await asyncio.wait([self._gone], timeout=1.0)  # a peer that reads nothing must not hold us
            self._transport.abort()
