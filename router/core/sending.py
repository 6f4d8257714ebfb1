"""Sends the commands of a client to a shard, with the scope of the client if it has one.

The scope goes with every envelope, so a shard never knows less of it than the router: also after a restart,
on another host, and for commands that have waited.
"""

from __future__ import annotations

from collections.abc import Sequence

from bunqueue.model.scope import Scope
from bunqueue.protocol.framing import frame
from bunqueue.server.links.shard_protocol import SCOPED

from .ports import Buffer, Endpoint


def send(link: Endpoint, conn: int, kind: int, scope: Scope | None, frames: Sequence[Buffer]) -> None:
    """Send whole frames of one connection, or ticket."""
    if scope is None:
        link.send(conn, kind, frames)
    else:
        link.send(conn, kind | SCOPED, [frame(scope.wire), *frames])
