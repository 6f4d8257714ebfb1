"""Frames over one socket: sends requests and matches replies to them. Used by the SDK and the HTTP gateway.

It does not decide what happens to requests when the connection dies: its host does. It knows neither
handshakes nor commands: `connection.py` adds what a client of a server needs.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from typing import Any, Generic, Protocol, TypeVar, cast

from msgspec import MsgspecError

from bunqueue.client.connection.replies import Head, peek
from bunqueue.protocol.framing import HEADER, FrameSplitter

logger = logging.getLogger("bunqueue.client")

CLOSED = "it was closed by the server"
WEB = "it speaks HTTP"
_numbers = count(1)
_MASK = 0xFFFFFFFF  # request numbers stay uint32, which every decoder takes; they repeat after 4 billion


def next_number() -> int:
    """For the `reqId` of a command."""
    return next(_numbers) & _MASK


class WireRequest:
    """A frame to send, and the future for its reply."""

    __slots__ = ("deadline", "frame", "future", "id", "tries")

    def __init__(self, number: int, frame: bytes, future: asyncio.Future[bytes], deadline: float) -> None:
        self.id = number  # the frame's `reqId`
        self.frame = frame
        self.future = future
        self.deadline = deadline  # by the event loop's clock
        self.tries = 0  # connections that died with it

    def repeat(self) -> None:
        """Called before it is sent once more."""


Q = TypeVar("Q", bound=WireRequest)
Held = TypeVar("Held", bound=WireRequest, contravariant=True)


class Host(Protocol[Held]):
    """The owner that a connection reports to."""

    def watch(self, deadline: float) -> None:
        """A request with this deadline is in flight."""

    def answered(self, connection: Any) -> None:
        """Replies have arrived: there is room for more."""

    def on_frame(self, payload: bytes) -> None:
        """A frame that answers no request."""

    def unavailable(self, request: Held, payload: bytes) -> None:
        """The request was not executed: its shard is unavailable. `payload` is the reply that says so."""

    def lost(self, connection: Any, reason: str) -> None:
        """The connection ended. `pending` has the unanswered requests, `unsent` those never written."""


class WireConnection(asyncio.Protocol, Generic[Q]):
    """A socket with pipelining. The writes of one turn of the event loop are sent together. If nothing is in
    flight, the first is sent at once, as the turn may bring no others.
    """

    def __init__(self, host: Host[Q], address: str) -> None:
        self.pending: dict[int, Q] = {}
        self.unsent: list[Q] = []
        self.timeouts = 0  # in a row
        self.closed = False
        self.ready = False
        """Whether to report replies to the host, which sets this after its handshake."""
        self._host = host
        self._address = address
        self._splitter = FrameSplitter()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.reason = CLOSED
        """Why it ended, if it did."""
        self._silent = True  # nothing has arrived since this was last set

    # -- out

    def send(self, request: Q) -> None:
        """Write a request now, or at the end of this turn of the loop."""
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

    # -- in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from it

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
            if head.req_id is None and head.error:  # about the whole connection: usually it is closing
                self.reason = f"the server says: {head.error}"
                logger.warning("bunqueue at %s: %s", self._address, head.error)
            elif head.req_id is None:
                self._host.on_frame(payload)
            return
        if head.may_pass:
            self._host.unavailable(request, payload)
        elif not request.future.done():
            request.future.set_result(payload)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._host.lost(self, str(exc) if exc else self.reason)

    # -- the end

    def abort(self, reason: str) -> None:
        """Treat the connection as dead."""
        self.reason = reason
        if self._transport is not None:
            self._transport.abort()

    def shut(self) -> None:
        """Send what is queued, then end the connection. It accepts nothing more."""
        self.closed = True
        if self._transport is not None:
            self._flush()
            self._transport.close()
