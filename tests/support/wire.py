"""A client of the wire protocol that shares nothing with the server: asyncio, and the ``msgpack`` package.

It has no opinions: what it is told to send it sends, and replies are matched by ``reqId`` alone.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self, cast

import msgpack

from .waiting import PATIENCE_S

REPLY_S = PATIENCE_S  # a reply that takes longer is taken for lost
LENGTH = struct.Struct(">I")

Reply = dict[str, Any]
Address = tuple[str, int]


class ConnectionEnded(Exception):
    """The connection is gone, and with it the replies that were still to come."""


def now_ms() -> float:
    """The wall clock, which server and tests share."""
    return time.time_ns() / 1e6


def pack(message: object) -> bytes:
    """A message as a frame."""
    payload: bytes = msgpack.packb(message)
    return LENGTH.pack(len(payload)) + payload


def frame(payload: bytes) -> bytes:
    """Any bytes as a frame."""
    return LENGTH.pack(len(payload)) + payload


def unpack(payload: bytes) -> Any:
    return msgpack.unpackb(payload, strict_map_key=False, max_str_len=1 << 27, max_bin_len=1 << 27)


class Wire(asyncio.Protocol):
    """One connection.  Make it with `Wire.open`."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._last_id = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self.stray: asyncio.Queue[Any] = asyncio.Queue()  # what came without a reqId that we wait for
        self.ended = asyncio.Event()
        self.ended_at = 0.0  # wall clock, ms
        self.closing_at = 0.0  # when we began to close it, if it was we who did
        self.largest = 0  # bytes of the largest frame that came
        self.received = 0  # frames
        self.reset: Exception | None = None

    @classmethod
    async def open(cls, address: Address, *, deaf: bool = False, source: str = "") -> Self:
        """Connect, perhaps from that address.  OSError when nobody listens; with ``deaf`` nothing is ever
        read."""
        loop = asyncio.get_running_loop()
        local = (source, 0) if source else None
        async with asyncio.timeout(REPLY_S):
            transport, wire = await loop.create_connection(cls, *address, local_addr=local)
        if transport.get_extra_info("sockname") == transport.get_extra_info("peername"):
            transport.abort()  # TCP connected to itself: no server, but a free port below our feet
            raise ConnectionRefusedError("connected to itself")
        if deaf:
            transport.pause_reading()
        return wire

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.reset = exc
        self.ended_at = now_ms()
        self.ended.set()
        self._writable.set()
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(ConnectionEnded())
                reply.exception()  # nobody need look at it

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 4:
            (length,) = LENGTH.unpack_from(buffer, start)
            end = start + 4 + length
            if len(buffer) < end:
                break
            self._take(bytes(buffer[start + 4 : end]))
            start = end
        if start:
            del buffer[:start]

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _take(self, payload: bytes) -> None:
        self.received += 1
        self.largest = max(self.largest, len(payload))
        message = unpack(payload)
        number = message.get("reqId") if isinstance(message, dict) else None
        waiting = self._waiting.pop(number, None) if isinstance(number, int) else None
        if waiting is None:
            self.stray.put_nowait(message)
        elif not waiting.done():
            waiting.set_result(message)

    # What tests do

    @property
    def alive(self) -> bool:
        return not self.ended.is_set()

    def send(self, cmd: str, **fields: Any) -> asyncio.Future[Reply]:
        """Send a command; its reply comes as a future.  ConnectionEnded in it when none can come."""
        (reply,) = self.send_many([{"cmd": cmd, **fields}])
        return reply

    def send_many(self, commands: Iterable[dict[str, Any]]) -> list[asyncio.Future[Reply]]:
        """Send commands in one write."""
        loop = asyncio.get_running_loop()
        replies, frames = [], []
        for command in commands:
            reply: asyncio.Future[Reply] = loop.create_future()
            replies.append(reply)
            if self.ended.is_set() or self._transport.is_closing():
                reply.set_exception(ConnectionEnded())
                reply.exception()
                continue
            self._last_id += 1
            self._waiting[self._last_id] = reply
            frames.append(pack(command | {"reqId": self._last_id}))
        self._transport.write(b"".join(frames))
        return replies

    async def call(self, cmd: str, **fields: Any) -> Reply:
        """Send a command and wait for its reply."""
        return await answer_of(self.send(cmd, **fields), cmd)

    async def ok(self, cmd: str, **fields: Any) -> Reply:
        """`call` for what must succeed."""
        reply = await self.call(cmd, **fields)
        assert reply.get("ok") is True, f"{cmd} {fields!r:.200}: {reply}"
        return reply

    async def error(self, cmd: str, **fields: Any) -> str:
        """`call` for what must be refused; the error's text."""
        reply = await self.call(cmd, **fields)
        assert reply.get("ok") is False, f"{cmd} {fields!r:.200} was accepted: {reply!r:.200}"
        return cast(str, reply["error"])

    async def next_stray(self) -> Any:
        """The next message that answers nothing of `send`."""
        async with asyncio.timeout(REPLY_S):
            return await self.stray.get()

    def write(self, data: bytes) -> None:
        """Send any bytes."""
        self._transport.write(data)

    def pause_reading(self) -> None:
        """Leave in the kernel what comes."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    async def written(self) -> None:
        """Wait until the transport takes more, or the connection has ended."""
        await self._writable.wait()

    def end_writing(self) -> None:
        """Close our direction only."""
        self._transport.write_eof()

    async def until_ended(self) -> None:
        async with asyncio.timeout(REPLY_S):
            await self.ended.wait()

    async def close(self) -> None:
        """Close and wait until it is closed."""
        if not self._transport.is_reading():
            self.abort()
        self._begin_closing()
        self._transport.close()
        await self.until_ended()

    def abort(self) -> None:
        """Close without waiting for anything to be sent."""
        self._begin_closing()
        if self.alive:
            self._transport.abort()

    def _begin_closing(self) -> None:
        if self.alive and not self.closing_at:
            self.closing_at = now_ms()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
        await self.until_ended()


async def at_router(address: Address, router: int, token: str = "") -> Wire:
    """A connection that this one of the host's routers has, with a token if there is one."""
    others: list[Wire] = []
    try:
        while True:
            wire = await Wire.open(address)
            try:
                if token:
                    await wire.ok("Auth", token=token)
                if (await wire.ok("Ping"))["data"]["router"] == router:
                    return wire
            except ConnectionEnded:  # that router is just ending
                pass
            others.append(wire)  # else the next one might be where this was
    finally:
        for other in others:
            await other.close()


async def answer_of(reply: asyncio.Future[Reply], what: str) -> Reply:
    """Wait for a reply; an AssertionError when it never comes."""
    try:
        async with asyncio.timeout(REPLY_S):
            return await reply
    except TimeoutError:
        raise AssertionError(f"no reply to {what} within {REPLY_S:g} s") from None
