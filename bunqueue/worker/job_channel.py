"""Sends handlers' commands to the server, from the loop and from threads."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bunqueue.client import background, engine_override
from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.connection.replies import R
from bunqueue.errors import BunqueueError, CommandFailed
from bunqueue.protocol.commands import Ok
from bunqueue.protocol.commands.workflows import StepRecord
from bunqueue.worker.forks import Origin
from bunqueue.worker.middleware import Middleware, around_steps, observing
from bunqueue.worker.reporting.step_writer import StepWriter
from bunqueue.worker.threads import Outcome, Threads
from bunqueue.workflow.channel import Answers

if TYPE_CHECKING:
    from bunqueue.worker.active_job import ActiveJob
    from bunqueue.worker.reporting.retrying_caller import RetryingCaller

logger = logging.getLogger("bunqueue.worker")

SHORT_MS = 1_000.0  # waits of workflows that stay in the process
MIN_THREADS = 32  # for steps of workflows; each may run several at a time
MAX_SOON = 1000  # unawaited log lines in flight; more are dropped


IN_A_COPY = "this process was forked by a job: only the process that runs the job can speak for it"


class _Done:
    """An awaitable for callers that do not have to wait."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


DONE = _Done()


def _call(function: Callable[[], Any]) -> Any:
    return function()


async def _in_new_thread(function: Callable[[], Any]) -> Outcome:
    threads = Threads(1)
    try:
        return await threads.run(_call, function)
    finally:
        threads.stop()


class WorkerChannel:
    """The `JobChannel` of a worker to its server."""

    def __init__(
        self,
        caller: AsyncCaller,
        retrying: RetryingCaller,
        middleware: Sequence[Middleware] = (),
        concurrency: int = 1,
    ) -> None:
        self.stopping = False
        self.short_ms = SHORT_MS if engine_override.current is None else 0.0  # in a sandbox time stands still
        self.around_step = around_steps(middleware)
        self.observers = observing(middleware)
        self._caller = caller
        self._retrying = retrying
        self._step_writer = StepWriter(retrying)
        self._concurrency = concurrency
        self._threads: Threads | None = None  # for steps that are plain functions
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._origin = Origin()
        self._soon: set[asyncio.Task[None]] = set()

    def send(self, command: Struct) -> Awaitable[None]:
        if self._origin.is_left:
            raise BunqueueError(IN_A_COPY)
        sending = self._send(command)
        if threading.get_ident() == self._thread:
            return sending
        try:
            waiting = asyncio.run_coroutine_threadsafe(sending, self._loop)
        except RuntimeError:  # the worker is gone, and left this thread behind
            sending.close()
            raise
        waiting.result()
        return DONE

    def send_nowait(self, command: Struct) -> None:
        if self._origin.is_left:
            return
        if threading.get_ident() == self._thread:
            self._begin(command)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin, command)

    async def _send(self, command: Struct) -> None:
        await self._caller.call(command, Ok)

    def _begin(self, command: Struct) -> None:
        if len(self._soon) >= MAX_SOON:
            return
        task = background.begin(self._loop, self._send_quietly(command))
        self._soon.add(task)
        task.add_done_callback(self._soon.discard)

    async def _send_quietly(self, command: Struct) -> None:
        try:
            await self._send(command)
        except BunqueueError as error:
            logger.debug("what a handler said was lost: %s", error)

    # -- workflow commands, see `FlowChannel`

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def record(self, job: ActiveJob, records: list[StepRecord]) -> asyncio.Future[Answers]:
        return self._step_writer.record(job, records)

    async def ask(self, command: Struct, reply: type[R]) -> R:
        answer, _ = await self._retrying.ask(command, reply)
        if isinstance(answer, CommandFailed):
            raise answer
        return answer

    def in_thread(self, function: Callable[[], Any], *, of_its_own: bool = False) -> Awaitable[Outcome]:
        if of_its_own:
            return _in_new_thread(function)
        if self._threads is None:
            self._threads = Threads(max(MIN_THREADS, self._concurrency))
        return self._threads.run(_call, function)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def stop(self) -> None:
        """No more jobs will come."""
        self._retrying.closed = True
        await self._step_writer.stop()
        if self._threads is not None:
            self._threads.stop()

    async def flush(self, patience: float) -> None:
        """Wait for log lines in flight, at most `patience` seconds."""
        if self._soon:
            await asyncio.wait(self._soon, timeout=patience)
