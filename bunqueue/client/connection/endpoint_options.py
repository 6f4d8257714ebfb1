"""The options with which users say where the engine is."""

from __future__ import annotations

import os
from typing import TypedDict

from bunqueue.client.codecs.codec import Codec
from bunqueue.client.connection.address import endpoint
from bunqueue.client.connection.options import ConnectionOptions, unknown_option
from bunqueue.client.connection.tls import Tls
from bunqueue.client.connection.transport import Endpoint


class EndpointOptions(TypedDict, total=False):
    """A server, or the engine in this process."""

    host: str | None
    """The address of the server; 127.0.0.1 unless given."""
    port: int | str | None
    """The port of the server; 6789 unless given."""
    token: str | None
    """The server's token, if it requires one."""
    url: str | None
    """In place of host and port: bunqueue://TOKEN@HOST:PORT, or bunqueues:// for TLS."""
    tls: Tls | None
    """True, an ssl.SSLContext or TlsOptions: use TLS, and verify the server's certificate."""
    connection: ConnectionOptions | None
    embedded: bool
    """True: use the engine in this process instead of a server."""
    data_path: str | os.PathLike[str] | None
    """The file of an embedded engine; None: in memory."""
    codec: Codec | None
    """How payloads are compressed and encrypted before they are sent; see `Codec`."""


def endpoint_of(options: EndpointOptions) -> Endpoint:
    """The endpoint for `options`. Raises OptionError for unknown options and for options that conflict."""
    for name in options:
        if name not in EndpointOptions.__annotations__:
            raise unknown_option("this", name, EndpointOptions.__annotations__)
    return endpoint(**options)
