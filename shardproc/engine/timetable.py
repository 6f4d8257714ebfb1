"""The schedules of a shard by name, and which of them is due next.  Plain data without rules.

Ten thousand schedules cost nothing between their runs: only the earliest time is ever looked at.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from bunqueue.model.job import NIL
from bunqueue.protocol.commands.cron import CronFields


class Schedule(CronFields, kw_only=True, rename="camel", omit_defaults=True, eq=False, gc=False):
    """A schedule and what it has done; as JSON it is its record on disk."""

    data: bytes = NIL  # of the jobs, MessagePack
    next_run: int  # epoch ms
    executions: int = 0
    paused: bool = False


class Timetable:
    """Schedules by name and by time."""

    __slots__ = ("_due", "_serial", "by_name")

    def __init__(self) -> None:
        self.by_name: dict[str, Schedule] = {}
        self._due: list[tuple[int, int, Schedule]] = []  # heap; entries that no longer hold are skipped
        self._serial = 0

    def put(self, schedule: Schedule) -> None:
        """Enter a schedule, or one whose time has changed."""
        self.by_name[schedule.name] = schedule
        self._serial += 1
        heappush(self._due, (schedule.next_run, self._serial, schedule))
        if len(self._due) > 2 * len(self.by_name) + 64:
            self._due = [entry for entry in self._due if self._holds(entry)]
            heapify(self._due)

    def remove(self, name: str) -> Schedule | None:
        return self.by_name.pop(name, None)

    def next_at(self) -> int | None:
        """The earliest time at which something may be due."""
        return self._due[0][0] if self._due else None

    def take_due(self, now: int) -> Schedule | None:
        """A schedule whose time has come; `put` it back with its next one."""
        while self._due and self._due[0][0] <= now:
            entry = heappop(self._due)
            if self._holds(entry):
                return entry[2]
        return None

    def _holds(self, entry: tuple[int, int, Schedule]) -> bool:
        at, _, schedule = entry
        return self.by_name.get(schedule.name) is schedule and schedule.next_run == at
