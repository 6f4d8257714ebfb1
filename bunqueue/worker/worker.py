"""`Worker`: takes jobs from a queue and runs them, until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, Unpack, cast

from bunqueue.client import background
from bunqueue.client.connection.endpoint_options import endpoint_of
from bunqueue.client.connection.options import Duration, refused, seconds
from bunqueue.client.options import checks
from bunqueue.worker.control import Control
from bunqueue.worker.options import (
    WorkerOptions,
    config_of,
    endpoint_options_of,
    grace_of,
    name_of,
    queues_of,
)
from bunqueue.worker.processes import handler_path
from bunqueue.worker.routes import ANY, LOOP, PROCESS, THREAD, Table, Work
from bunqueue.worker.run import NOTICED, WorkerRun
from bunqueue.worker.service import run_forever


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """What a worker has done since its start, and what it is doing now."""

    completed: int = 0
    failed: int = 0
    """Attempts, not jobs."""
    lost: int = 0
    """Jobs whose outcome did not count, because their lock was lost."""
    cancelled: int = 0
    """Jobs that were cancelled while they ran."""
    interrupted: int = 0
    """Jobs that were given back because the worker stopped; the attempt does not count."""
    active: int = 0


EXECUTORS = {LOOP: "the event loop", THREAD: "threads", PROCESS: "processes"}
WorkerState = Literal["running", "stopping", "stopped"]


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """The current state of a worker."""

    ok: bool
    """Whether it runs, the server answers, and the event loop is not blocked."""
    state: WorkerState
    silence: float | None
    """Seconds since the server last answered, at most about 10 while all is well; None: never."""
    loop_lag: float
    """Seconds for which the event loop has been blocked."""


def _what(table: Table, limit: str) -> str:
    """The jobs that it runs, and where, as text for people."""
    names = ", ".join("all other jobs" if name == ANY else name for name in table.plans)
    what = "all jobs" if list(table.plans) == [ANY] else names
    how = ", ".join(sorted(EXECUTORS[executor] for executor in table.executors))
    return f"{what}, {limit}, in {how}"


DRAIN_S = 30 * 86_400.0
"""How long the jobs of a worker that drains may take: the longest time that event loops can wait for."""


class Worker:
    """Runs `handler` for the jobs of `queue`, at most `concurrency` at a time.

        async def send(job: ActiveJob) -> object: ...
        await Worker("emails", send, concurrency=20).run()

    A coroutine function runs in the event loop, a plain function in a thread. Its return value is the job's
    result; an exception fails the attempt. Instead of one handler there may be a map of handlers by job name,
    with "*" for all others; jobs whose name is not in it are put back. Several queues share the `concurrency`
    of one worker. All options are keyword arguments, see `WorkerOptions`.
    """

    def __init__(
        self,
        queue: str | Sequence[str],
        handler: Work,
        **options: Unpack[WorkerOptions],
    ) -> None:
        self.queues = queues_of(queue)
        self._given = handler, options
        self.name = name_of(self.queues, options)
        self._endpoint = endpoint_of(endpoint_options_of(options))
        self._grace = grace_of(options)
        self._config = config_of(self.queues, handler, options)
        self._control = Control(self._config.concurrency)
        self._current: WorkerRun | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Worker({self.queue!r} at {self._endpoint.address}, owner={self.owner!r})"

    def with_options(self, **changes: Unpack[WorkerOptions]) -> Worker:
        """Another worker for the same jobs, with these options changed."""
        handler, options = self._given
        return Worker(self.queues, handler, **cast(WorkerOptions, {**options, **changes}))

    def describe(self) -> list[str]:
        """What it does, as text for people: a line for each queue."""
        table = self._config.run.table
        limit = f"{self._config.concurrency} at a time" + (" in all" if len(self.queues) > 1 else "")
        where = self._endpoint.address
        return [f"queue {queue} at {where}: {_what(table.of(queue), limit)}" for queue in self.queues]

    @property
    def queue(self) -> str:
        """The name of the queue, or of all queues, separated by commas."""
        return ", ".join(self.queues)

    @property
    def owner(self) -> str:
        """The server's name for the holder of a job: name, process, and a random part."""
        return self._config.fetch.owner

    @property
    def stats(self) -> WorkerStats:
        """Numbers since the last start."""
        run = self._current
        if run is None:
            return WorkerStats()
        done = run.stats
        counted = (done.completed, done.failed, done.lost, done.cancelled, done.interrupted)
        return WorkerStats(*counted, active=run.busy)

    @property
    def recycle_reason(self) -> str | None:
        """Why the worker stopped on its own: `max_jobs` or `max_memory` was reached. It can be started again,
        but it is the process that should be restarted.
        """
        return self._current.recycle_reason if self._current is not None else None

    @property
    def asked_to_stop(self) -> bool:
        """Whether somebody asked for its end at the server, as `bunqueue worker stop` does."""
        return self._current is not None and self._current.asked_to_stop

    @property
    def drains(self) -> bool:
        """Whether it stops without a limit on how long its running jobs may take."""
        return self._current is not None and self._current.drains

    def health(self, *, max_silence: Duration = 60_000) -> WorkerHealth:
        """Whether the worker can work; callable from any thread. `max_silence` is how long the server may go
        without an answer, or the event loop be blocked: set it longer than a restart of the server takes.
        """
        run, limit = self._current, seconds(max_silence, "max_silence")
        if run is None:
            return WorkerHealth(False, "stopped", None, 0.0)
        state: WorkerState = "running"
        if self._stopping is not None:
            state = "stopped" if self._stopping.done() else "stopping"
        silence, lag = run.silence(), run.lag
        waited = run.age if silence is None else silence
        works = state != "stopped" and run.fatal is None
        return WorkerHealth(works and waited <= limit and lag <= limit, state, silence, lag)

    @property
    def paused(self) -> bool:
        """Whether it takes no jobs: see `pause`."""
        return self._control.paused

    @property
    def concurrency(self) -> int:
        """How many jobs run at a time."""
        return self._control.concurrency

    def pause(self) -> None:
        """Take no more jobs until `resume`; running jobs continue. Callable from any thread, also before the
        start. A job that arrives afterwards, because it was already asked for, goes back; no attempt counts.

        `AsyncAdmin.control_worker`, the command line and the dashboard do the same remotely.
        """
        self._change(paused=True)

    def resume(self) -> None:
        """Take jobs again. Callable from any thread."""
        self._change(paused=False)

    def set_concurrency(self, concurrency: int) -> None:
        """Set how many jobs run at a time. Callable from any thread. Running jobs continue, even if there are
        more.

        The limits `threads` and `processes` are raised as well, unless they were lower than the concurrency.
        """
        count, least = checks.whole("concurrency", concurrency), self._config.fetch.least
        if count < least:
            raise refused("concurrency", count, f"is too little for {least} queues; give one for each", least)
        self._change(concurrency=count)

    def _change(self, *, paused: bool | None = None, concurrency: int | None = None) -> None:
        control = self._control
        control.paused = control.paused if paused is None else paused
        control.concurrency = control.concurrency if concurrency is None else concurrency
        if (run := self._current) is not None:
            run.controlled()

    async def start(self) -> None:
        """Start to take jobs, and return. Does nothing if the worker is already running.

        Does not wait for a connection. Raises whatever opening the file of an embedded queue raises. A worker
        that cannot continue or is worn out stops on its own; that is logged, and `health` shows it.
        """
        if handler_path.importing:
            raise RuntimeError(
                f"{self!r} starts while its handlers are imported for another process; put what starts it "
                f'under if __name__ == "__main__":'
            )
        self._forget_if_loop_closed()
        if self._stopping is not None:
            if not self._stopping.done():
                await asyncio.shield(self._stopping)
            self._current = self._stopping = None
        if self._current is None:
            run = self._current = WorkerRun(self._config, self._endpoint, self._control)
            try:
                await run.start()
            except BaseException:
                self._current = None
                raise
            self._watch(run)

    def _forget_if_loop_closed(self) -> None:
        """Forget a run whose event loop has been closed."""
        if self._current is not None and self._current.loop_closed:
            self._current = self._stopping = None

    def _watch(self, run: WorkerRun) -> None:
        """Stop it when its run is over, even if all tasks of the event loop are cancelled."""
        if self._current is run and self._stopping is None and not run.loop_closed:
            loop = asyncio.get_running_loop()
            self._watching = background.begin(loop, self._stop_when_over(run))
            self._watching.add_done_callback(lambda _: loop.call_later(NOTICED, self._watch, run))

    async def _stop_when_over(self, run: WorkerRun) -> None:
        await run.over.wait()
        if self._current is run:
            await self.stop()

    async def stop(self, *, grace: Duration | None = None) -> None:
        """Take no more jobs, let handlers end, report, close. Safe to call twice.

        After `grace` (None: the worker's own) handlers that still run are cancelled, or left behind in their
        threads, and their attempts end as interrupted.
        """
        self._forget_if_loop_closed()
        run = self._current
        if run is None:
            return
        usual = DRAIN_S if run.drains else self._grace
        patience = usual if grace is None else seconds(grace, "grace")
        if self._stopping is None:
            run.over.set()
            self._stopping = background.begin(asyncio.get_running_loop(), run.stop(patience))
        elif patience <= 0:
            run.end_grace()
        try:
            await asyncio.shield(self._stopping)
        except asyncio.CancelledError:
            run.end_grace()
            raise

    def stop_soon(self, *, hurry: bool = False, drain: bool = False) -> None:
        """Make `run` stop and return; for signal handlers. With `hurry` the grace is over at once, with
        `drain` it lasts as long as the running jobs.
        """
        run = self._current
        if run is not None:
            run.drains = run.drains or drain
            run.over.set()
            if hurry:
                run.end_grace()

    async def run(self) -> None:
        """Work until `stop` or `stop_soon` is called, or until this is cancelled.

        Raises AuthError if the server refuses the token, and KeyboardInterrupt or SystemExit if a coroutine
        handler raised it; in each case after a graceful stop.
        """
        problem = await self.serve()
        if problem is not None:
            raise problem

    async def serve(self) -> BaseException | None:
        """Like `run`, but return what it would raise."""
        await self.start()
        run = self._current
        assert run is not None
        try:
            await run.over.wait()
        finally:
            await self.stop()
        return run.fatal

    def run_forever(self) -> None:
        """Like `run`, in its own event loop, until SIGTERM or SIGINT; a second signal ends the grace."""
        run_forever(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
