"""Run jobs in a sandbox one after the other: the work of `drain`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bunqueue.worker.active_job import ActiveJob

from .errors import SandboxError
from .worker import Ran, SandboxWorker

if TYPE_CHECKING:
    from bunqueue.worker.threads import Threads

    from .engine import SandboxEngine
    from .faults import Faults
    from .sources import Sources, WorkerSpec


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of a drain."""

    end: int
    """The latest moment to which time may advance, epoch ms."""
    limit: int
    raising: bool
    schedules: bool = True
    """Whether schedules run during the drain."""
    over: Callable[[], Awaitable[bool]] | None = None
    """Called before time advances. Returns whether there is nothing left to wait for."""


class Runs:
    """One drain: workers take turns, and the clock advances when none of them has anything to do."""

    def __init__(self, engine: SandboxEngine, faults: Faults, rules: Rules) -> None:
        self.done: list[Ran] = []
        self._engine = engine
        self._faults = faults
        self._rules = rules
        self._workers: list[SandboxWorker] = []
        self._of_queue: dict[str, SandboxWorker] = {}  # in the order in which the queues are drained
        self._of_others: SandboxWorker | None = None
        self._left: tuple[SandboxWorker, ActiveJob] | None = None  # pulled for a batch, but of another type

    async def run(self, sources: Sources, threads: Threads | None) -> None:
        """Run everything that is due. `threads` is as for `SandboxWorker`. Raises SandboxError beyond the
        limit, and whatever `drain` should raise."""
        async with AsyncExitStack() as stack:
            stack.callback(self._engine.resume_schedules)
            stack.push_async_callback(sources.finish)
            for spec in await sources.begin():
                worker = self._worker(spec, threads)
                stack.push_async_callback(worker.stop)
            await self._run(sources)

    def _worker(self, spec: WorkerSpec, threads: Threads | None) -> SandboxWorker:
        raising, note = self._rules.raising, self.done.append
        worker = SandboxWorker(spec, self._engine, self._faults, note, raising=raising, threads=threads)
        self._workers.append(worker)
        if spec.queues is None:
            self._of_others = worker
        else:
            self._of_queue |= dict.fromkeys(spec.queues, worker)
        return worker

    async def _run(self, sources: Sources) -> None:
        self._pause_schedules()
        while True:
            if await self._run_next():
                continue
            for worker in self._workers:  # hooks may add jobs
                await worker.finish_hooks()
            await sources.finish_hooks()
            if not await self._run_next() and (await self._is_over() or not self._step()):
                return

    async def _is_over(self) -> bool:
        return self._rules.over is not None and await self._rules.over()

    def _step(self) -> bool:
        """Advance the clock to the next moment with due work. Return False at the end."""
        self._pause_schedules()
        return self._engine.step(self._rules.end)

    def _pause_schedules(self) -> None:
        if not self._rules.schedules:
            self._engine.pause_schedules()

    async def _run_next(self) -> bool:
        """Run the next job or the next batch. Return False if none is due."""
        left, self._left = self._left, None
        if left is not None and left[0].has_lock(left[1]):
            await self._run_with_batch(*left)
            return True
        for queue, worker in self._queues():
            while self._engine.waiting(queue):
                before = len(self.done)
                job = await self._pull(queue, worker)
                if job is not None:
                    await self._run_with_batch(worker, job)
                    return True
                if len(self.done) == before:  # a pause or a limit holds the jobs back
                    break
        return False

    def _queues(self) -> Iterator[tuple[str, SandboxWorker]]:
        yield from self._of_queue.items()
        if self._of_others is not None:
            for queue in self._engine.queues():
                if queue not in self._of_queue:
                    yield queue, self._of_others

    async def _run_with_batch(self, worker: SandboxWorker, first: ActiveJob) -> None:
        """Run a job together with those behind it that belong to the same batch."""
        jobs, batch = [first], worker.batch_of(first)
        while batch is not None and len(jobs) < batch.size and self._engine.waiting(first.queue):
            job = await self._pull(first.queue, worker)
            if job is None:
                break
            if worker.batch_of(job) is not batch:
                self._left = worker, job
                break
            jobs.append(job)
        await worker.run(jobs)

    async def _pull(self, queue: str, worker: SandboxWorker) -> ActiveJob | None:
        limit = self._rules.limit
        if len(self.done) >= limit:
            raise SandboxError(
                f"drain: {limit} jobs have run, and queue {queue!r} has more; do jobs add themselves again? "
                f"If not, give drain a higher limit"
            )
        return await worker.pull(queue)

    def check_timeouts(self) -> None:
        """Check timeouts, because time has advanced while a job ran."""
        for worker in self._workers:
            worker.check_timeouts()
