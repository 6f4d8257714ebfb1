"""The errors of a shard's queues, in groups of those that are alike: see `bunqueue.model.errors_alike`.

Plain data without rules; `lifecycle.error_groups` changes it. Bounded for each queue and for the shard: what
does not fit is counted in the group OTHER of its queue.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from bunqueue.model.job import Job

    from ..outbox import Attempt
    from ..state import QueueState

RECORD = "error-group"  # of a queue, "/", and the id of the group
OTHER = "other"  # the id of the group for errors beyond the bounds
MAX_GROUPS = 200  # of a queue; a queue with more kinds of errors has one problem with many texts
MAX_OF_SHARD = 5_000  # at most some 30 MiB, with examples of the largest size
MAX_EACH = 20  # names, workers and versions that are counted for a group; the rest is counted under OTHER
MAX_CLASSES = 50  # outcomes and classes of errors that are counted for a queue, for Prometheus
MINUTES = 60  # for which a group counts its failures minute by minute


class Example(Struct, omit_defaults=True, gc=False):
    """One failed attempt of a group; `at` in epoch ms."""

    job_id: str
    name: str
    at: int
    attempt: int
    error: str = ""
    worker: str | None = None
    version: str | None = None
    stack: str | None = None


class ErrorGroup(Struct, omit_defaults=True):
    """What is known of a group; it is stored as this. Times in epoch ms."""

    type: str | None
    pattern: str
    first: int
    last: int
    failures: int = 0  # attempts that failed
    dead: int = 0  # jobs that failed for good with it
    minutes: list[tuple[int, int]] = []  # minute since the epoch, failures; oldest first
    outcomes: dict[str, int] = {}
    names: dict[str, int] = {}
    workers: dict[str, int] = {}
    versions: dict[str, int] = {}
    example: Example | None = None
    muted: int | None = None  # since when it raises no alert
    watched: int | None = None  # since when its return is reported
    resolved: int | None = None  # when it was last said, or seen, to be over
    returned: int | None = None  # when it was last reported to be back

    def count(self, now: int) -> None:
        """Count a failure."""
        self.failures += 1
        self.last = now
        minute = now // 60_000
        if self.minutes and self.minutes[-1][0] == minute:
            self.minutes[-1] = (minute, self.minutes[-1][1] + 1)
        else:
            self.minutes.append((minute, 1))
            del self.minutes[:-MINUTES]

    def rate(self, now: int, minutes: int) -> float:
        """Failures per minute over the current minute and the ones before, or since the first failure."""
        since = now // 60_000 - minutes
        total = sum(count for minute, count in self.minutes if minute > since)
        return total / max(1.0, min(minutes - 1 + now % 60_000 / 60_000, (now - self.first) / 60_000))


class QueueErrors:
    """The groups of one queue, and what was last found of its dead letters."""

    __slots__ = ("classes", "groups", "kept", "kept_after", "kept_at")

    def __init__(self) -> None:
        self.groups: dict[str, ErrorGroup] = {}  # by id; OTHER among them, if there is any
        self.kept: Counter[str] = Counter()  # id -> dead letters that are kept
        # Deaths and dead letters of the queue when that was counted; None: count again
        self.kept_at: tuple[int, int] | None = None
        self.kept_after = (0, 0)  # the last dead letter that was counted
        self.classes: Counter[tuple[str, str, bool]] = Counter()  # outcome, class, muted; since the start

    def recount(self) -> None:
        """Have the dead letters counted from the first one on."""
        self.kept = Counter()
        self.kept_after = (0, 0)
        self.kept_at = None


class Errors:
    """Those of a shard."""

    __slots__ = ("count", "pending", "queues", "touched")

    def __init__(self) -> None:
        self.queues: dict[str, QueueErrors] = {}
        self.count = 0  # groups of all queues
        # Failed attempts and deaths (None) that are not in their groups yet: once a batch is enough.
        self.pending: list[tuple[QueueState, Job, Attempt | None]] = []
        self.touched: set[tuple[str, str]] = set()  # queue, id: to be stored


def tally(counts: dict[str, int], key: str | None) -> None:
    """Count a name, a worker or a version; without bound, clients could choose how much memory that takes."""
    if key is None:
        return
    if key not in counts and len(counts) >= MAX_EACH:
        key = OTHER
    counts[key] = counts.get(key, 0) + 1
