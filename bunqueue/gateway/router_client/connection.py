"""One connection to the router, over its private Unix socket: frames out, replies matched to requests."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.protocol.framing import HEADER, FrameSplitter, frame

PROTOCOL = 3  # the dialect of the answers that HTTP gives
HELLO_S = 10.0  # for the answer to the first words


class RouterGone(Exception):
    """The connection ended, or there is none."""

    def __init__(self, *, asked: bool) -> None:
        """``asked``: the command had been sent, so it may have been carried out."""
        super().__init__("the connection to the router was lost")
        self.asked = asked


class _Head(Struct, rename="camel", gc=False):
    req_id: int | None = None


_encode = Encoder().encode
_head = Decoder(_Head).decode


class RouterConnection(asyncio.Protocol):
    """A connection with pipelining.  Replies are MessagePack maps, as they came."""

    def __init__(self) -> None:
        self.closed = False
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._last = 0  # number of a request
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, path: str) -> RouterConnection:
        """Connect and agree on the protocol.  RouterGone if nobody is there."""
        loop = asyncio.get_running_loop()
        try:
            _, line = await loop.create_unix_connection(cls, path)
        except OSError:
            raise RouterGone(asked=False) from None
        try:
            async with asyncio.timeout(HELLO_S):
                await line.ask({"cmd": "Hello", "protocolVersion": PROTOCOL})
        except (RouterGone, TimeoutError):
            line.close()
            raise RouterGone(asked=False) from None
        except BaseException:  # whoever wanted it has gone
            line.close()
            raise
        return line

    @property
    def load(self) -> int:
        """Requests under way."""
        return len(self._pending)

    def ask(self, command: dict[str, Any]) -> asyncio.Future[bytes]:
        """Send a command.  Raises what cannot be encoded raises; the future may raise RouterGone.

        A future that is cancelled does not call the command back.
        """
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._last += 1
        data = frame(_encode({**command, "reqId": self._last}))
        if self._transport is None or self.closed:
            future.set_exception(RouterGone(asked=False))
            return future
        self._pending[self._last] = future
        self._transport.write(data)
        return future

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one only in what it does

    def data_received(self, data: bytes) -> None:
        for found in self._splitter.feed(data):
            payload = found[HEADER:]
            try:
                number = _head(payload).req_id
            except MsgspecError:
                number = None
            future = self._pending.pop(number or 0, None)
            if future is not None and not future.done():
                future.set_result(payload)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        for future in self._pending.values():
            if not future.done():
                future.set_exception(RouterGone(asked=True))
        self._pending.clear()

    def close(self) -> None:
        """End it; what is parked at a shard for it is given up there."""
        self.closed = True
        if self._transport is not None:
            self._transport.close()
