"""The figures of a server apart from its shards."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from bunqueue.protocol.commands.cluster import ClusterView
from bunqueue.protocol.commands.workers import WorkerStats


class RouterFigures(Struct):
    """The figures of a router; for an embedded engine most are empty."""

    version: str
    uptime_s: float
    connections: int
    workers: WorkerStats
    memory_bytes: int
    cpu_s: float
    lag_s: float  # of its event loop: the longest in the last seconds
    shards: int
    shards_up: Sequence[int]
    shards_damaged: Sequence[int] = ()  # these are not restarted
    deaths: Sequence[tuple[int, str, int]] = ()  # shards that die often: number, cause, deaths in an hour
    further: Sequence[tuple[int, float, int]] = ()  # secondary routers: memory (bytes), CPU (s), connections
    wrong_tokens: int = 0  # over TCP
    exposed: Sequence[str] = ()  # of `exposure.KINDS`
    cluster: ClusterView | None = None  # as this host sees it; None without a cluster
