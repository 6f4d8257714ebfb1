"""Jobs that are run together: a handler that takes a list of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from bunqueue.client import substitute
from bunqueue.client.connection.options import Duration, shown, span
from bunqueue.client.options import checks
from bunqueue.client.worker.active_job import ActiveJob
from bunqueue.client.worker.retry_rules import RetryRules
from bunqueue.client.worker.routes import Route
from bunqueue.client.worker.threads import Threads
from bunqueue.errors import ResultError

BatchHandler = Callable[[list[ActiveJob]], Any]
"""Gives a list with a result for each job, in their order, or None. An exception in it fails its job."""


class Batch:
    """Collects jobs of one name until there are `size` of them, or the first has waited for `wait`."""

    def __init__(
        self,
        name: str,
        handler: BatchHandler,
        size: int,
        wait: Duration,
        retry: RetryRules | None = None,
    ) -> None:
        self.name = checks.job_name(name)
        self.size = checks.whole("size", size)
        self._handler = handler
        self._retry = retry
        self._wait = span(wait, "wait") / 1000
        self._jobs: list[tuple[ActiveJob, asyncio.Future[Any]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], list[asyncio.Future[Any]]] = {}

    @property
    def route(self) -> Route:
        """What a worker is given."""
        return Route(self.run, retry=self._retry)

    async def run(self, job: ActiveJob) -> Any:
        """The result of one job; it is run together with others."""
        loop = asyncio.get_running_loop()
        if self._jobs and self._jobs[0][1].get_loop() is not loop:
            self._jobs.clear()  # of a worker that is gone, and with it its loop
        future = loop.create_future()
        self._jobs.append((job, future))
        if len(self._jobs) >= self.size:
            self._go()
        elif len(self._jobs) == 1:
            wait = self._wait if substitute.current is None else 0.0  # in a sandbox time stands still
            self._timer = loop.call_later(wait, self._go)
        try:
            return await future
        except asyncio.CancelledError:
            self._cancel_if_unwanted(future)
            raise

    def _cancel_if_unwanted(self, future: asyncio.Future[Any]) -> None:
        """When all jobs of a batch have been ended, its handler is, too."""
        for task, futures in self._tasks.items():
            if future in futures and all(each.done() for each in futures):
                task.cancel()

    def _go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        jobs, self._jobs = [(job, future) for job, future in self._jobs if not future.done()], []
        if jobs:
            # In a context of its own: what belongs to one of the jobs must not be taken for all of them.
            task = asyncio.get_running_loop().create_task(self._run(jobs), context=Context())
            self._tasks[task] = [future for _, future in jobs]
            task.add_done_callback(self._tasks.pop)

    async def _run(self, jobs: list[tuple[ActiveJob, asyncio.Future[Any]]]) -> None:
        try:
            results = self._results(await self._call([job for job, _ in jobs]), len(jobs))
        except BaseException as error:
            results = [error] * len(jobs)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            for (_, future), result in zip(jobs, results, strict=True):
                if future.done():  # it was cancelled meanwhile
                    continue
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    async def _call(self, jobs: list[ActiveJob]) -> Any:
        if inspect.iscoroutinefunction(self._handler):
            return await self._handler(jobs)
        threads = Threads(1)
        try:
            succeeded, value = await threads.run(self._handler, jobs)
        finally:
            threads.stop()
        if not succeeded:
            raise value
        return value

    def _results(self, given: Any, count: int) -> Sequence[Any]:
        if given is None:
            return [None] * count
        if not isinstance(given, Sequence) or isinstance(given, str | bytes) or len(given) != count:
            raise ResultError(
                f"batch {self.name!r} got {count} jobs and gave {shown(given)}; give a result for each"
            )
        return given
