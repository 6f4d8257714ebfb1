"""Processes and clients that take turns, with the time, the polls and the chance that they are given.

Each is a greenlet, so that it runs the code that real ones run, loops and all.  One runs at a time; which one
goes on, what the time is and where one is stopped or killed is decided by one random generator.
"""

from __future__ import annotations

import math
import secrets
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from unittest.mock import patch

from greenlet import getcurrent, greenlet

from bunqueue.server.host import pace
from shardproc import rounds

START_MS = 1_700_000_000_000  # the wall clock when a simulation begins
STALLS_S = (0.5, 1.9, 2.1, 3.0, 5.0, 15.0)  # how long a process is stopped: around every limit there is

Ready = Callable[[], bool]


class Killed(BaseException):
    """SIGKILL: nothing that the process would do after this happens."""


def always() -> bool:
    return True


class Task:
    """A process, or a client.  A ``mortal`` one may be killed or stopped at any `Scheduler.moment`."""

    def __init__(
        self, scheduler: Scheduler, body: Callable[[], None], *, mortal: bool, ahead_s: float
    ) -> None:
        self.mortal = mortal
        self.ahead_s = ahead_s  # by which its monotonic clock differs from the others
        self.ready: Ready = always
        self.wake_at = math.inf
        self.stopped_until = 0.0
        self.doomed = False  # its next step is its last one
        self._scheduler = scheduler
        self._body = body
        self.thread = greenlet(self._run, parent=scheduler.main)

    def _run(self) -> None:
        try:
            self._body()
        except Killed:
            pass

    def may_run(self, now: float) -> bool:
        return now >= self.stopped_until and (now >= self.wake_at or self.ready())

    def kill(self) -> None:
        """SIGKILL, between two of its steps."""
        if self.thread.dead:
            return
        if self.thread is getcurrent():
            raise Killed
        self.doomed = True
        self._scheduler.run(self)


class Scheduler:
    """``kills`` and ``stalls``: how likely a moment is a process's last one, or a long one."""

    def __init__(self, rng: Random, *, kills: float = 0.0, stalls: float = 0.0) -> None:
        self.main = getcurrent()
        self.rng = rng
        self.kills, self.stalls = kills, stalls
        self.now = 0.0
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.readable: dict[int, Ready] = {}  # by descriptor
        self.happened: list[str] = []
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._last_descriptor = 1000

    def descriptor(self, ready: Ready) -> int:
        """A new one, to be polled."""
        self._last_descriptor += 1
        self.readable[self._last_descriptor] = ready
        return self._last_descriptor

    def spawn(self, body: Callable[[], None], *, mortal: bool = False, ahead_s: float = 0.0) -> Task:
        task = Task(self, body, mortal=mortal, ahead_s=ahead_s)
        self.tasks.append(task)
        return task

    def later(self, after_s: float, what: Callable[[], None]) -> None:
        self._timers.append((self.now + after_s, what))

    # -- what goes on next

    def step(self) -> None:
        """Let one task take a step, or let the time pass until one can."""
        due = [timer for timer in self._timers if timer[0] <= self.now]
        if due:
            self._timers.remove(due[0])
            due[0][1]()
            return
        runnable = [task for task in self.tasks if task.may_run(self.now)]
        if runnable:
            self.run(self.rng.choice(runnable))
        else:
            self.pass_time()

    def run(self, task: Task) -> None:
        before, self.current = self.current, task
        try:
            task.thread.switch()
        finally:
            self.current = before
            if task.thread.dead and task in self.tasks:
                self.tasks.remove(task)

    def pass_time(self) -> None:
        moments = [at for at, _ in self._timers]
        moments += [max(task.stopped_until, task.wake_at) for task in self.tasks if task.wake_at < math.inf]
        moments += [task.stopped_until for task in self.tasks if task.ready()]
        self.now = max(self.now, min((at for at in moments if at > self.now), default=self.now + 0.1))

    # -- what a task calls

    def wait(self, ready: Ready, limit_s: float | None = None) -> None:
        """The others go on until ``ready``, or until the limit."""
        task = self.current
        assert task is not None
        task.ready = ready
        task.wake_at = math.inf if limit_s is None else self.now + limit_s
        if not task.doomed:
            self.main.switch()
        if task.doomed:
            raise Killed

    def moment(self) -> None:
        """A process may be killed here, or be stopped for a while, as by SIGSTOP or by a busy machine."""
        task = self.current
        if task is None or not task.mortal:
            return
        if task.doomed:
            raise Killed
        chance = self.rng.random()
        if chance < self.kills:
            self.happened.append("killed at a moment")
            raise Killed
        if chance < self.kills + self.stalls:
            self.happened.append("stopped at a moment")
            task.stopped_until = self.now + self.rng.choice(STALLS_S)
            self.wait(always, 0)

    def monotonic(self) -> float:
        """The clock is read first, and whatever happens, happens after that."""
        task = self.current
        now = self.now + (0.0 if task is None else task.ahead_s)
        self.moment()
        return now

    # -- in place of the machine's

    @contextmanager
    def instead(self) -> Iterator[None]:
        """Within this, all code has the time, the polls and the random numbers of this scheduler."""
        with (
            patch.object(time, "monotonic", self.monotonic),
            patch.object(time, "time", lambda: START_MS / 1000 + self.now),
            patch.object(pace, "monotonic", lambda: self.now),
            patch.object(pace, "thread_time", lambda: self.now),
            patch.object(rounds, "monotonic", lambda: self.now),
            patch.object(select, "poll", lambda: Poll(self)),
            patch.object(secrets, "randbits", self.rng.getrandbits),
        ):
            yield


class Poll:
    """As `select.poll`, for descriptors of a scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._watched: list[int] = []

    def register(self, file: object, what: int = 0) -> None:
        self._watched.append(file if isinstance(file, int) else file.fileno())  # type: ignore[attr-defined]

    def poll(self, limit_ms: float | None = None) -> list[tuple[int, int]]:
        scheduler = self._scheduler
        readable = [scheduler.readable[number] for number in self._watched]
        scheduler.wait(
            lambda: any(ready() for ready in readable), None if limit_ms is None else limit_ms / 1000
        )
        return [(number, select.POLLIN) for number in self._watched if scheduler.readable[number]()]
