"""The interface that carries commands: the pool of connections to a server, or the engine in this process.

Everything above this interface is the same for both.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from msgspec import Struct

from bunqueue.client import engine_override
from bunqueue.client.codecs.codec import Codec
from bunqueue.client.connection.options import ConnectionOptions
from bunqueue.client.connection.tls import TlsOptions, client_context

HOST, PORT = "127.0.0.1", 6789
"""The default address of a server."""


FrameHandler = Callable[[bytes | None], None]
"""Receives the payload of each unsolicited frame; None: the connection ended, and its
subscriptions with it.
"""


class Transport(Protocol):
    """One session with an engine. It belongs to the event loop that opened it."""

    async def call(self, command: Struct, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Execute one command and return its reply: the MessagePack map without the length prefix.

        `command` is an instance of a class of `protocol.commands.COMMANDS`; the transport sets its `req_id`.
        Error replies (`ok: false`) are returned like others. `timeout` is in seconds, on top of the time a
        long poll may be parked; None means the transport's default.

        Any number of calls may overlap, and each may be cancelled; a cancelled command may still be executed.

        Raises ConnectionLost, ConnectTimeout, CommandTimeout, AuthError, ShardUnavailable or PayloadError.
        """

    def listen(self, handler: FrameHandler | None) -> None:
        """Have unsolicited frames, which are events and notices, passed to ``handler`` in the event loop.

        `handler` must not raise. Only a private session may listen. Commands that subscribe to something have
        to use that same session, with a `pool_size` of 1 so that everything shares one connection.
        """

    async def close(self) -> None:
        """End the session; safe to call twice.

        To the engine that is a client's disconnect: its parked polls take no more jobs, and jobs pulled in
        this session whose lock was never renewed return to their queues at once.
        """


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the engine is: a server's address, or the data path of one inside this process."""

    host: str = HOST
    port: int = PORT
    token: str | None = field(default=None, repr=False)
    embedded: bool = False
    data_path: str | None = None
    options: ConnectionOptions = field(default_factory=ConnectionOptions)
    tls: ssl.SSLContext | TlsOptions | None = None
    others: tuple[tuple[str, int], ...] = ()
    """More addresses of the same server: the other hosts of a cluster."""
    codec: Codec | None = field(default=None, repr=False, compare=False)
    """How payloads are encoded in transit. Users with different codecs share connections."""
    address: str = field(init=False, repr=False, compare=False)
    """How messages name it."""

    def __post_init__(self) -> None:
        address = ",".join(_shown(host, port) for host, port in ((self.host, self.port), *self.others))
        if self.embedded:
            address = f"embedded engine {self.data_path or 'in memory'}"
        object.__setattr__(self, "address", address)

    @property
    def count(self) -> int:
        """The number of addresses."""
        return 1 + len(self.others)

    def at(self, number: int) -> Endpoint:
        """The endpoint with only its address `number`, modulo their count."""
        if not self.others:
            return self
        host, port = ((self.host, self.port), *self.others)[number % self.count]
        return replace(self, host=host, port=port, others=())

    def tls_context(self) -> ssl.SSLContext | None:
        """The context for sockets. Raises OptionError when a file can no longer be used."""
        return None if self.tls is None else client_context(self.tls)

    @property
    def server_name(self) -> str | None:
        """The name that the server's certificate must have; None without TLS."""
        if self.tls is None:
            return None
        return (isinstance(self.tls, TlsOptions) and self.tls.server_name) or self.host

    async def open(self, *, private: bool = False, known: bool = False) -> Transport:
        """A new session; sessions share connections unless they are `private`.

        Only closing a private session is certain to end the connection, and to return the jobs pulled over
        it. `known`: the server was reached before, so wait while it refuses connections.
        """
        transport = await self._open(private=private, known=known)
        if self.codec is None:
            return transport
        if engine_override.current is not None:
            engine_override.current.meet(self.codec)
        from bunqueue.client.codecs.transport import CodedTransport

        return CodedTransport(transport, self.codec)

    async def _open(self, *, private: bool, known: bool) -> Transport:
        if engine_override.current is not None:
            return await engine_override.current.open()
        if self.embedded:
            from bunqueue.embedded import shared_transport

            transport: Transport = await shared_transport(self.data_path)
            return transport
        from bunqueue.client.connection.pool import Pool
        from bunqueue.client.connection.shared_pools import lease

        # A private session belongs to a worker, which itself logs that the server is unavailable.
        return Pool(self, quiet=True) if private else lease(self, known=known)
