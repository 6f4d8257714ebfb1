"""`Sandbox`: bunqueue for one test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from msgspec import Struct

from bunqueue.client import engine_override
from bunqueue.client.connection.options import milliseconds, shown
from bunqueue.client.connection.replies import decode_reply
from bunqueue.client.connection.requests import poll_time, spec_of
from bunqueue.client.interrupts import distinguish_ctrl_c
from bunqueue.client.models.jobs import Job
from bunqueue.client.options.job import JobOptions
from bunqueue.client.options.moments import When, epoch_ms
from bunqueue.model.durations import DAY_MS
from bunqueue.protocol.commands import Ok
from bunqueue.worker.threads import Threads

from .channel import ADDRESS
from .drain import Rules, Runs
from .engine import FrozenClock, SandboxEngine
from .errors import SandboxError
from .event_loop import CallsHere, SandboxLoop, check_no_loop
from .faults import WORDS, Faults
from .matching import UNSET, Expected, What, expected_of, near_misses
from .sessions import PATIENCE, SandboxSession, SandboxTransport
from .sources import Source, Sources
from .worker import Ran

if TYPE_CHECKING:
    from bunqueue.client.codecs.codec import Codec
    from bunqueue.client.connection.transport import Transport

LIMIT = 1000  # jobs that one drain runs before it counts as endless
WORKERS_WORDS = WORDS["pull"] | WORDS["ack"] | WORDS["fail"] | WORDS["renew"]
POLL_S = 0.002  # between polls of the workers
QUIET = 5  # idle iterations of the event loop after which everything that was sent to workers has arrived


class Sandbox:
    """In-memory queues and a stopped clock, for one test.

        with Sandbox() as bunqueue:
            sign_up("ada@example.com")
            bunqueue.assert_added("emails", "welcome", {"to": "ada@example.com"})
            bunqueue.drain({"emails": send})

    While it is open, every `Queue`, `AsyncQueue` and `Worker` of the process uses it, whatever server or file
    it was made for, including those made earlier. Nothing remains afterwards. Time starts at `start`, or now,
    and advances only on request. Delays, backoff, cron, limits and locks follow it.
    """

    def __init__(self, *, start: datetime | None = None) -> None:
        begin = time.time() * 1000 if start is None else epoch_ms(start, "start")
        self.faults = Faults()
        """The planned faults."""
        self._engine = SandboxEngine(FrozenClock(round(begin)))
        self._direct = SandboxSession(self._engine, self.faults)
        self._loop = SandboxLoop()
        self._workers: list[SandboxTransport] = []
        self._inline: tuple[Sources, Rules] | None = None
        self._runs: Runs | None = None  # the current drain
        self._outer: engine_override.EngineOverride | None = None
        self._replaced: dict[tuple[str | None, str], Callable[..., Any]] = {}

    def __enter__(self) -> Self:
        self._outer, engine_override.current = engine_override.current, self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop everything. Queues and workers use their own servers again. Safe to call twice."""
        if engine_override.current is self:
            engine_override.current = self._outer
        self._engine.close()
        self._loop.close()

    # -- time

    @property
    def now(self) -> datetime:
        """The current time, in UTC."""
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    @property
    def now_ms(self) -> int:
        """The current time, epoch ms."""
        return self._engine.clock.now_ms()

    def advance(self, duration: When) -> None:
        """Advance the clock by ms or a timedelta, or to a datetime with a time zone. It moves from each
        moment with due work to the next.

        Delayed jobs become ready, schedules fire, and locks expire unless a client of the sandbox holds them.
        In `inline` mode jobs run when they are due. Workers receive their jobs, but see `settle`.
        """
        end = self._end(duration)
        while self._step(end):
            self._after_change()

    async def advance_async(self, duration: When) -> None:
        """Like `advance`, but workers finish their work at each moment before time advances."""
        end = self._end(duration)
        await self.settle_async()
        while self._step(end):
            await self._after_change_async()
            await self.settle_async()

    def _step(self, end: int) -> bool:
        moved = self._engine.step(end)
        if self._runs is not None:
            self._runs.check_timeouts()
        return moved

    def _end(self, duration: When, name: str = "duration") -> int:
        if isinstance(duration, datetime):
            end = epoch_ms(duration, name)
        else:
            end = self.now_ms + milliseconds(duration, name)
        if round(end) < self.now_ms:
            raise SandboxError(f"{name}: time does not go back: {duration!r}")
        return round(end)

    # -- running jobs

    def drain(
        self,
        *handlers: Source,
        within: When = 0,
        limit: int = LIMIT,
        raising: bool = False,
        schedules: bool = True,
    ) -> list[Ran]:
        """Run all due jobs one after the other in this thread, as workers do: with hooks and middleware, and
        the jobs of a batch together.

        `handlers` are workers (which need not be started), apps, dicts of handlers by queue, or a handler for
        all queues. Queues are drained in the given order. With `within`, time advances from one due job to
        the next, for that long or until that moment; with `schedules=False`, no schedule runs during the
        drain. An exception in a handler fails the attempt, as in a worker; with `raising`, `drain` raises it
        as well. An AssertionError is always raised. Returns the runs, in order.
        """
        check_no_loop("drain")
        return self._drain(Sources(handlers), Rules(self._end(within, "within"), limit, raising, schedules))

    def drain_until(
        self,
        over: Callable[[], bool],
        *handlers: Source,
        within: When,
        limit: int = LIMIT,
        schedules: bool = True,
    ) -> list[Ran]:
        """Like `drain`, but time stops advancing once `over` returns True. Old jobs are removed less often
        than once a minute here, so a year passes at once."""
        check_no_loop("drain_until")

        async def is_over() -> bool:
            succeeded, value = await CallsHere(self._loop).run(lambda _: over(), None)
            if not succeeded:
                raise value
            return bool(value)

        before, self._engine.round_ms = self._engine.round_ms, DAY_MS
        try:
            rules = Rules(self._end(within, "within"), limit, False, schedules, is_over)
            return self._drain(Sources(handlers), rules)
        finally:
            self._engine.round_ms = before

    async def drain_async(
        self,
        *handlers: Source,
        within: When = 0,
        limit: int = LIMIT,
        raising: bool = False,
        schedules: bool = True,
    ) -> list[Ran]:
        """Like `drain`, for coroutines. Handlers run in this event loop, plain functions in a thread."""
        rules = Rules(self._end(within, "within"), limit, raising, schedules)
        return await self._drain_async(Sources(handlers), rules)

    def _drain(self, sources: Sources, rules: Rules) -> list[Ran]:
        async def drained() -> list[Ran]:
            return await self._run(sources, rules, CallsHere(self._loop))

        return self._loop.run(drained())

    async def _drain_async(self, sources: Sources, rules: Rules) -> list[Ran]:
        with distinguish_ctrl_c():
            return await self._run(sources, rules, None)

    async def _run(self, sources: Sources, rules: Rules, threads: Threads | None) -> list[Ran]:
        """Run one drain. It also runs the jobs that handlers add, so runs are not nested."""
        self._declare(sources, schedules=rules.schedules)
        outer, self._runs = self._runs, Runs(self._engine, self.faults, rules)
        try:
            await self._runs.run(sources, threads)
            return self._runs.done
        finally:
            self._runs = outer

    def _declare(self, sources: Sources, *, schedules: bool = True) -> None:
        """Send the schedules and limits of apps to the engine."""
        for command in sources.declarations(schedules=schedules):
            decode_reply(self._direct.call(command), Ok, command, ADDRESS)

    @contextmanager
    def inline(self, *handlers: Source, limit: int = LIMIT, raising: bool = True) -> Iterator[None]:
        """Inside this context, jobs run as soon as they are due: before `add` returns, or when time advances.

        Jobs that a handler adds run after the handler has ended. `add` raises the exceptions of handlers,
        unless `raising=False`. An app begins and ends as in `drain`, each time that there are jobs to run.
        """
        sources = Sources(handlers)
        self._declare(sources)
        before, self._inline = self._inline, (sources, Rules(0, limit, raising))
        try:
            yield
        finally:
            self._inline = before

    def _after_change(self) -> None:
        if (inline := self._due_inline()) is not None:
            self._drain(*inline)

    async def _after_change_async(self) -> None:
        if (inline := self._due_inline()) is not None:
            await self._drain_async(*inline)

    def _due_inline(self) -> tuple[Sources, Rules] | None:
        """What has to run now, before the call of the test returns."""
        if self._inline is None or self._runs is not None or not self._inline[0].wants_any(self._engine):
            return None
        return self._inline

    # -- workers in the background

    def settle(self) -> None:
        """Wait, in real time, until the workers have done all that they can at the current moment of the
        sandbox."""
        check_no_loop("settle")
        deadline = time.monotonic() + PATIENCE
        while what := self._busy():
            _check_patience(deadline, what)
            time.sleep(POLL_S)

    async def settle_async(self) -> None:
        """Like `settle`, for workers in this event loop or others."""
        deadline = time.monotonic() + PATIENCE
        quiet = 0
        while quiet < QUIET:
            await asyncio.sleep(POLL_S if quiet == 0 else 0)
            what = self._busy()
            quiet = 0 if what else quiet + 1
            if what:
                _check_patience(deadline, what)

    def _busy(self) -> str | None:
        return self._engine.busy({each: each.pulls_from for each in self._workers if each.pulls_from})

    # -- steps of workflows

    def replace_step(
        self,
        step: str,
        by: Callable[..., Any] | None = None,
        *,
        returning: Any = None,
        raising: BaseException | None = None,
        workflow: str | None = None,
    ) -> None:
        """From now on, call `by` instead of the function of a step, with the same arguments. Or have the step
        return `returning`, or raise `raising`. Applies to all workflows, or to the one named `workflow`."""
        if by is None:
            by = partial(_replaced, returning, raising)
        elif returning is not None or raising is not None:
            raise TypeError("replace_step: give a function, or returning=, or raising=")
        self._replaced[workflow, step] = by

    def step_function(self, workflow: str, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Called by bunqueue itself."""
        found = self._replaced.get((workflow, step)) or self._replaced.get((None, step))
        return function if found is None else found

    # -- what was added

    def added(
        self, what: What, name: str | None = None, data: object = UNSET, **options: Unpack[JobOptions]
    ) -> list[Job]:
        """All matching jobs that were added so far, by any means, in the state that they had when they were
        added.

        `what` is a queue, with the other arguments as for `add`. Give only the options that matter, and of a
        dict `data` only the keys that matter. Or `what` is a typed job, `welcome`, or a call of it,
        `welcome.job("ada@example.com")`.
        """
        return self._matching(expected_of(what, name, data, options))

    def assert_added(
        self,
        what: What,
        name: str | None = None,
        data: object = UNSET,
        *,
        count: int | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Assert that a matching job was added, or exactly `count` of them. Return the last one. See `added`.

        The AssertionError shows the closest jobs.
        """
        __tracebackhide__ = True
        expected = expected_of(what, name, data, options)
        found = self._matching(expected)
        if not found or (count is not None and len(found) != count):
            wanted = "No" if count is None else f"Not {count}, but {len(found)} times"
            raise AssertionError(
                f"{wanted} {expected} was added. {near_misses(expected, self._engine.added)}"
            )
        return found[-1]

    def assert_not_added(
        self, what: What, name: str | None = None, data: object = UNSET, **options: Unpack[JobOptions]
    ) -> None:
        """Assert that no matching job was added. See `added`."""
        __tracebackhide__ = True
        expected = expected_of(what, name, data, options)
        found = self._matching(expected)
        if found:
            jobs = "\n".join(f"  - {job.name!r}, data {shown(job.data)}" for job in found)
            raise AssertionError(f"A {expected} was added:\n{jobs}")

    def _matching(self, expected: Expected) -> list[Job]:
        return [each.job for each in self._engine.added if not expected.differences(each)]

    # -- the override of all engines

    async def open(self) -> Transport:
        """A session for a client; called by bunqueue itself."""
        session = SandboxTransport(self._engine, self.faults, self._after)
        self._workers.append(session)
        return session

    def meet(self, codec: Codec) -> None:
        """A client is about to use this codec; called by bunqueue itself."""
        if codec not in self._engine.codecs:
            self._engine.codecs.append(codec)

    async def _after(self, command: Struct) -> None:
        if _changes(command):
            await self._after_change_async()

    def call(self, command: Struct) -> bytes:
        """Carry out a command of a blocking client; called by bunqueue itself."""
        if not poll_time(command):
            payload = self._direct.call(command)
            if _changes(command):
                self._after_change()
            return payload
        waiting = SandboxSession(self._engine, self.faults)  # a session of its own, which can be given up
        try:
            return waiting.call(command, patience=PATIENCE if self._busy() else 0)
        finally:
            self._engine.leave(waiting)


def _replaced(value: Any, error: BaseException | None, *args: Any, **kwargs: Any) -> Any:
    if error is not None:
        raise error
    return value


def _changes(command: Struct) -> bool:
    """Whether a command may make jobs due. Commands of workers do not count."""
    spec = spec_of(type(command))
    return spec.writes and spec.name not in WORKERS_WORDS


def _check_patience(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise SandboxError(
            f"the workers have not come to rest within {PATIENCE:g} s: {what}. In a sandbox time stands "
            f"still for jobs, not for handlers: does one wait for something that does not come?"
        )
