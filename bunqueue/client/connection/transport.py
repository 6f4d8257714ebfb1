"""What carries commands: the pool of connections to a server, or the engine inside this process.

Everything above this seam is the same for both.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from msgspec import Struct

from bunqueue.client import substitute
from bunqueue.client.codecs.codec import Codec
from bunqueue.client.connection.options import ConnectionOptions
from bunqueue.client.connection.tls import TlsOptions, client_context

HOST, PORT = "127.0.0.1", 6789
"""Where a server is unless one says otherwise."""


Hear = Callable[[bytes | None], None]
"""Gets the payload of each frame that nobody asked for; None: the connection ended, and with it what was
subscribed to over it."""


class Transport(Protocol):
    """One session with an engine. It belongs to the event loop in which it was opened."""

    async def call(self, command: Struct, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Carry out one command and give its reply: the MessagePack map without a length in front.

        `command` is an instance of a class of `protocol.commands.COMMANDS`; its `req_id` is the transport's
        to set. Error replies (`ok: false`) are returned like others. `timeout` is in seconds and counts on
        top of the time a long poll may be parked; None means the transport's default.

        Calls may overlap in any number, and be cancelled; a cancelled command may still be carried out.

        Raises ConnectionLost, ConnectTimeout, CommandTimeout, AuthError, ShardUnavailable or PayloadError.
        """

    def listen(self, hear: Hear | None) -> None:
        """Have what comes unasked, events and notices, given to ``hear``, in the event loop.

        It must not raise. Only a private session may listen, and commands that subscribe to something go over
        that same session; with a `pool_size` of 1, so that all is one connection.
        """

    async def close(self) -> None:
        """End the session; safe to call twice.

        For the engine that is a client's disconnect: parked polls take nothing any more, and jobs pulled in
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
    """How payloads are encoded on their way; connections are shared with users that have another one."""
    address: str = field(init=False, repr=False, compare=False)
    """For messages."""

    def __post_init__(self) -> None:
        address = ",".join(_shown(host, port) for host, port in ((self.host, self.port), *self.others))
        if self.embedded:
            address = f"embedded engine {self.data_path or 'in memory'}"
        object.__setattr__(self, "address", address)

    @property
    def count(self) -> int:
        """How many addresses there are."""
        return 1 + len(self.others)

    def at(self, number: int) -> Endpoint:
        """One of its addresses alone; they come round again."""
        if not self.others:
            return self
        host, port = ((self.host, self.port), *self.others)[number % self.count]
        return replace(self, host=host, port=port, others=())

    def tls_context(self) -> ssl.SSLContext | None:
        """What to wrap sockets with. Raises OptionError when a file cannot be used any more."""
        return None if self.tls is None else client_context(self.tls)

    @property
    def server_name(self) -> str | None:
        """The name that the server's certificate must have; None without TLS."""
        if self.tls is None:
            return None
        return (isinstance(self.tls, TlsOptions) and self.tls.server_name) or self.host

    async def open(self, *, private: bool = False, known: bool = False) -> Transport:
        """A new session; several share connections unless one is `private`.

        Only a private session's `close` ends the connection for certain, and with it what was pulled there.
        `known`: the server was reached before, so while it refuses connections it is waited for.
        """
        transport = await self._open(private=private, known=known)
        if self.codec is None:
            return transport
        if substitute.current is not None:
            substitute.current.meet(self.codec)
        from bunqueue.client.codecs.transport import CodedTransport

        return CodedTransport(transport, self.codec)

    async def _open(self, *, private: bool, known: bool) -> Transport:
        if substitute.current is not None:
            return await substitute.current.open()
        if self.embedded:
            from bunqueue.embedded import shared_transport

            transport: Transport = await shared_transport(self.data_path)
            return transport
        from bunqueue.client.connection.pool import Pool
        from bunqueue.client.connection.shared_pools import lease

        # A private session is a worker's, which logs itself that the server is not there.
        return Pool(self, quiet=True) if private else lease(self, known=known)
