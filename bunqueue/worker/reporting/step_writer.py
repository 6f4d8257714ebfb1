"""Stores the steps of workflows. Steps that arrive while a command is in flight are sent together with the
next one.

Like outcomes, they are repeated until the server has answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from bunqueue.client import background
from bunqueue.errors import CommandFailed
from bunqueue.protocol.commands.workflows import RecordSteps, RecordStepsReply, StepRecord
from bunqueue.workflow.channel import Answers

if TYPE_CHECKING:
    from bunqueue.worker.active_job import ActiveJob
    from bunqueue.worker.reporting.retrying_caller import RetryingCaller

MAX_RECORDS = 500  # in one command
MAX_BYTES = 8 << 20  # of results in one command; a frame holds 64 MiB
MAX_FLIGHTS = 2  # commands in flight per queue: one is prepared while the other is executed


class _Item(NamedTuple):
    job_id: str
    records: list[StepRecord]
    answers: asyncio.Future[Answers]


class _Batcher:
    """The pending steps of one queue, and therefore of one shard."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.waiting: deque[_Item] = deque()
        self.flights = 0
        self.jobs: set[str] = set()  # jobs that have something in flight
        self.is_due = False

    def take(self) -> list[_Item]:
        """The next items to send, without jobs that have something in flight, because that comes first."""
        taken: list[_Item] = []
        left: deque[_Item] = deque()
        records = size = 0
        while self.waiting and records < MAX_RECORDS and size < MAX_BYTES:
            item = self.waiting.popleft()
            if item.job_id in self.jobs:
                left.append(item)
                continue
            taken.append(item)
            records += len(item.records)
            size += sum(len(memoryview(record.result)) for record in item.records)
        self.waiting.extendleft(reversed(left))
        self.jobs.update(item.job_id for item in taken)
        return taken


class StepWriter:
    """Made and used in the worker's event loop."""

    def __init__(self, retrying: RetryingCaller) -> None:
        self._retrying = retrying
        self._loop = asyncio.get_running_loop()
        self._batchers: dict[str, _Batcher] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def record(self, job: ActiveJob[Any], records: list[StepRecord]) -> asyncio.Future[Answers]:
        """See `FlowChannel`."""
        batcher = self._batchers.get(job.queue)
        if batcher is None:
            batcher = self._batchers[job.queue] = _Batcher(job.queue)
        answers: asyncio.Future[Answers] = self._loop.create_future()
        batcher.waiting.append(_Item(job.id, records, answers))
        if not batcher.is_due and batcher.flights < MAX_FLIGHTS:
            batcher.is_due = True
            self._loop.call_soon(self._begin, batcher)  # together with others from the same turn of the loop
        return answers

    def _begin(self, batcher: _Batcher) -> None:
        batcher.is_due = False
        if batcher.flights < MAX_FLIGHTS and (items := batcher.take()):
            batcher.flights += 1
            task = background.begin(self._loop, self._fly(batcher, items))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fly(self, batcher: _Batcher, items: list[_Item]) -> None:
        await self._send(batcher.queue, items)
        batcher.flights -= 1
        batcher.jobs.difference_update(item.job_id for item in items)
        if batcher.waiting:
            self._begin(batcher)

    async def _send(self, queue: str, items: list[_Item]) -> None:
        """Split in halves if refused as a whole: one workflow's records must not fail the others."""
        command = RecordSteps(queue=queue, steps=[each for item in items for each in item.records])
        reply, _ = await self._retrying.ask(command, RecordStepsReply)
        if not isinstance(reply, CommandFailed):
            _answer(items, reply.results)
        elif len(items) > 1:
            middle = len(items) // 2
            await self._send(queue, items[:middle])
            await self._send(queue, items[middle:])
        elif not items[0].answers.done():
            items[0].answers.set_exception(reply)

    async def stop(self) -> None:
        """Discard what is not stored."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _answer(items: Iterable[_Item], results: Answers) -> None:
    start = 0
    for item in items:
        end = start + len(item.records)
        if not item.answers.done():  # nobody waits any more for a cancelled branch
            item.answers.set_result(results[start:end])
        start = end
