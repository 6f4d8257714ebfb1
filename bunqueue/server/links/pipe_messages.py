"""What the router and the processes that it starts send each other over pipes: JSON, a line each."""

from __future__ import annotations

from msgspec import Struct

LEASE_S = 4.0
"""An owner, or a host, whose heartbeat has not changed for so long is dead."""


class OwnerObservation(Struct, frozen=True):
    """What a host knows of the owner of a shard that it follows."""

    shard: int
    position: int  # of this host's copy
    token: str
    epoch: int
    beat: int
    unchanged_s: float  # for how long the heartbeat has been that


class ShardStart(Struct):
    """What a shard's process is started with."""

    shard: int
    shards: int
    socket: str
    secret: str
    epoch: str
    settings: str
    observed: OwnerObservation | None = None  # the owner until now, if this host has followed it
    routers: str = ""  # the path of the socket at which further routers dial it; "": without any
    in_cluster: bool = False


class FollowerStart(Struct):
    """What the follower is started with."""

    host: str
    settings: str


class Orders(Struct):
    """What to follow from now on."""

    follow: list[int]
    number: int = 0  # of the order


class Report(Struct):
    """What the follower reports after each look: the shards whose files are open."""

    observed: list[OwnerObservation]
    away_s: float = 0.0  # for how long the store has not answered
    order: int = 0  # the number of the order that was carried out
