"""Facts that only the process knows about itself, for the rules to show to clients."""

from __future__ import annotations

from msgspec import Struct

from bunqueue.protocol.codes import Code

MB = 1024 * 1024


class StorageFault(Struct, frozen=True):
    """Why writes cannot be stored."""

    error: str
    since: int  # epoch ms
    disk_full: bool
    code: Code


class Disk(Struct, frozen=True):
    """The disk space of a shard, in bytes."""

    free: int = 0  # on the disk; below `refused_below`, pushes are refused
    refused_below: int = 0
    warned_below: int = 0
    reserve: int = 0  # reserved in addition to that
    wal: int = 0  # length of the write-ahead log; beyond `wal_limit`, pushes are refused
    wal_limit: int = 0
    enough: bool = True
    wal_too_long: bool = False
    checkpoint_failures: int = 0  # since the process started
    checkpoint_error: str = ""  # of the last one, if it has failed


class ClockNews(Struct, frozen=True):
    """What has happened to the wall clock since the process started, in ms."""

    jumps: int = 0
    last_jump: int = 0  # negative: set back
    moved: int = 0  # jobs, schedules and limits whose times were corrected
    uncertainty: int = 0  # how far it may be ahead, ms; retention does not count this


class LogVitals(Struct, frozen=True):
    """The position of a shard in its log, and its state.  Sizes in bytes."""

    position: int  # of the last acknowledged record
    epoch: int
    phase: str  # of `shardproc.replication.owner.Phase`
    held: int  # of the batch that awaits its acknowledgement
    round_trip_ms: float  # the average time of a commit, recent ones weighted most
    appended: int  # since the process started
    unavailable_since: int | None  # epoch ms; None while the log answers
    is_protected: bool  # commits wait for a standby
    commits: tuple[int, ...]  # counts by duration: see `COMMIT_MS`
    commits_ms: float  # of all commits together


class Vitals(Struct, frozen=True):
    """Sizes in bytes."""

    memory: int = 0
    sqlite: int = 0
    cpu_s: float = 0.0
    fault: StorageFault | None = None
    clock: ClockNews = ClockNews()
    damaged_tables: int = 0
    unreadable_jobs: int = 0
    disk: Disk | None = None  # None if the shard is in memory
    warnings: tuple[str, ...] = ()  # problems that are about to occur
    memory_limit: int = 0  # 0: no limit
    memory_full: bool = False  # jobs are refused because of it
    log: LogVitals | None = None  # None without a store
