"""What is known of a server beside its shards."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from bunqueue.protocol.commands.cluster import ClusterView
from bunqueue.protocol.commands.workers import WorkerStats


class RouterFigures(Struct):
    """Of a router; of an embedded engine most is nothing."""

    version: str
    uptime_s: float
    connections: int
    workers: WorkerStats
    memory_bytes: int
    cpu_s: float
    lag_s: float  # of its event loop, the longest of the last seconds
    shards: int
    shards_up: Sequence[int]
    shards_damaged: Sequence[int] = ()  # they are not started again
    deaths: Sequence[tuple[int, str, int]] = ()  # shards that die often, why, and how often in the last hour
    further: Sequence[tuple[int, float, int]] = ()  # of more routers: memory in bytes, CPU in s, connections
    wrong_tokens: int = 0  # over TCP
    exposed: Sequence[str] = ()  # of `exposure.KINDS`
    cluster: ClusterView | None = None  # as this host sees it; None without one
