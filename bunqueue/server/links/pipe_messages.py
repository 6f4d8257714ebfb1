"""What the router and the processes that it starts send each other over pipes: JSON, a line each."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

LEASE_S = 4.0
"""An owner, or a host, whose heartbeat has not changed for so long is dead."""


class OwnerObservation(Struct, frozen=True):
    """What a host knows of the owner of a shard that it follows."""

    shard: int
    position: int  # of this host's copy
    token: str
    epoch: int
    heartbeat: int
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
    view: str = ""  # on a standby: how commands are refused that would change something


class FollowerStart(Struct):
    """What the follower is started with."""

    host: str
    settings: str


class ShipperStart(Struct):
    """What the process that ships changes is started with."""

    settings: str
    address: str = ""  # where clients reach the server


class Shipping(Struct):
    """What that process reports each second."""

    until: int = 0  # all that was committed before is stored; epoch ms, 0: not known yet
    base: int = 0  # the moment of the newest backup; epoch ms
    pending: int = 0  # bytes that have changed and are not stored
    error: str = ""  # why nothing could be stored just now
    passed: bool = False  # another server has taken over: this one must end


class StandbyStart(Struct):
    """What the process that follows a primary is started with."""

    settings: str


class StandbyOrder(Struct):
    """What that process is to do, apart from following."""

    number: int
    what: Literal["apply", "claim", "finish"]
    force: bool = False


class Following(Struct):
    """What that process reports each second, and when it has carried out an order."""

    until: int = 0  # all that the primary had committed before is here; epoch ms, 0: nothing yet
    shown: int = 0  # the moment of the files, which the shards show; epoch ms
    behind_s: float = 0.0  # for how long nothing new has come
    silent_s: float = 0.0  # for how long the primary has given no sign of life
    stopped: bool = False  # the primary has ended cleanly
    primary: str = ""  # where clients reach it
    term: int = 0
    shards: int = 0  # of the folder; 0 until it is whole
    waiting: bool = False  # there is something to apply
    claimed: bool = False  # this server is the primary now, and has to finish its promotion
    anew: bool = False  # the primary has another number of shards: start again
    error: str = ""  # why nothing could be fetched just now
    order: int = 0  # the number of the last order
    failed: str = ""  # why that could not be carried out


class Orders(Struct):
    """What to follow from now on."""

    follow: list[int]
    number: int = 0  # of the order


class Report(Struct):
    """What the follower reports after each look: the shards whose files are open."""

    observed: list[OwnerObservation]
    unavailable_s: float = 0.0  # for how long the store has not answered
    order: int = 0  # the number of the order that was carried out
