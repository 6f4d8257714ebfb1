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
READ_SIZE = 64 * 1024  # bytes; larger replies take several reads
_numbers = count(1)
_MASK = 0xFFFFFFFF  # request numbers stay uint32, which every decoder takes; they repeat after 4 billion


def next_number() -> int:
    """For the `reqId` of a command."""
    return next(_numbers) & _MASK


def _continue_with(future: asyncio.Future[bytes], payload: bytes) -> None:
    """`set_result` for a callback of the event loop. If one task waits for it, that task continues at once,
    not in the next turn of the loop: a turn would be a fifth of the work of one call after another.
    """
    waiting = future._callbacks
    if not waiting or len(waiting) > 1 or asyncio.current_task() is not None:  # some loops run inside a task
        future.set_result(payload)
        return
    ((callback, context),) = waiting
    future.remove_done_callback(callback)
    future.set_result(payload)
    context.run(callback, future)


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


class WireConnection(asyncio.BufferedProtocol, Generic[Q]):
    """A socket with pipelining. The writes of one turn of the event loop are sent together. If nothing is in
    flight, the first is sent at once, as the turn may bring no others.

    It reads into a buffer of its own. For each read of a protocol without one, asyncio allocates 256 KiB, and
    that takes five times as long as to read a small reply.
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
        self._buffer = memoryview(bytearray(READ_SIZE))
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.reason = CLOSED
        """Why it ended, if it did."""
        self._silent = True  # nothing has arrived since this was last set

    # -- out

    def send(self, request: Q) -> None:
        """Write a request now, or at the end of this turn of the loop."""
        if request.tries:
            request.repeat()
        transport, idle = self._transport, not self.pending
        self.pending[request.id] = request
        if idle and not self.unsent and transport is not None and not transport.is_closing():
            transport.write(request.frame)
        else:
            self.unsent.append(request)
            if len(self.unsent) == 1:
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

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._receive(bytes(self._buffer[:nbytes]))

    def _receive(self, data: bytes) -> None:
        self._silent = False
        frames = self._splitter.feed(data)
        alone: asyncio.Future[bytes] | None = None
        for frame in frames:
            payload = frame[HEADER:]
            try:
                head = peek(payload)
            except MsgspecError as error:
                self.abort(f"it sent what is no reply: {error}")
                return
            request = self._answered_by(head, payload)
            if request is None or request.future.done():
                continue
            if len(frames) == 1:
                alone = request.future
            else:
                request.future.set_result(payload)
        if not self._splitter.broken:
            self.timeouts = 0
            if self.ready:
                self._host.answered(self)
        if alone is not None:  # after all else, as its task may send the next command before this returns
            _continue_with(alone, payload)
        if self._splitter.broken:
            self.abort(WEB if data.startswith(b"HTTP/") else str(self._splitter.broken))

    def _answered_by(self, head: Head, payload: bytes) -> Q | None:
        """The request that a frame answers; None if that is dealt with."""
        request = self.pending.pop(head.req_id, None) if head.req_id is not None else None
        if request is None:
            if head.req_id is None and head.error:  # about the whole connection: usually it is closing
                self.reason = f"the server says: {head.error}"
                logger.warning("bunqueue at %s: %s", self._address, head.error)
            elif head.req_id is None:
                self._host.on_frame(payload)
            return None
        if head.may_pass:
            self._host.unavailable(request, payload)
            return None
        return request

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
