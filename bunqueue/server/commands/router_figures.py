"""The figures of a server apart from its shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from bunqueue.protocol.commands.backups import BackupView, StandbyView
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
    secondary: Sequence[
        tuple[int, float, int]
    ] = ()  # secondary routers: memory (bytes), CPU (s), connections
    wrong_tokens: int = 0  # over TCP
    exposed: Sequence[str] = ()  # of `exposure.KINDS`
    identities: Mapping[str, int] = {}  # how many, by whether they have ended or soon will
    certificate_ends: float = 0  # that of TLS, in seconds since the epoch; 0 without one
    client_certificate_ends: float = 0  # the first of those that clients have lately shown
    cluster: ClusterView | None = None  # as this host sees it; None without a cluster
    backup: BackupView | None = None  # None without a setting `backup`
    standby: StandbyView | None = None  # None without a setting `follow`
