"""One connection to the router, over its private Unix socket, for commands that are maps."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.client.connection.wire import WireConnection, WireRequest, next_number
from bunqueue.model.scope import Scope
from bunqueue.protocol.commands.server import NEWEST
from bunqueue.protocol.framing import frame

PROTOCOL = NEWEST  # the protocol version of the answers that HTTP gives
HELLO_S = 10.0  # for the answer to Hello


class RouterDisconnected(Exception):
    """The connection has ended, or there is no connection."""

    def __init__(self, *, asked: bool) -> None:
        """``asked``: the command had been sent, so it may have been carried out."""
        super().__init__("the connection to the router was lost")
        self.asked = asked


class _Answer(Struct):
    """Whether a command was carried out."""

    ok: bool = False


_encode = Encoder().encode
_decode = Decoder(_Answer).decode


class RouterConnection:
    """Host of a connection. Replies are raw MessagePack maps. The caller sets the timeout."""

    def __init__(self) -> None:
        self._wire: WireConnection[WireRequest] = WireConnection(self, "the router")

    @classmethod
    async def open(cls, path: str, scope: Scope | None = None) -> RouterConnection:
        """Connect, agree on the protocol, and limit what follows to a scope.  Raises RouterGone if the router
        does not answer."""
        found = cls()
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: found._wire, path)
        except OSError:
            raise RouterDisconnected(asked=False) from None
        try:
            async with asyncio.timeout(HELLO_S):
                await found.ask({"cmd": "Hello", "protocolVersion": PROTOCOL})
                if scope is not None:
                    limited = await found.ask({"cmd": "ActFor", "scope": scope.wire})
                    if _decode(limited).ok is not True:
                        raise RouterDisconnected(asked=False)
        except (RouterDisconnected, TimeoutError):
            found.close()
            raise RouterDisconnected(asked=False) from None
        except BaseException:  # the caller was cancelled or failed
            found.close()
            raise
        return found

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._wire.closed

    @property
    def load(self) -> int:
        """The number of requests in progress."""
        return len(self._wire.pending)

    def ask(self, command: dict[str, Any]) -> asyncio.Future[bytes]:
        """Send a command.  Raises the encoder's errors.  The future may raise RouterGone.

        Cancelling the future does not withdraw the command.
        """
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        number = next_number()
        request = WireRequest(number, frame(_encode({**command, "reqId": number})), future, inf)
        if self._wire.closed:
            future.set_exception(RouterDisconnected(asked=False))
        else:
            self._wire.send(request)
        return future

    def close(self) -> None:
        """Close the connection.  Commands that are parked at a shard for it are dropped there."""
        self._wire.shut()

    # -- Host

    def watch(self, deadline: float) -> None:
        """Do nothing: requests have no deadline here."""

    def answered(self, connection: object) -> None:
        """Do nothing: no request waits for room."""

    def on_frame(self, payload: bytes) -> None:
        """Do nothing: these connections subscribe to nothing."""

    def unavailable(self, request: WireRequest, payload: bytes) -> None:
        """Pass the reply on: the HTTP client decides whether to try again."""
        if not request.future.done():
            request.future.set_result(payload)

    def lost(self, connection: WireConnection[WireRequest], reason: str) -> None:
        """Fail all unanswered requests."""
        unsent = set(connection.unsent)
        for request in connection.pending.values():
            if not request.future.done():
                request.future.set_exception(RouterDisconnected(asked=request not in unsent))
        connection.pending.clear()
