"""Hosts that share the shards of one store.  Servers without a cluster refuse these commands."""

from typing import Annotated

from msgspec import Meta, Struct

from bunqueue.model.rights import Verb

from .base import Command, Data, Route, Tag, command, http

HostName = Annotated[str, Meta(min_length=1, max_length=63)]
LAG_LIMIT = 1_000  # records by which a copy may lag under load
ShardNumber = Annotated[int, Meta(ge=0, le=63)]


class HostView(Struct, rename="camel", gc=False):
    """A host.  ``alive``: it has sent a heartbeat recently; ``reached``: the answering host has a connection
    to it.  ``owns`` and ``follows`` count shards.  ``beatAge`` is the time since its last heartbeat in ms.
    ``load`` is the number of runnable processes per core, averaged over a minute: above 1, some must wait.
    Both are null while they are unknown."""

    name: str
    id: str
    link: str
    clients: str
    version: str
    alive: bool
    reached: bool
    draining: bool
    owns: int
    follows: int
    beat_age: float | None = None
    load: float | None = None


class CopyView(Struct, rename="camel", gc=False):
    """A copy of a shard, and how many records it lags behind."""

    host: str
    position: int
    behind: int


class PlaceView(Struct, rename="camel", gc=False):
    """Where a shard is.  ``owner`` and ``home`` are names of hosts, or ""; while they differ, it moves.
    ``wanted`` is the host that an operator has moved it to; it stays there while that host is alive.
    ``position`` is the position of the last record in its log, ``snapshot`` that of its newest snapshot."""

    shard: int
    owner: str
    home: str
    wanted: str
    epoch: int
    position: int
    snapshot: int
    copies: list[CopyView]


class ClusterView(Struct, rename="camel", gc=False):
    """``host`` is the answering host; ``error`` says why it cannot read the store.  If a copy lags by
    ``lagLimit`` records or more, a take-over takes longer."""

    cluster: str
    host: str
    hosts: list[HostView]
    shards: list[PlaceView]
    error: str | None = None
    lag_limit: int = LAG_LIMIT


@http("GET /cluster", Tag.CLUSTER)
@command(Route.ROUTER, Verb.SEE)
class ClusterStatus(Command[Data[ClusterView]], tag="ClusterStatus"):
    """Get the hosts of the cluster, and where each shard is."""


@http("POST /cluster/hosts/{host}/drain", Tag.CLUSTER)
@command(Route.ROUTER, Verb.ADMINISTER, writes=True, repeatable=True, heavy=True)
class ClusterDrain(Command[Data[ClusterView]], tag="ClusterDrain"):
    """Move all shards of a host to other hosts, before it is replaced.  With ``draining`` false, the host may
    own shards again."""

    host: HostName
    draining: bool = True


@http("PUT /cluster/shards/{shard}", Tag.CLUSTER)
@command(Route.ROUTER, Verb.ADMINISTER, writes=True, repeatable=True, heavy=True)
class ClusterMove(Command[Data[ClusterView]], tag="ClusterMove"):
    """Move a shard to a host, where it stays until ClusterRebalance."""

    shard: ShardNumber
    host: HostName


@http("POST /cluster/rebalance", Tag.CLUSTER)
@command(Route.ROUTER, Verb.ADMINISTER, writes=True, repeatable=True, heavy=True)
class ClusterRebalance(Command[Data[ClusterView]], tag="ClusterRebalance"):
    """Forget where shards were moved to, so that all hosts get their share again."""


@http("DELETE /cluster/hosts/{host}", Tag.CLUSTER)
@command(Route.ROUTER, Verb.ADMINISTER, writes=True, repeatable=True, heavy=True)
class ClusterForget(Command[Data[ClusterView]], tag="ClusterForget"):
    """Remove a host that is dead and will not come back under its name."""

    host: HostName
