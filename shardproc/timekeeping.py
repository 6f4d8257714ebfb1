"""What a shard does about a wall clock that jumps, while it runs or between two starts.

- Forward: the shard follows at once. Delays, schedules and limits end earlier; locks restart. Retention
  ignores the jump for an hour (`engine/memory/clock_uncertainty.py`), in case it was an error.
- Back: times that came from the wrong clock are shifted back (`engine/clock_rebase.py`): those that workers
  wait for at once, the others for SLICE_S in each batch. The file records this until all are shifted.

Each jump is logged as a warning, and counted. At a start a shard detects a jump by the mark in its file,
which has the wall clock together with a clock that cannot be set. If that one has restarted, because the
machine was started or the file comes from another machine, the shard only knows the time of the last write.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator

from bunqueue.logs import get_logger

from .clock import JUMP_MS, Clock
from .engine.engine import Engine
from .engine.memory.clock_correction import Pending, SetBack
from .engine.memory.clock_uncertainty import ClockUncertainty
from .engine.memory.vitals import ClockNews
from .storage.store import Store

SLICE_S = 0.01  # of a batch, for shifting times back
MARK_MS = 5_000  # between two marks in the file
ABSENT_MS = 86_400_000  # an older file may have been unused for long, or its clock is wrong now

_log = get_logger("shard")


class Timekeeping:
    """The timekeeping of one shard, for as long as its process lives."""

    def __init__(self, clock: Clock) -> None:
        self.uncertainty = ClockUncertainty()
        self._clock = clock
        self._mark_at = 0
        self._jumps = self._last_jump = self._moved = 0
        self._moving: Iterator[None] | None = None

    @property
    def news(self) -> ClockNews:
        """The figures for metrics."""
        return ClockNews(self._jumps, self._last_jump, self._moved, self.uncertainty.ms)

    def believed(self, store: Store, now: int) -> int:
        """At a start: the time without forward jumps that may be errors."""
        mark = store.last_mark()
        if mark is None:
            return now
        return now - mark.uncertainty - max(0, self._clock.set_since(mark) or 0)

    def started(self, engine: Engine, store: Store, now: int) -> None:
        """The shard has recovered: compare the clock with what the file knows of it."""
        newest, mark = store.last_times()
        pending, self._moving = store.rebase.begun(), None
        if pending is not None:
            newest = 0  # it may be a time that is still to be shifted back
            self._begin(engine, store, pending, Counter())
        last = max(newest, 0 if mark is None else mark.wall)
        jump = None if mark is None else self._clock.set_since(mark)
        if mark is not None and mark.uncertainty > self.uncertainty.ms:
            self.uncertainty.add(mark.uncertainty - self.uncertainty.ms, now)
            engine.set_forward(mark.uncertainty, now)
        ahead = max(last - now, -(jump or 0))  # the latter however long the shard was down
        if ahead > JUMP_MS:
            self._back(engine, store, SetBack(now, now + ahead, ahead))
        elif jump is not None and jump > JUMP_MS:
            self._forward(engine, store, jump, now)
        elif jump is None and last and now - last > ABSENT_MS:
            self.uncertainty.add(now - last, now)
            _log.info("retention waits to see whether the clock is right", away_ms=now - last)

    def check(self, engine: Engine, store: Store) -> int:
        """A batch begins: check whether the clock was set, and return the time."""
        jump, now = self._clock.check_jump(), self._clock.now_ms()
        if jump > 0:
            self._forward(engine, store, jump, now)
        elif jump < 0:
            self._back(engine, store, SetBack(now, max(now - jump, engine.state.now), -jump))
        elif now >= self._mark_at:
            self._mark(store, now)
        if self._moving is not None and jump >= 0:
            engine.state.now = now
            self._go_on(store)
        return now

    def _mark(self, store: Store, now: int) -> None:
        store.mark, self._mark_at = self._clock.mark(self.uncertainty.ms), now + MARK_MS

    def _forward(self, engine: Engine, store: Store, jump: int, now: int) -> None:
        self.uncertainty.add(jump, now)
        engine.set_forward(jump, now)
        self._count(store, jump, now)
        _log.warning(
            "the clock was set forward: what waits for its time is due earlier, retention waits", by_ms=jump
        )

    def _back(self, engine: Engine, store: Store, back: SetBack) -> None:
        self.finish(store)
        self.uncertainty.take(back.by, back.now)
        pending = store.rebase.begin(back, engine.state.next_seq)
        moved = engine.set_back(back)
        self._count(store, -back.by, back.now)
        self._begin(engine, store, pending, moved)

    def _begin(self, engine: Engine, store: Store, pending: Pending, moved: Counter[str]) -> None:
        self._moved += moved.total()
        self._moving = self._move(engine, store, pending, moved)
        self._go_on(store)

    def _move(self, engine: Engine, store: Store, pending: Pending, moved: Counter[str]) -> Iterator[None]:
        for jobs in engine.set_jobs_back(pending.back, pending.jobs):
            moved["jobs"] += jobs
            self._moved += jobs
            yield
        for letters in store.rebase.steps(pending):
            moved["dead_letters"] += letters
            self._moved += letters
            yield
        store.rebase.end()
        _log.warning(
            "the clock was ahead: times taken from it were brought back",
            by_ms=pending.back.by,
            jobs=moved["jobs"],
            schedules=moved["schedules"],
            limits=moved["limits"],
            dead_letters=moved["dead_letters"],
        )

    @property
    def moves(self) -> bool:
        """Whether times are still being shifted back."""
        return self._moving is not None

    def _go_on(self, store: Store, seconds: float = SLICE_S) -> None:
        """Shift more times back, in the transaction of this batch."""
        end = time.monotonic() + seconds
        while self._moving is not None:
            store.write_out()
            if next(self._moving, self) is self:
                self._moving = None
            elif time.monotonic() >= end:
                store.write_out()
                return

    def finish(self, store: Store) -> None:
        """Shift all remaining times back, in the transaction of this batch."""
        self._go_on(store, math.inf)

    def _count(self, store: Store, jump: int, now: int) -> None:
        self._jumps, self._last_jump = self._jumps + 1, jump
        self._mark(store, now)
