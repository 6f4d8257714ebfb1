"""Jobs that run together: a handler that takes a list of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple

from bunqueue.client import engine_override
from bunqueue.client.callables import finished, is_async
from bunqueue.client.connection.options import Duration, refused, shown, span
from bunqueue.client.interrupts import runs
from bunqueue.client.options import checks
from bunqueue.errors import ResultError
from bunqueue.worker.active_job import INTERRUPTED, ActiveJob, Ending, JobChannel
from bunqueue.worker.log_context import batch_fields, given_fields
from bunqueue.worker.threads import Outcome

BatchHandler = Callable[[list[ActiveJob]], Any]
"""Returns a list with a result for each job, in order, or None. An exception in the list fails its job."""


class _Member(NamedTuple):
    job: ActiveJob
    outcome: asyncio.Future[Outcome]


class Batch:
    """A handler for many jobs at a time: `handler` gets a list of them.

        Worker("visits", {"visit": Batch(insert, size=100, min_size=10)}, concurrency=100)

    It is called as soon as there are `min_size` jobs, with all that are there, at most `size`; or, with
    fewer, once the first has waited for `max_wait` (ms or a timedelta). `min_size` defaults to `size`. The
    handler returns a list with a result for each job, in order, or None. An exception in the list fails that
    job alone; a raised exception fails all. Raises OptionError.
    """

    def __init__(
        self,
        handler: BatchHandler,
        *,
        size: int = 10,
        min_size: int | None = None,
        max_wait: Duration = 1_000,
    ) -> None:
        if checks.function("handler", handler) is None:
            raise refused("handler", handler, "cannot be called; give a function")
        self.size = checks.whole("size", size)
        self.min_size = self.size if min_size is None else checks.whole("min_size", min_size)
        if self.min_size > self.size:
            most = f"is not allowed; a batch has at most size={self.size} jobs"
            raise refused("min_size", self.min_size, most, self.size)
        self.handler = handler
        self._max_wait = span(max_wait, "max_wait") / 1000
        self._waiting: list[_Member] = []
        self._timer: asyncio.Handle | None = None  # starts the batch with the waiting jobs
        self._tasks: dict[asyncio.Task[None], list[_Member]] = {}

    def __repr__(self) -> str:
        return f"Batch({shown(self.handler)}, size={self.size}, min_size={self.min_size})"

    async def run(self, job: ActiveJob) -> Any:
        """Run one job together with others, and return its result."""
        loop = asyncio.get_running_loop()
        if self._waiting and self._waiting[0].outcome.get_loop() is not loop:
            self._waiting.clear()  # of a worker whose event loop is gone
        member = _Member(job, loop.create_future())
        self._waiting.append(member)
        if job.stopping:  # it came too late
            self.withdraw(job.channel)
        else:
            self._joined(loop)
        try:
            succeeded, value = await member.outcome
        except asyncio.CancelledError:
            await self._cancelled(member)
            raise
        if not succeeded:
            raise value
        return value

    def _joined(self, loop: asyncio.AbstractEventLoop) -> None:
        count = len(self._waiting)
        if count >= self.size:
            self._go()
        elif count == self.min_size:
            self._set_timer(loop.call_soon(self._go_with_all, count))
        elif count == 1:
            wait = self._max_wait if engine_override.current is None else 0.0  # a sandbox's time stands still
            self._set_timer(loop.call_later(wait, self._go))

    def _go_with_all(self, count: int) -> None:
        """Start once no more jobs arrive: jobs from one reply of the server begin a few at a time."""
        if len(self._waiting) > count:
            self._set_timer(asyncio.get_running_loop().call_soon(self._go_with_all, len(self._waiting)))
        else:
            self._go()

    def _set_timer(self, timer: asyncio.Handle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    async def _cancelled(self, member: _Member) -> None:
        """The run of one job was ended. The handler is ended once all jobs of its batch are. A thread
        continues with all of them, and none of them ends before the thread returns or the worker stops.
        """
        if member in self._waiting:
            self._waiting.remove(member)
            if not self._waiting:
                self._set_timer(None)
        for task, members in list(self._tasks.items()):
            if member not in members:
                continue
            if not self._in_thread:
                if all(each.outcome.done() for each in members):
                    task.cancel()
            elif member.job.ending is not None and member.job.ending.why != INTERRUPTED:
                await asyncio.wait([task])

    def withdraw(self, channel: JobChannel) -> None:
        """The worker stops, so no more jobs come from it: return its jobs that still wait here to their
        queue.

        Jobs that were completed before their run (at most once) cannot go back; they run now.
        """
        mine = [member.job for member in self._waiting if member.job.is_of(channel)]
        if any(job.acked for job in mine):
            self._go()
            return
        for job in mine:
            job.ending = job.ending or Ending(INTERRUPTED)
            if job.halt is not None:
                job.halt()

    def _go(self) -> None:
        self._set_timer(None)
        members, self._waiting = self._waiting, []
        if members:
            # Use a new context: context variables of one job must not apply to all of them.
            context = Context()
            context.run(given_fields.set, batch_fields([member.job for member in members]))
            task = asyncio.get_running_loop().create_task(self._run(members), context=context)
            self._tasks[task] = members
            task.add_done_callback(self._tasks.pop)

    async def _run(self, members: list[_Member]) -> None:
        """Raises nothing: whatever the handler raises or returns is the outcome of each job."""
        outcomes: list[Outcome]
        task = asyncio.current_task()
        try:
            results = self._results(await self._call([member.job for member in members]), members)
            outcomes = [(not isinstance(result, BaseException), result) for result in results]
        except BaseException as error:
            if type(error) is GeneratorExit and not runs(task):  # the event loop is gone
                raise
            outcomes = [(False, error)] * len(members)
        for member, outcome in zip(members, outcomes, strict=True):
            if not member.outcome.done():  # else it was cancelled in the meantime
                member.outcome.set_result(outcome)

    @property
    def _in_thread(self) -> bool:
        return not is_async(self.handler)

    async def _call(self, jobs: list[ActiveJob]) -> Any:
        if not self._in_thread:
            return await self.handler(jobs)
        channel = jobs[0].channel
        succeeded, value = await channel.in_thread(partial(self.handler, jobs), of_its_own=True)
        if not succeeded:
            raise value
        return await finished(value)

    def _results(self, given: Any, members: list[_Member]) -> Sequence[Any]:
        count = len(members)
        if given is None:
            return [None] * count
        if not isinstance(given, Sequence) or isinstance(given, str | bytes) or len(given) != count:
            name = members[0].job.name
            raise ResultError(
                f"batch {name!r} got {count} jobs and gave {shown(given)}; give a result for each",
                field="result",
                value=shown(given),
                bound=count,
            )
        return given
