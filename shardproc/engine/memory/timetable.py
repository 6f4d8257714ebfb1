"""The schedules of a shard by name, and the one that is due next.  Plain data without rules.

Ten thousand schedules cost nothing between their runs: only the earliest time is ever checked.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from bunqueue.model.job import NIL
from bunqueue.protocol.commands.cron import CronFields

from .lazy_heap import LazyHeap

KIND = "cron"  # of the records


class LastRun(Struct, rename="camel", omit_defaults=True, gc=False):
    """The last run that added a job; times in epoch ms."""

    at: int
    job_id: str
    outcome: str | None = None  # how the job ended; None while it is live
    ended_at: int | None = None


class Missed(NamedTuple):
    """Times of a schedule that passed during the server's downtime; epoch ms."""

    name: str
    queue: str
    times: int
    first: int
    made_up: bool  # by one run now


class Claim(Struct, eq=False):
    """A name claimed for a schedule of this shard, while other shards are asked."""

    queue: str
    app: str
    lost_to: tuple[str, str] | None = None  # queue and app of a prior claim on another shard


class Schedule(CronFields, kw_only=True, rename="camel", omit_defaults=True, eq=False, gc=False):
    """A schedule and its history; as JSON it is the record on disk."""

    data: bytes = NIL  # of the jobs, MessagePack
    next_run: int  # epoch ms
    executions: int = 0
    paused: bool = False
    missed: int = 0  # times that passed during the server's downtime
    waiting_for: list[int] = field(default_factory=list)
    """The times of runs that wait for the job of the last run to end."""
    last_run: LastRun | None = None

    def put_off(self, at: int) -> None:
        """Let the run of this time wait until the last run's job has ended."""
        self.waiting_for = [*self.waiting_for, at]

    def take_back(self) -> int:
        """Take the first of the waiting runs; returns its time."""
        at, *self.waiting_for = self.waiting_for
        return at

    @property
    def backlog(self) -> int:
        """The number of waiting runs."""
        return len(self.waiting_for)

    @property
    def is_running(self) -> bool:
        """Whether the job of the last run has not ended."""
        return self.last_run is not None and self.last_run.outcome is None


class Timetable:
    """Schedules by name and by time."""

    __slots__ = ("_due", "by_name", "claims", "missed", "ready")

    def __init__(self) -> None:
        self.by_name: dict[str, Schedule] = {}
        self.claims: dict[str, list[Claim]] = {}  # by name
        self.missed: list[Missed] = []  # not reported in the log yet
        self.ready: list[str] = []  # schedules with a backlog whose last job may have ended
        self._due: LazyHeap[int, Schedule] = LazyHeap(self._is_current)

    def put(self, schedule: Schedule) -> None:
        """Add a schedule, or update one whose time has changed."""
        self.by_name[schedule.name] = schedule
        self._due.add(schedule.next_run, schedule)

    def remove(self, name: str) -> Schedule | None:
        return self.by_name.pop(name, None)

    def next_at(self) -> int | None:
        """The earliest time when something may be due."""
        if self.ready:
            return 0
        return self._due.entries[0][0] if self._due.entries else None

    def take_ready(self) -> Schedule | None:
        """A schedule that may start a run of its backlog."""
        while self.ready:
            schedule = self.by_name.get(self.ready.pop())
            if schedule is not None and schedule.backlog and not schedule.paused and not schedule.is_running:
                return schedule
        return None

    def take_due(self, now: int) -> Schedule | None:
        """A schedule that is due; `put` it back with its next time."""
        while (entry := self._due.pop_due(now)) is not None:
            if self._is_current(entry):
                return entry[2]
        return None

    def _is_current(self, entry: tuple[int, int, Schedule]) -> bool:
        at, _, schedule = entry
        return self.by_name.get(schedule.name) is schedule and schedule.next_run == at
