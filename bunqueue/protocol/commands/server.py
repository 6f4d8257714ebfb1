"""The connection and the server as a whole: Hello, Auth, Ping, ListQueues, Stats."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from bunqueue.protocol.commands.base import Command, Merge, Reply, Route, command


class HelloReply(Reply, kw_only=True):
    protocol_version: int
    capabilities: list[str]
    server: str
    version: str


class Pong(Struct, gc=False):
    pong: bool
    time: int | float  # epoch ms


class PingReply(Reply, kw_only=True):
    data: Pong


class QueueInfo(Struct, gc=False):
    name: str
    waiting: int
    delayed: int
    active: int
    paused: bool


class ListQueuesReply(Reply, kw_only=True):
    """Version 2: QueueInfo maps; version 3: names only."""

    queues: Raw  # a list, encoded entry by entry


class ServerStats(Struct, rename="camel", gc=False):
    """Version 2 says queued and processing, version 3 waiting and active; both are sent."""

    queued: int
    processing: int
    waiting: int
    active: int
    delayed: int
    dlq: int
    completed: int
    failed: int
    uptime: float  # ms
    push_per_sec: float
    pull_per_sec: float


class StatsReply(Reply, kw_only=True):
    stats: ServerStats


@command(Route.ROUTER, HelloReply)
class Hello(Command, tag="Hello", omit_defaults=False):
    """Agree on a protocol version; 3 or more makes this a version-3 connection."""

    protocol_version: int = 2
    capabilities: Annotated[list[str], Meta(max_length=64)] | None = None


@command(Route.ROUTER)
class Auth(Command, tag="Auth"):
    """Authenticate this connection."""

    token: str


@command(Route.ROUTER, PingReply)
class Ping(Command, tag="Ping"):
    """Is anybody there?"""


@command(Route.ALL, ListQueuesReply, merge=Merge.CONCAT, heavy=True)
class ListQueues(Command, tag="ListQueues"):
    """All queues."""


@command(Route.ALL, StatsReply, merge=Merge.SUM, heavy=True)
class Stats(Command, tag="Stats"):
    """Numbers over the whole server."""
