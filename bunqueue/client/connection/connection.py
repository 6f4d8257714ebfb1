"""One connection to a server: the handshake, and checks that the server is still alive."""

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

SILENCE = 2.0  # seconds without data while replies are due, after which the server is pinged, if there is
# another one to switch to; it has as many seconds to answer
STALLED_S = 1.0  # seconds by which a timer fired late: this process was paused and could receive nothing


class Connection(WireConnection[Request]):
    """A connection of the client. Its host calls `handshake` first; nothing else may be sent before it."""

    def __init__(
        self, host: Host[Request], address: str, options: ConnectionOptions, *, others: bool = False
    ) -> None:
        """``others``: there are other addresses, so leave a hanging server early."""
        super().__init__(host, address)
        self._others = others
        self._received_at = self._loop.time()
        self.knows_pushes = False
        """Whether the server recognizes a push that is sent again."""
        self._options = options
        self._gone = self._loop.create_future()
        self._failed_pings = 0
        self._ping_ends = 0.0
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
        """A request has passed its deadline. Too many of these in a row mean that the server is dead."""
        self.pending.pop(request.id, None)
        self.timeouts += 1
        if 0 < self._options.max_command_timeouts <= self.timeouts:
            self.abort(f"{self.timeouts} commands in a row got no answer")

    async def handshake(self, token: str | None, deadline: float) -> None:
        """Authenticate, then agree on the protocol: before Auth a server answers nothing else.

        Raises AuthError for any refusal of Auth, else ConnectionLost, CommandTimeout or BunqueueError.
        """
        for command, reply in handshake.greetings(token):
            request = Request(command, self._loop.create_future(), deadline)
            self.send(request)
            try:
                answer = decode_reply(await request.future, reply, command, self._address)
                self.knows_pushes = handshake.knows_pushes(answer)
            except CommandFailed as error:
                raise handshake.refused(command, error, self._address) from None
        self._schedule_check()

    def _schedule_check(self) -> None:
        interval = seconds(self._options.ping_interval)
        if interval and not self.closed:
            interval = min(interval, SILENCE) if self._others else interval
            self._silent = True
            self._ping_timer = self._loop.call_later(interval, self._check)

    def _check(self) -> None:
        """Ping the server if the connection was silent for a whole interval."""
        now, interval = self._loop.time(), seconds(self._options.ping_interval)
        if not self._silent:
            self._received_at = now
        if not self._silent or (not self.pending and now - self._received_at < interval):
            self._schedule_check()
            return
        timeout = min(interval, seconds(self._options.command_timeout))
        if self._others:
            timeout = min(timeout, SILENCE)
        self._ping_ends = now + timeout
        request = Request(server.Ping(), self._loop.create_future(), self._loop.time() + timeout)
        request.future.add_done_callback(self._pinged)
        self.send(request)

    def _pinged(self, future: asyncio.Future[bytes]) -> None:
        if self.closed or future.cancelled():
            return
        if future.exception() is None:
            self._failed_pings, self._received_at = 0, self._loop.time()
        elif self._loop.time() < self._ping_ends + STALLED_S:
            self._failed_pings += 1
        if self._failed_pings >= (1 if self._others else self._options.max_ping_failures):
            self.abort(f"{self._failed_pings} pings in a row got no answer")
        else:
            self._schedule_check()

    def hang_up(self) -> None:
        """Shut the socket down without the event loop, which is closed. Its last reference frees it."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is not None:
            with suppress(OSError, ValueError):  # uvloop has closed it already
                sock.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Send what is queued, then end the connection."""
        self.reason = "it was closed"
        if self._transport is not None and not self.closed:
            self.shut()
            await asyncio.wait([self._gone], timeout=1.0)  # a peer that reads nothing must not block us
            self._transport.abort()
