"""Sends the jobs of one task to the server: in batches, several in flight at a time, each job added once.

If a pushed job already exists, waiting or running, the server recognizes it by its id.  If that job has
ended, the new one would replace it.  So before a batch is pushed, the server is asked which of its jobs it
knows, and these are left out.  As a result, a task that runs again adds only the missing jobs, even when
workers have finished half of them in between.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from types import TracebackType
from typing import Self

from bunqueue.client.connection.caller import Caller
from bunqueue.errors import CommandFailed
from bunqueue.protocol.commands.core import PushBatch, PushBatchReply
from bunqueue.protocol.commands.events import WaitJobs, WaitManyReply

from .rows import RowJob
from .settings import SinkSettings

ASKED = 100  # jobs in one request for outcomes
MAX_BYTES = 4 << 20  # of data in one batch
BUFFERED = 8  # batches in total, of all queues, that are not yet full, in rows or in bytes

_OF_A_ROW = ("jobs[", "dependsOn", "parentId", "groupMaxSize")
"""Prefixes of a refusal's field when it is about a job, not about the server."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of a batch."""

    accepted: int = 0
    duplicates: int = 0
    rejected: tuple[tuple[RowJob, str], ...] = ()  # with the reasons

    def __add__(self, other: Sent) -> Sent:
        return Sent(
            self.accepted + other.accepted,
            self.duplicates + other.duplicates,
            self.rejected + other.rejected,
        )


class _Batch:
    """Jobs of one queue that wait to be sent in one batch."""

    def __init__(self) -> None:
        self.jobs: list[RowJob] = []
        self.bytes = 0


class Delivery:
    """Takes the jobs of a task one by one.  At most `in_flight` batches are in flight.  When the server is
    slower than the rows arrive, `add` waits for it."""

    def __init__(self, settings: SinkSettings, write_id: str, done: Callable[[Sent], None]) -> None:
        """``done`` is called after each batch, in the thread that adds the jobs, and may raise."""
        self._settings = settings
        self._write_id = write_id
        self._done = done
        self._caller = Caller(settings.endpoint)
        self._pace = Pace(settings.rate)
        self._batches: dict[str, _Batch] = {}
        self._rows = self._bytes = 0  # in all of them
        self._threads = ThreadPoolExecutor(settings.in_flight, thread_name_prefix="bunqueue-sink")
        self._under_way: deque[Future[Sent]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._caller.close()

    def add(self, job: RowJob) -> None:
        """Send a job, soon.  Raises BunqueueError for an error with this job or an earlier one."""
        batch = self._batches.setdefault(job.queue, _Batch())
        size = len(bytes(job.fields.data))
        batch.jobs.append(job)
        batch.bytes += size
        self._rows += 1
        self._bytes += size
        if len(batch.jobs) >= self._settings.batch_size or batch.bytes >= MAX_BYTES:
            self._send(job.queue)
        elif self._rows >= BUFFERED * self._settings.batch_size or self._bytes >= BUFFERED * MAX_BYTES:
            self._send(max(self._batches, key=lambda queue: self._batches[queue].bytes))

    def finish(self) -> None:
        """Send the rest, and wait until everything is stored."""
        for queue in list(self._batches):
            self._send(queue)
        while self._under_way:
            self._done(self._under_way.popleft().result())

    def _send(self, queue: str) -> None:
        batch = self._batches.pop(queue)
        self._rows -= len(batch.jobs)
        self._bytes -= batch.bytes
        while self._under_way and (
            self._under_way[0].done() or len(self._under_way) >= self._settings.in_flight
        ):
            self._done(self._under_way.popleft().result())
        self._pace.wait(len(batch.jobs))
        self._under_way.append(self._threads.submit(self._deliver, queue, batch.jobs))

    def _deliver(self, queue: str, jobs: list[RowJob]) -> Sent:
        known = self._known(queue, list({job.id: None for job in jobs}))
        new = [job for job in jobs if job.id not in known]
        there = Sent(duplicates=len(jobs) - len(new))
        return there + self._push(queue, new) if new else there

    def _known(self, queue: str, ids: list[str]) -> set[str]:
        """The ids that the server knows, whatever the state of their jobs."""
        unknown: set[str] = set()
        for start in range(0, len(ids), ASKED):
            asked = ids[start : start + ASKED]
            while asked:
                reply = self._caller.call(WaitJobs(queue=queue, ids=asked, timeout=0), WaitManyReply)
                if not reply.ended:  # the others have not ended
                    break
                unknown.update(end.id for end in reply.ended if end.state == "unknown")
                # Answers are in the order of the request, and end early when results are large.
                asked = asked[asked.index(reply.ended[-1].id) + 1 :]
        return set(ids) - unknown

    def _push(self, queue: str, jobs: list[RowJob]) -> Sent:
        """Add jobs.  If the server refuses some, it has added none, and bisecting finds the refused ones."""
        command = PushBatch(queue=queue, jobs=[job.fields for job in jobs], idempotency_key=self._key(jobs))
        try:
            reply = self._caller.call(command, PushBatchReply)
        except CommandFailed as error:
            field = error.field or ""
            if not field.startswith(_OF_A_ROW):
                raise
            if len(jobs) == 1:
                return Sent(rejected=((jobs[0], error.reason.removeprefix(f"{field.partition(']')[0]}]: ")),))
            half = len(jobs) // 2
            return self._push(queue, jobs[:half]) + self._push(queue, jobs[half:])
        existing = len(reply.existing or ())
        return Sent(accepted=len(jobs) - existing, duplicates=existing)

    def _key(self, jobs: list[RowJob]) -> str:
        """The idempotency key of a batch.  With it the server recognizes a batch that is repeated after a
        lost reply.  It also covers jobs removed on completion, if their task runs again soon."""
        digest = blake2b(digest_size=16)
        digest.update(self._write_id.encode())
        for job in jobs:
            digest.update(b"\0" + job.id.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


class Pace:
    """Limits the rate of jobs per second, evenly."""

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock, self._sleep = clock, sleep
        self._next = clock()

    def wait(self, jobs: int) -> None:
        """Wait until ``jobs`` more may be sent."""
        if self._rate is None:
            return
        now = self._clock()
        if self._next > now:
            self._sleep(self._next - now)
        self._next = max(self._next, now) + jobs / self._rate
