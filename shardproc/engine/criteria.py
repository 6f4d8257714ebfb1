"""What the archive has to know of a search, and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from bunqueue.model.job import WAITING
from bunqueue.protocol.search.conditions import Condition

# In a `Finding`, beside COMPLETED and FAILED:
LIVE = WAITING  # any state in which a job is live
STOPPED = -1  # a dead letter that was cancelled


class Criteria(NamedTuple):
    """``conditions`` are about anything but the queue.  ``completed``, ``dead`` and ``live`` say which jobs
    may be meant; live ones are found by what their rows say for ever, and are looked at in memory again.

    ``queues``: the ids of those that are meant; None: all.  ``by_queue``: these have so few jobs that it is
    quicker to go through them than through the jobs of all."""

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
    """Reads of the archive for searches, also of the rows of live jobs."""

    def first_seq(self) -> int:
        """No job has a smaller number."""

    def ranges(self, conditions: Sequence[Condition], first: int, last: int) -> list[tuple[int, int]]:
        """Runs of numbers within these bounds, ascending, outside of which no job meets the conditions."""

    def find(self, criteria: Criteria, first: int, last: int) -> list[Finding]:
        """What meets the criteria, with numbers from ``first`` to ``last``, in ascending order."""

    def unreadable(self, first: int, last: int) -> int:
        """How many jobs with such numbers were found to be unreadable."""

    def created_before(self, seq: int) -> int:
        """When the last job up to this number was created, epoch ms; 0 if there is none."""
