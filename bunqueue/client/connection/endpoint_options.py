"""Where the engine is, as users say it."""

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
    """Of the server; 127.0.0.1 unless given."""
    port: int | str | None
    """Of the server; 6789 unless given."""
    token: str | None
    """The server's, if it wants one."""
    url: str | None
    """Instead of host and port: bunqueue://TOKEN@HOST:PORT, or bunqueues:// for TLS."""
    tls: Tls | None
    """True, an ssl.SSLContext or TlsOptions: encrypted, and the server's certificate is verified."""
    connection: ConnectionOptions | None
    embedded: bool
    """True: no server, but the engine in this process."""
    data_path: str | os.PathLike[str] | None
    """The file of an embedded engine; None: in memory."""
    codec: Codec | None
    """How payloads are compressed and encrypted before they are sent, see `Codec`."""


def endpoint_of(options: EndpointOptions) -> Endpoint:
    """OptionError for options that exclude each other, and for unknown ones."""
    for name in options:
        if name not in EndpointOptions.__annotations__:
            raise unknown_option("this", name, EndpointOptions.__annotations__)
    return endpoint(**options)
