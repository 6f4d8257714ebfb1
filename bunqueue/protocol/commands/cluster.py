"""Hosts that share the shards of one store.  Servers without a cluster refuse these commands."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from .base import Command, Reply, Route, command

HostName = Annotated[str, Meta(min_length=1, max_length=63)]
LAG_LIMIT = 1_000  # records by which a copy may be behind under load
ShardNumber = Annotated[int, Meta(ge=0, le=63)]


class HostView(Struct, rename="camel", gc=False):
    """A host.  ``alive``: it has given a sign of life lately; ``reached``: the host that answers has a
    connection to it.  ``owns`` and ``follows`` count shards.  ``beatAge`` is the time since its last sign of
    life, in ms, and ``load`` how many processes of its machine want a core, per core, in the mean of a
    minute: beyond 1 some have to wait.  Both are null while they are not known."""

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
    """A copy of a shard, and by how many records it is behind."""

    host: str
    position: int
    behind: int


class PlaceView(Struct, rename="camel", gc=False):
    """Where a shard is.  ``owner`` and ``home`` are names of hosts, "" without one: a shard moves while they
    differ.  ``wanted`` is the host that an operator has moved it to, where it stays while that host lives.
    ``position`` is that of the last record of its log, and ``snapshot`` that of its newest snapshot."""

    shard: int
    owner: str
    home: str
    wanted: str
    epoch: int
    position: int
    snapshot: int
    copies: list[CopyView]


class ClusterView(Struct, rename="camel", gc=False):
    """``host`` is the one that answers; ``error`` says why it cannot read the store.  A copy that is behind
    by ``lagLimit`` records or more makes a take-over take longer."""

    cluster: str
    host: str
    hosts: list[HostView]
    shards: list[PlaceView]
    error: str | None = None
    lag_limit: int = LAG_LIMIT


class ClusterReply(Reply, kw_only=True):
    data: ClusterView


@command(Route.ROUTER, ClusterReply)
class ClusterStatus(Command, tag="ClusterStatus"):
    """Get the hosts of the cluster, and where each shard is."""


@command(Route.ROUTER, ClusterReply, writes=True, repeatable=True, heavy=True)
class ClusterDrain(Command, tag="ClusterDrain"):
    """Have all shards of a host move to others, before it is replaced.  With ``draining`` false it may own
    some again."""

    host: HostName
    draining: bool = True


@command(Route.ROUTER, ClusterReply, writes=True, repeatable=True, heavy=True)
class ClusterMove(Command, tag="ClusterMove"):
    """Have a shard move to a host, and stay there until ClusterRebalance."""

    shard: ShardNumber
    host: HostName


@command(Route.ROUTER, ClusterReply, writes=True, repeatable=True, heavy=True)
class ClusterRebalance(Command, tag="ClusterRebalance"):
    """Forget where shards were moved to: all hosts get their share."""


@command(Route.ROUTER, ClusterReply, writes=True, repeatable=True, heavy=True)
class ClusterForget(Command, tag="ClusterForget"):
    """Remove a host that is dead, and will not come back under its name."""

    host: HostName
