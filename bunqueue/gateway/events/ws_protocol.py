"""Bounds on the bytes that WebSockets buffer: per unauthenticated socket, and for all sockets combined.

uvicorn's own protocol buffers whole messages before the application sees them, from any client.
"""

from __future__ import annotations

from typing import Any

from uvicorn._types import ASGIReceiveEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from ..http.access import CERTIFICATE
from ..http.connections import MAX_HEAD

MAX_UNKNOWN = 64 * 1024  # bytes from a socket that has sent no token: one message, in any number of frames
MAX_RECEIVED = 256 * 1024 * 1024  # bytes of incomplete or unprocessed messages, of all sockets
PIECE = 16 * 1024  # bytes parsed in one turn of the event loop: thousands of frames, if they are small
CLOSE_S = 1.0  # for the close handshake, also of a socket without a token


class SocketConnection(WebSocketsSansIOProtocol):
    """One WebSocket.  It is unauthenticated until the application calls ``scope["state"]["admit"]``."""

    received = 0  # bytes of all sockets: see MAX_RECEIVED

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._known = False
        self._kept = 0  # bytes since the last message was processed; without a token, since the beginning
        self._unparsed = bytearray()
        self._goes_on = False  # whether parsing resumes in the next turn
        self.conn.max_message_size = MAX_UNKNOWN
        self.close_timeout = CLOSE_S

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            state = self.scope["state"]
            state["admit"] = self.admit
            state[CERTIFICATE] = self.transport.get_extra_info("peercert")

    def admit(self) -> None:
        """Lift the limits: the socket has sent a token, or needs none."""
        self._known = True
        self.conn.max_message_size = self.config.ws_max_size

    def data_received(self, data: bytes) -> None:
        self._kept += len(data)
        SocketConnection.received += len(data)
        too_much = not self._known and self._kept > MAX_UNKNOWN + MAX_HEAD  # it starts with the request
        if too_much or SocketConnection.received > MAX_RECEIVED:
            self.transport.abort()
        else:
            self._unparsed += data
            if not self._goes_on:
                self._parse()

    def _parse(self) -> None:
        """Parse a piece.  Other connections get their turns before the next one, and nothing more is read
        until then."""
        self._goes_on = False
        if self.transport.is_closing():
            return
        piece = bytes(self._unparsed[:PIECE])
        del self._unparsed[:PIECE]
        super().data_received(piece)
        if self.transport.is_closing():
            return
        if self._unparsed:
            self._goes_on = True
            self.transport.pause_reading()
            self.loop.call_soon(self._parse)
        elif not self.read_paused:
            self.transport.resume_reading()

    def handle_cont(self, event: Frame) -> None:
        if self._known:
            super().handle_cont(event)
        else:
            self.transport.abort()

    def handle_parser_exception(self) -> None:
        if self._known:
            super().handle_parser_exception()
        else:
            self.transport.abort()

    async def receive(self) -> ASGIReceiveEvent:
        message = await super().receive()
        if self._known and message["type"] == "websocket.receive":
            self._give_back()
        return message

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_back()
        super().connection_lost(exc)

    def _give_back(self) -> None:
        SocketConnection.received -= self._kept
        self._kept = 0
