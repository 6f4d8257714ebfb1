"""One connection to a server: bytes out, replies matched to requests, a look at whether it is still alive.

It decides nothing about what becomes of requests when it dies; that is its host's, the pool.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Protocol, cast

from msgspec import MsgspecError

from bunqueue.client.connection import handshake
from bunqueue.client.connection.options import ConnectionOptions, seconds
from bunqueue.client.connection.replies import Head, decode_reply, peek
from bunqueue.client.connection.requests import Request
from bunqueue.client.connection.sockets import tune
from bunqueue.errors import CommandFailed
from bunqueue.protocol.commands import server
from bunqueue.protocol.framing import HEADER, FrameSplitter

logger = logging.getLogger("bunqueue.client")

CLOSED = "it was closed by the server"
WEB = "it speaks HTTP"


class Host(Protocol):
    """Whom a connection reports to."""

    def watch(self, deadline: float) -> None:
        """A request with this deadline is under way."""

    def answered(self, connection: Connection) -> None:
        """Replies have come: there is room for more."""

    def heard(self, payload: bytes) -> None:
        """A frame that answers no request."""

    def unavailable(self, request: Request, payload: bytes) -> None:
        """The request was not carried out, because its shard is away."""

    def lost(self, connection: Connection, reason: str) -> None:
        """The connection ended. `pending` holds what was not answered, `unsent` what was never written."""


class Connection(asyncio.Protocol):
    """A socket with pipelining. The writes of one turn of the event loop leave together, but the first, if
    nothing else is under way: it need not wait for a turn that may bring nothing."""

    def __init__(self, host: Host, address: str, options: ConnectionOptions) -> None:
        self.pending: dict[int, Request] = {}
        self.unsent: list[Request] = []
        self.timeouts = 0  # in a row
        self.closed = False
        self.ready = False
        """After the handshake; set by the host. Before it, nothing else may be sent."""
        self.knows_pushes = False
        """Whether the server knows a push again that is repeated."""
        self._host = host
        self._address = address
        self._options = options
        self._splitter = FrameSplitter()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.reason = CLOSED
        """Why it ended, if it did."""
        self._silent = True  # since the last look
        self._failed_pings = 0
        self._ping_timer: asyncio.TimerHandle | None = None
        self._gone = self._loop.create_future()

    # -- out

    def send(self, request: Request) -> None:
        """Write a request now or at the end of this turn of the loop."""
        idle = not self.pending
        if request.tries:
            request.repeat()
        self.pending[request.id] = request
        self.unsent.append(request)
        if idle:
            self._flush()
        elif len(self.unsent) == 1:
            self._loop.call_soon(self._flush)
        self._host.watch(request.deadline)

    def _flush(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing() and self.unsent:
            frames = [request.frame for request in self.unsent]
            self.unsent.clear()
            transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def expire(self, request: Request) -> None:
        """A request ran past its deadline; too many in a row mean that nobody is there."""
        self.pending.pop(request.id, None)
        self.timeouts += 1
        if 0 < self._options.max_command_timeouts <= self.timeouts:
            self.abort(f"{self.timeouts} commands in a row got no answer")

    # -- in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one only in what it does
        tune(transport.get_extra_info("socket"), self._options)

    def data_received(self, data: bytes) -> None:
        self._silent = False
        for frame in self._splitter.feed(data):
            payload = frame[HEADER:]
            try:
                head = peek(payload)
            except MsgspecError as error:
                self.abort(f"it sent what is no reply: {error}")
                return
            self._accept(head, payload)
        if self._splitter.broken:
            self.abort(WEB if data.startswith(b"HTTP/") else str(self._splitter.broken))
            return
        self.timeouts = 0
        if self.ready:
            self._host.answered(self)

    def _accept(self, head: Head, payload: bytes) -> None:
        request = self.pending.pop(head.req_id, None) if head.req_id is not None else None
        if request is None:
            if head.req_id is None and head.error:  # about the connection as a whole: usually its last words
                self.reason = f"the server says: {head.error}"
                logger.warning("bunqueue at %s: %s", self._address, head.error)
            elif head.req_id is None:
                self._host.heard(payload)
            return
        if head.may_pass:
            self._host.unavailable(request, payload)
        elif not request.future.done():
            request.future.set_result(payload)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._host.lost(self, str(exc) if exc else self.reason)
        if not self._gone.done():
            self._gone.set_result(None)

    # -- life

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

    def abort(self, reason: str) -> None:
        """Take the connection for dead."""
        self.reason = reason
        if self._transport is not None:
            self._transport.abort()

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
            self._flush()
            self._transport.close()
            await asyncio.wait([self._gone], timeout=1.0)  # a peer that reads nothing must not hold us
            self._transport.abort()
