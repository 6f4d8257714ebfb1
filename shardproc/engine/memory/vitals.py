"""What only the process knows of itself, and the rules may tell to those who ask."""

from __future__ import annotations

from msgspec import Struct

from bunqueue.protocol.codes import Code

MB = 1024 * 1024


class Trouble(Struct, frozen=True):
    """Why not everything can be stored."""

    error: str
    since: int  # epoch ms
    disk_full: bool
    code: Code


class Disk(Struct, frozen=True):
    """The room that a shard has, in bytes."""

    free: int = 0  # on the disk; with less than `refused_below`, pushes are refused
    refused_below: int = 0
    warned_below: int = 0
    reserve: int = 0  # set aside beside that
    wal: int = 0  # length of the write-ahead log; beyond `wal_limit`, pushes are refused
    wal_limit: int = 0
    enough: bool = True
    wal_too_long: bool = False
    checkpoint_failures: int = 0  # since the process started
    checkpoint_error: str = ""  # of the last one, if it has failed


class ClockNews(Struct, frozen=True):
    """What the wall clock did since the process started, in ms."""

    jumps: int = 0
    last_jump: int = 0  # negative: it was set back
    moved: int = 0  # jobs, schedules and limits whose times were brought back
    doubt: int = 0  # by which it may be ahead; retention does not believe it


class LogVitals(Struct, frozen=True):
    """Where a shard stands in its log.  Sizes in bytes."""

    position: int  # of the last record that is acknowledged
    epoch: int
    phase: str  # of `shardproc.replication.owner.Phase`
    held: int  # of the batch that waits for its acknowledgement
    round_trip_ms: float  # the mean time of a commit, the latest counting most
    appended: int  # since the process started
    away_since: int | None  # epoch ms; None while the log answers
    is_protected: bool  # a standby is waited for
    commits: tuple[int, ...]  # how many took how long: see `COMMIT_MS`
    commits_ms: float  # all of them together


class Vitals(Struct, frozen=True):
    """Sizes in bytes."""

    memory: int = 0
    sqlite: int = 0
    cpu_s: float = 0.0
    trouble: Trouble | None = None
    clock: ClockNews = ClockNews()
    damaged_tables: int = 0
    unreadable_jobs: int = 0
    disk: Disk | None = None  # none in memory
    warnings: tuple[str, ...] = ()  # what will be trouble soon
    memory_limit: int = 0  # none
    memory_full: bool = False  # jobs are refused because of it
    log: LogVitals | None = None  # none without a store
