"""The schedules of a shard by name, and which of them is due next.  Plain data without rules.

Ten thousand schedules cost nothing between their runs: only the earliest time is ever looked at.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from bunqueue.model.job import NIL
from bunqueue.protocol.commands.cron import CronFields

from .lazy_heap import LazyHeap

KIND = "cron"  # of the records


class LastRun(Struct, rename="camel", omit_defaults=True, gc=False):
    """The last run that gave a job; times in epoch ms."""

    at: int
    job_id: str
    outcome: str | None = None  # how the job ended; None: it has not
    ended_at: int | None = None


class Missed(NamedTuple):
    """Times of a schedule that passed while the server was away; epoch ms."""

    name: str
    queue: str
    times: int
    first: int
    made_up: bool  # by one run now


class Claim(Struct, eq=False):
    """A name that a schedule of this shard is to have, while other shards are asked."""

    queue: str
    app: str
    lost_to: tuple[str, str] | None = None  # queue and app of another shard's claim, which comes before


class Schedule(CronFields, kw_only=True, rename="camel", omit_defaults=True, eq=False, gc=False):
    """A schedule and what it has done; as JSON it is its record on disk."""

    data: bytes = NIL  # of the jobs, MessagePack
    next_run: int  # epoch ms
    executions: int = 0
    paused: bool = False
    missed: int = 0  # times that passed while the server was away
    backlog: int = 0  # runs whose jobs are added when that of the last run has ended
    waiting_for: list[int] = field(
        default_factory=list
    )  # the times of these runs; an earlier version had none
    last_run: LastRun | None = None

    def put_off(self, at: int) -> None:
        """The run of this time waits for the end of the last one's job."""
        self.backlog += 1
        self.waiting_for = [*self.waiting_for, at]

    def take_back(self, now: int) -> int:
        """The time of the first of the runs that wait, which waits no longer."""
        is_known = len(self.waiting_for) == self.backlog
        self.backlog -= 1
        if not is_known:
            return now
        at, *self.waiting_for = self.waiting_for
        return at

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
        self.missed: list[Missed] = []  # that the log is to say
        self.ready: list[str] = []  # schedules with a backlog whose last job has ended, perhaps
        self._due: LazyHeap[int, Schedule] = LazyHeap(self._holds)

    def put(self, schedule: Schedule) -> None:
        """Enter a schedule, or one whose time has changed."""
        self.by_name[schedule.name] = schedule
        self._due.add(schedule.next_run, schedule)

    def remove(self, name: str) -> Schedule | None:
        return self.by_name.pop(name, None)

    def next_at(self) -> int | None:
        """The earliest time at which something may be due."""
        if self.ready:
            return 0
        return self._due.entries[0][0] if self._due.entries else None

    def take_ready(self) -> Schedule | None:
        """A schedule that may begin a run of its backlog."""
        while self.ready:
            schedule = self.by_name.get(self.ready.pop())
            if schedule is not None and schedule.backlog and not schedule.paused and not schedule.is_running:
                return schedule
        return None

    def take_due(self, now: int) -> Schedule | None:
        """A schedule whose time has come; `put` it back with its next one."""
        while (entry := self._due.pop_due(now)) is not None:
            if self._holds(entry):
                return entry[2]
        return None

    def _holds(self, entry: tuple[int, int, Schedule]) -> bool:
        at, _, schedule = entry
        return self.by_name.get(schedule.name) is schedule and schedule.next_run == at
