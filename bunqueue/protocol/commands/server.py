"""The connection and the server as a whole: Hello, Auth, Ping, ListQueues, Stats."""

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.marks import QUEUES
from bunqueue.model.rights import ANYBODY, Verb
from bunqueue.protocol.commands.base import (
    LARGEST,
    Command,
    Merge,
    Ok,
    QueueOf,
    Reach,
    Reply,
    Route,
    Tag,
    command,
    http,
)

OLDEST, NEWEST = 2, 3  # protocol versions; also the kinds of command envelopes
IDEMPOTENT_PUSH = "idempotent-push"
"""The capability to recognize repeated pushes by their `idempotencyKey`; announced only if a client asks."""
CAPABILITIES = {2: ["pipelining"], 3: ["pipelining", "separate-job-name"]}


class HelloReply(Reply, kw_only=True):
    protocol_version: int
    capabilities: list[str]
    server: str
    version: str


class Pong(Struct, gc=False):
    pong: bool
    time: int | float  # epoch ms
    router: int | UnsetType = UNSET  # which of several routers answers: `bunqueue start --routers`


class PingReply(Reply, kw_only=True):
    data: Pong


class QueueInfo(Struct, gc=False):
    name: QueueOf
    waiting: int
    delayed: int
    active: int
    paused: bool


class ListQueuesReply(Reply, kw_only=True):
    """``queues`` holds QueueInfo maps in version 2, and only names in version 3 unless ``details`` are asked
    for."""

    queues: Annotated[Raw, QUEUES]  # a list, encoded entry by entry


class ServerStats(Struct, rename="camel", gc=False):
    """Clients of version 2 read queued and processing, those of version 3 waiting and active; all are
    sent."""

    queued: int
    processing: int
    waiting: int
    active: int
    delayed: int
    dlq: int
    completed: int
    failed: int
    uptime: Annotated[float, LARGEST]  # ms
    push_per_sec: float
    pull_per_sec: float


class StatsReply(Reply, kw_only=True):
    stats: ServerStats


@command(Route.ROUTER, ANYBODY, of_connection=True)
class Hello(Command[HelloReply], tag="Hello", omit_defaults=False):
    """Agree on a protocol version; 3 or more makes this a version-3 connection.

    If a client names the capability ``idempotent-push`` and the server has it, it is in the answer.
    """

    protocol_version: int = 2
    capabilities: Annotated[list[str], Meta(max_length=64)] | None = None


def agreement(hello: Hello, version: str) -> HelloReply:
    """The answer to a Hello from a server of this ``version``."""
    chosen = min(max(hello.protocol_version, OLDEST), NEWEST)
    wanted = IDEMPOTENT_PUSH in (hello.capabilities or ())
    return HelloReply(
        protocol_version=chosen,
        capabilities=[*CAPABILITIES[chosen], *([IDEMPOTENT_PUSH] if wanted else [])],
        server="bunqueue",
        version=version,
    )


@command(Route.ROUTER, ANYBODY, of_connection=True)
class Auth(Command[Ok], tag="Auth"):
    """Authenticate this connection."""

    token: str


@command(Route.ROUTER, ANYBODY, internal=True, of_connection=True)
class ActFor(Command[Ok], tag="ActFor"):
    """What the gateway sends over this connection is limited to a scope: see `bunqueue.model.scope`."""

    scope: bytes


@http("GET /ping", Tag.SERVER)
@command(Route.ROUTER, ANYBODY)
class Ping(Command[PingReply], tag="Ping"):
    """Check that the server answers."""


@http("GET /queue-names", Tag.SERVER)
@command(Route.ALL, Verb.SEE, merge=Merge.CONCAT, heavy=True, reach=Reach.ALLOWED)
class ListQueues(Command[ListQueuesReply], tag="ListQueues"):
    """List all queues; with ``details``, version 3 gets the maps of version 2."""

    details: bool = False


@http("GET /stats", Tag.SERVER)
@command(Route.ALL, Verb.SEE, merge=Merge.SUM, heavy=True, reach=Reach.ALLOWED)
class Stats(Command[StatsReply], tag="Stats"):
    """Get the counts and rates of the whole server."""
