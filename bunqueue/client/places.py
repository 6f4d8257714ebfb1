"""Where the engine is, as users say it."""

from __future__ import annotations

import os
from typing import TypedDict

from bunqueue.client import checks
from bunqueue.client.connection_options import ConnectionOptions
from bunqueue.client.transport import HOST, PORT, Endpoint


class Place(TypedDict, total=False):
    """A server, or the engine in this process."""

    host: str
    """Of the server; 127.0.0.1 unless given."""
    port: int | str
    """Of the server; 6789 unless given."""
    token: str | None
    """The server's, if it wants one."""
    connection: ConnectionOptions | None
    embedded: bool
    """True: no server, but the engine in this process."""
    data_path: str | os.PathLike[str] | None
    """The file of an embedded engine; None: in memory."""


def endpoint_of(place: Place) -> Endpoint:
    """OptionError for what does not go together, TypeError for what there is not."""
    return _endpoint(**place)


def _endpoint(
    *,
    host: str = HOST,
    port: int | str = PORT,
    token: str | None = None,
    connection: ConnectionOptions | None = None,
    embedded: bool = False,
    data_path: str | os.PathLike[str] | None = None,
) -> Endpoint:
    return checks.endpoint(host, port, token, embedded, data_path, connection)
