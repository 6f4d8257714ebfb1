"""Circuit breakers of a queue: their counts, whether they let a job start, and the jobs they hold.

A queue with closed breakers pays one lookup per job.  While the breaker of a job name is open, pulls that
meet jobs of that name take them out of the order and keep them here; when it closes, the jobs return to their
old places.  The rules for opening are in `bunqueue.model.breaker`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from msgspec import Struct

from bunqueue.model.backoff import names
from bunqueue.model.breaker import CLOSED, HALF_OPEN, OPEN, BreakerConfig
from bunqueue.model.job import Job

from ..memory.clock_correction import SetBack

SLICES = 10  # of a window: older counts are dropped a tenth at a time
MAX_ERROR = 1024  # characters of the error that opened it


class Order(Protocol):
    """The order of ready jobs."""

    def push(self, job: Job) -> None: ...


class BreakerRecord(Struct, omit_defaults=True):
    """A breaker as stored."""

    config: BreakerConfig
    is_open: bool = False
    since: int = 0  # epoch ms
    until: int = 0  # epoch ms
    opened: int = 0  # how many times it has opened
    again: int = 0  # how many times in a row, without closing
    error: str | None = None  # the error that opened it last


class Breaker:
    """One breaker."""

    __slots__ = ("failures", "name", "offered", "passed", "record", "shelf", "slices", "state", "trials")

    def __init__(self, name: str, record: BreakerRecord) -> None:
        self.name = name  # of its jobs; "": all jobs of the queue
        self.record = record
        self.state = OPEN if record.is_open else CLOSED
        self.failures = 0  # in a row
        self.slices: deque[list[int]] = deque()  # of the window: [number, attempts, failures]
        self.trials: set[int] = set()  # numbers of jobs that were started as trials
        self.passed = 0  # the number of completed trials
        self.offered: set[int] = set()  # numbers of jobs put back into the order as trials
        self.shelf: dict[int, Job] = {}  # held jobs by number, in their order

    def shown_state(self, now: int) -> str:
        """The current state, even if no pull has come since its pause ended."""
        return HALF_OPEN if self.state == OPEN and now >= self.record.until else self.state

    def shown_failures(self, now: int) -> int:
        """The failures that count against it."""
        return self.failures if self.record.config.rate is None else self._counted(now)[1]

    # -- letting jobs start

    def lets(self, now: int) -> bool:
        """Whether one more job may start."""
        if self.state == CLOSED:
            return True
        if self.state == OPEN:
            if now < self.record.until:
                return False
            self.state, self.passed = HALF_OPEN, 0
            self.trials.clear()
        return len(self.trials) + self.passed < self.record.config.trials

    def started(self, job: Job) -> None:
        """A job has become active."""
        self.offered.discard(job.seq)
        if self.state == HALF_OPEN:
            self.trials.add(job.seq)

    def offer(self, order: Order, now: int) -> None:
        """Put jobs that may start as trials back into the order."""
        if not self.lets(now):
            return
        free = self.record.config.trials - len(self.trials) - self.passed - len(self.offered)
        for seq in list(islice(self.shelf, max(0, free))):
            self.offered.add(seq)
            order.push(self.shelf.pop(seq))

    # -- outcomes

    def succeeded(self, job: Job, now: int) -> bool:
        """Record a completed job; whether the breaker should close."""
        self.failures = 0
        if self.record.config.rate is not None:
            self._count(now, 0)
        if self.state != HALF_OPEN or job.seq not in self.trials:
            return False
        self.trials.discard(job.seq)
        self.passed += 1
        return self.passed >= self.record.config.trials

    def failed(self, job: Job, now: int) -> bool:
        """Record a failed attempt that counts; whether the breaker should open."""
        if self.state == HALF_OPEN:
            return job.seq in self.trials
        if self.state == OPEN:
            return False
        config = self.record.config
        self.failures += 1
        if config.rate is None:
            return self.failures >= config.failures
        self._count(now, 1)
        attempts, failed = self._counted(now)
        return failed >= config.failures and failed >= config.rate * attempts

    def counts(self, types: tuple[str, ...] | list[str]) -> bool:
        """Whether failures with this error count."""
        wanted = self.record.config.errors
        return not wanted or not types or any(names(rule, kind) for rule in wanted for kind in types)

    def _count(self, now: int, failed: int) -> None:
        number = int(now * SLICES / self.record.config.window)
        if not self.slices or self.slices[-1][0] != number:
            self.slices.append([number, 0, 0])
        self.slices[-1][1] += 1
        self.slices[-1][2] += failed

    def _counted(self, now: int) -> tuple[int, int]:
        first = int(now * SLICES / self.record.config.window) - SLICES
        while self.slices and self.slices[0][0] <= first:
            self.slices.popleft()
        return sum(each[1] for each in self.slices), sum(each[2] for each in self.slices)

    # -- opening and closing

    def open(self, now: int, error: str | None, pause: float | None = None) -> None:
        """Block all jobs for a while."""
        config, record = self.record.config, self.record
        if pause is None:
            pause = min(config.pause * 2 ** min(record.again, 32), max(config.pause, config.max_pause))
        self.state, record.is_open = OPEN, True
        record.since, record.until = now, now + int(pause)
        record.opened, record.again = record.opened + 1, record.again + 1
        record.error = None if error is None else error[:MAX_ERROR]
        self._forget()

    def close(self) -> None:
        """Let all jobs start."""
        self.state = CLOSED
        self.record.is_open, self.record.again = False, 0
        self._forget()

    def _forget(self) -> None:
        self.failures = self.passed = 0
        self.slices.clear()
        self.trials.clear()
        self.offered.clear()


class Breakers:
    """The breakers of one queue."""

    __slots__ = ("names", "restless", "whole")

    def __init__(self) -> None:
        self.whole: Breaker | None = None
        self.names: dict[str, Breaker] = {}
        self.restless: dict[str, Breaker] = {}  # breakers of names that are not closed, or still hold jobs

    def __iter__(self) -> Iterator[Breaker]:
        if self.whole is not None:
            yield self.whole
        yield from self.names.values()

    def of(self, job: Job) -> list[Breaker]:
        """The breakers for a job."""
        named = self.names.get(job.name)
        both = (self.whole, named)
        return [each for each in both if each is not None]

    def find(self, name: str) -> Breaker | None:
        """The breaker of a name, or of the queue ("")."""
        return self.names.get(name) if name else self.whole

    def put(self, breaker: Breaker) -> None:
        """Add a breaker."""
        if not breaker.name:
            self.whole = breaker
            return
        self.names[breaker.name] = breaker
        if breaker.state != CLOSED:
            self.restless[breaker.name] = breaker

    def remove(self, breaker: Breaker) -> None:
        """Remove a breaker; the caller handles the jobs it holds."""
        if breaker.name:
            del self.names[breaker.name]
            self.restless.pop(breaker.name, None)
        else:
            self.whole = None

    # -- for pulls

    def offer(self, order: Order, now: int) -> None:
        """Put back jobs whose breakers are due for trials."""
        for breaker in self.restless.values():
            if breaker.shelf:
                breaker.offer(order, now)

    def shelve(self, job: Job, now: int) -> bool:
        """Whether a ready job must not start; it is then kept here."""
        breaker = self.restless.get(job.name)
        if breaker is None or breaker.lets(now):
            return False
        breaker.offered.discard(job.seq)
        breaker.shelf[job.seq] = job
        return True

    def unshelve(self, job: Job) -> bool:
        """Remove a job that is no longer ready; whether it was kept here."""
        breaker = self.restless.get(job.name)
        if breaker is None:
            return False
        breaker.offered.discard(job.seq)
        return breaker.shelf.pop(job.seq, None) is not None

    def started(self, job: Job) -> None:
        for breaker in self.of(job):
            breaker.started(job)

    def ended(self, job: Job) -> None:
        """Record that a job is no longer active, without an outcome that counts."""
        for breaker in self.of(job):
            breaker.trials.discard(job.seq)

    def opens_at(self, now: int) -> int | None:
        """The next time when a pause ends and a job may start."""
        ends = [each.record.until for each in self.restless.values() if each.state == OPEN and each.shelf]
        if self.whole is not None and self.whole.state == OPEN:
            ends.append(self.whole.record.until)
        return min((end for end in ends if end > now), default=None)

    def set_back(self, back: SetBack) -> int:
        """Correct the times after the clock was ahead; returns how many breakers were changed."""
        moved = 0
        for breaker in self:
            record = breaker.record
            breaker.slices.clear()
            if record.is_open and record.since > back.now:
                record.until, record.since = back.end(record.until, record.since), back.moment(record.since)
                moved += 1
        return moved

    def shelved(self) -> Iterator[Job]:
        """All jobs kept here."""
        for breaker in self.restless.values():
            yield from breaker.shelf.values()
