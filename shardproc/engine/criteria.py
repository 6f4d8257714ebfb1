"""What a search passes to the archive, and what the archive returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from bunqueue.model.job import WAITING
from bunqueue.protocol.search.conditions import Condition

# In a `Finding`, beside COMPLETED and FAILED:
LIVE = WAITING  # any state in which a job is live
STOPPED = -1  # a dead letter that was cancelled


class Criteria(NamedTuple):
    """``conditions`` cover everything except the queue.  ``completed``, ``dead`` and ``live`` select the
    kinds of jobs; live ones are found by the columns of their rows that never change, and checked again in
    memory.  ``queues``: ids of the queues to search; None: all.  ``by_queue``: these have so few jobs that
    searching them one by one is faster than searching the jobs of all queues."""

    conditions: Sequence[Condition]
    queues: tuple[int, ...] | None
    completed: bool
    dead: bool
    live: bool
    by_queue: bool


class Finding(NamedTuple):
    """A job that was found; ``state`` is COMPLETED, FAILED, STOPPED or LIVE."""

    seq: int
    queue_id: int
    state: int


class Searches(Protocol):
    """Reads of the archive for searches, including the rows of live jobs."""

    def first_seq(self) -> int:
        """No job has a smaller number."""

    def ranges(self, conditions: Sequence[Condition], first: int, last: int) -> list[tuple[int, int]]:
        """Ranges of numbers within these bounds, ascending; no job outside them meets the conditions."""

    def find(self, criteria: Criteria, first: int, last: int) -> list[Finding]:
        """The jobs with numbers from ``first`` to ``last`` that meet the criteria, in ascending order."""

    def unreadable(self, first: int, last: int) -> int:
        """The number of jobs in this range that were found to be unreadable."""

    def created_before(self, seq: int) -> int:
        """When the last job up to this number was created, epoch ms; 0 without one."""
