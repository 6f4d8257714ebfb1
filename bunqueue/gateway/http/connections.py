"""HTTP connections with bounds, because uvicorn waits forever and accepts headers of any size.

The number of connections is limited, so clients that send nothing, or send slowly, must not keep theirs.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from bunqueue.server.host.acceptor import Counted

from .access import CERTIFICATE, END, OPEN, SPARE

MAX_HEAD = 64 * 1024  # bytes of a request line with its headers
MAX_HEADERS = 256  # each takes some hundred bytes, however short it is
HEAD_S = 30.0  # for the head to arrive, from the first byte or the start of the connection
REST_S = 30.0  # for the rest of a request that was answered before it was read
PIECE = 2048  # bytes parsed at once: data that follows a request waits as bytes, not as requests
PIECES = 4  # in one turn of the event loop: a body may be in a thousand chunks, and other clients wait
MAX_AHEAD = 64 * 1024 * 1024  # bytes that wait like this, of all connections, which are not read further
UNSENT = 128 * 1024  # bytes that the kernel takes beyond those in flight; by default, megabytes each
STUCK_MS = 60_000  # for a peer to read what it was sent; then the kernel closes the connection

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
)
_ERROR = b'{"ok":false,"error":"the headers are larger than %d bytes, or more than %d"}' % (
    MAX_HEAD,
    MAX_HEADERS,
)


def end_stuck_ones(listening: list[socket.socket]) -> None:
    """Have the kernel close connections to peers that read nothing, and buffer little for them.  Accepted
    sockets inherit this."""
    for sock in listening:
        with suppress(AttributeError, OSError):  # not on every platform
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STUCK_MS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)


class Waiting:
    """The connections that wait for a request, in order of arrival, and those that have sent no request
    yet."""

    def __init__(self) -> None:
        self.connections: dict[Connection, None] = {}
        self.malformed = 0  # requests since the last report
        self.last = ""  # the address of the last of these

    def give_way(self) -> bool:
        """Close the connection that has waited longest, to make room for a new one."""
        if not self.connections:
            return False
        oldest = next(iter(self.connections))
        del self.connections[oldest]
        oldest.transport.abort()
        return True


class HeadTooLarge(Exception):
    """The request line and its headers are too large, or there are too many headers."""


class Connection(HttpToolsProtocol):
    """A connection with time limits for the arrival of requests."""

    all_ahead = 0  # bytes of all connections: see MAX_AHEAD

    def __init__(
        self,
        *args: Any,
        waiting: Waiting | None = None,
        counted: Counted = lambda: None,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._counted = counted
        self._waiting = waiting or Waiting()
        self._late: asyncio.TimerHandle | None = None
        self._head = 0  # bytes of the head that is being read; -1: no head is being read
        self._began = False  # with the last data
        self._whole = True  # the last request was read completely
        self._beside = 0  # bytes since the last part of a body: chunk extensions, and headers after chunks
        self._oversized = False
        self._ahead = bytearray()  # data after requests that wait for the answer to the previous one
        self._held = 0  # bytes of it, as counted
        self._goes_on = False  # whether parsing resumes in the next turn
        self._running: RequestResponseCycle | None = None  # the request that is being answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._counted()
        self._waiting.connections[self] = None
        self._await(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.connections.pop(self, None)
        self._arrived()
        self._ahead.clear()
        self._count()
        self.pipeline.clear()
        if self._running is not None:  # uvicorn notifies only the last one
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        state = cycle.scope["state"]
        state[SPARE], state[END] = self._make_evictable, self.transport.abort
        state[CERTIFICATE] = self.transport.get_extra_info("peercert")
        super()._start_asgi_task(cycle, app)

    def _make_evictable(self) -> None:
        """A client that is slowed down must not keep its connection because of the delay."""
        self._waiting.connections[self] = None

    def pause_writing(self) -> None:
        """The client does not read.  If it has sent no token, it must not keep its connection by not
        reading."""
        super().pause_writing()
        if self._running is not None and self._running.scope["state"].get("known", OPEN).grant is None:
            self._waiting.connections[self] = None

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._running is not None and not self._running.response_complete:
            self._waiting.connections.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Parse data until a request has to wait for the answer to the previous one.

        A parsed request takes a hundred times its bytes, and uvicorn would read and parse everything that is
        available.
        """
        self._ahead += data
        if self._goes_on:
            self.flow.pause_reading()
            self._count()
        else:
            self._parse()

    def _go_on(self) -> None:
        self._goes_on = False
        self._parse()

    def _parse(self) -> None:
        for _ in range(PIECES):
            if not self._ahead or self.pipeline or self.transport.is_closing():
                break
            piece = bytes(self._ahead[:PIECE])
            del self._ahead[:PIECE]
            self._parse_piece(piece)
        self._count()
        if self.transport.is_closing():
            return
        if self._ahead or self.pipeline:
            self.flow.pause_reading()
            if not self.pipeline and not self._goes_on:
                self._goes_on = True
                self.loop.call_soon(self._go_on)
        elif self._takes_more:
            self.flow.resume_reading()

    @property
    def _takes_more(self) -> bool:
        """Whether the current request has room for more of its body."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or len(cycle.body) <= HIGH_WATER_LIMIT

    def _count(self) -> None:
        """Count the bytes that wait."""
        Connection.all_ahead += len(self._ahead) - self._held
        self._held = len(self._ahead)
        if self._held and Connection.all_ahead > MAX_AHEAD:
            self.transport.abort()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over.  Data that the client sends before it has an answer is dropped."""
        self._ahead.clear()
        super().handle_websocket_upgrade()

    def _parse_piece(self, data: bytes) -> None:
        self._began = False
        self._beside += len(data)
        super().data_received(data)
        if not self._whole and self._head < 0 and self._beside > MAX_HEAD:
            self.transport.abort()
        if self._head < 0 or self._began or self.transport.is_closing():
            return
        self._head += len(data)
        if self._head > MAX_HEAD:
            self._refuse_head()

    def _refuse_head(self) -> None:
        self.transport.write(_TOO_LARGE + b"content-length: %d\r\n\r\n" % len(_ERROR) + _ERROR)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Handle malformed or oversized input.  It is not logged individually, because any client could fill
        the log."""
        if self._oversized:
            self._refuse_head()
            return
        self._waiting.malformed += 1
        self._waiting.last = str((self.client or ("",))[0])
        super().send_400_response(msg)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._began, self._whole = True, False
        self._head = 0
        if self._late is None:
            self._await(HEAD_S)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head < 0:
            return  # after the body: nobody reads it
        if len(self.headers) >= MAX_HEADERS:
            self._oversized = True
            raise HeadTooLarge
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._beside = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._beside = 0
        self._head = -1
        self._arrived()
        self._waiting.connections.pop(self, None)
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD:
            self._oversized = True
            raise HeadTooLarge
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._whole = True
        self._arrived()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # else the next one has begun
            self._waiting.connections[self] = None
        if not self._whole and not self.transport.is_closing():
            self._await(REST_S)
        self._parse()

    def _await(self, limit_s: float) -> None:
        self._arrived()
        self._late = self.loop.call_later(limit_s, self._expire)

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _expire(self) -> None:
        """Handle a timeout.  An earlier request may still be answered."""
        self._late = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._await(HEAD_S)
        elif not self.transport.is_closing():
            self.transport.close()
