"""Waiting for jobs to end: any number of jobs, with a few commands that the server answers when one ends.

A server allows fifty such commands in flight per connection and then stops reading from it. So there is not
one for each job, but one for all jobs of a queue that callers began to wait for at about the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice

from bunqueue.client import background
from bunqueue.client.connection import requests
from bunqueue.protocol.commands.events import Ended, WaitJobs, WaitManyReply

MAX_IDS = 1000  # in one command; the protocol's limit
MOST = 6  # parked commands per queue
MANY = 3  # from this number on, commands are parked only briefly, so that they merge
LONG_S, SHORT_S = 60.0, 0.2
GRACE_S = 5.0  # added for the round trip to a busy server, on top of the caller's timeout

Ask = Callable[[WaitJobs], Awaitable[WaitManyReply]]


def wait_for(queue: str, job_id: str, seconds: float | None) -> WaitJobs:
    """The command for one job."""
    return WaitJobs(
        queue=queue, ids=[job_id], timeout=min(LONG_S if seconds is None else seconds, LONG_S) * 1000
    )


class Waits:
    """All waiting over one session. It belongs to the event loop that created it."""

    def __init__(self, ask: Ask) -> None:
        self.loop = asyncio.get_running_loop()
        self._ask = ask
        self._queues: dict[str, _Watch] = {}

    async def ended(self, queue: str, job_id: str, seconds: float | None) -> Ended:
        """How a job ended, waiting up to `seconds`. Raises TimeoutError or BunqueueError.

        The server is always asked once, so 0 gives the present state.
        """
        watch = self._queues.get(queue)
        if watch is None:
            watch = self._queues[queue] = _Watch(queue, self._ask)
        async with asyncio.timeout(None if seconds is None else seconds + GRACE_S):
            return await watch.add(job_id, seconds)

    def close(self, address: str) -> None:
        """Stop all waiting: the connection to `address` is closed."""
        for queue, watch in self._queues.items():
            for job_id in list(watch.waiting):
                watch.fail([job_id], requests.closed(wait_for(queue, job_id, 0), address))


class _Watch:
    """The jobs of one queue."""

    def __init__(self, queue: str, ask: Ask) -> None:
        self._queue = queue
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self.waiting: dict[str, list[tuple[asyncio.Future[Ended], float]]] = {}
        """The waiters for each job, and their deadlines by the loop's clock."""
        self._idle: dict[str, bool] = {}  # jobs in no command; whether the server was ever asked about them
        self._parked = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._begins = False

    def add(self, job_id: str, seconds: float | None) -> asyncio.Future[Ended]:
        future: asyncio.Future[Ended] = self._loop.create_future()
        if job_id not in self.waiting:
            self.waiting[job_id] = []
            self._idle[job_id] = False
            self._go_soon()
        until = float("inf") if seconds is None else self._loop.time() + seconds
        self.waiting[job_id].append((future, until))
        return future

    def fail(self, ids: Iterable[str], error: Exception) -> None:
        """Stop waiting for some jobs with an error."""
        for job_id in ids:
            self._idle.pop(job_id, None)
            for future, _ in self.waiting.pop(job_id, ()):
                _give_up(future, error)

    def _go_soon(self) -> None:
        """Send at the end of this turn of the loop: more jobs may be added."""
        if not self._begins:
            self._begins = True
            self._loop.call_soon(self._go)

    def _go(self) -> None:
        """Send commands for the jobs that are in none."""
        self._begins = False
        while self._idle and self._parked < MOST:
            self._send(list(islice(self._idle, MAX_IDS)), SHORT_S if self._parked >= MANY else LONG_S)
        # There is no room for these yet, but each has to be checked once before its time runs out.
        fresh = [job_id for job_id, asked in self._idle.items() if not asked]
        for start in range(0, len(fresh), MAX_IDS):
            self._send(fresh[start : start + MAX_IDS], 0.0)

    def _send(self, ids: list[str], seconds: float) -> None:
        for job_id in ids:
            del self._idle[job_id]
        wanted = [job_id for job_id in ids if self._is_wanted(job_id)]
        if wanted:
            self._parked += seconds > 0
            task = background.begin(self._loop, self._watch(wanted, seconds))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _is_wanted(self, job_id: str) -> bool:
        """Whether any waiter remains for a job. Drops those that are done."""
        here = [(future, until) for future, until in self.waiting.pop(job_id) if not future.done()]
        if here:
            self.waiting[job_id] = here
        return bool(here)

    async def _watch(self, ids: list[str], seconds: float) -> None:
        """Send one command. It ends at the first waiter's deadline."""
        first = min((until for job_id in ids for _, until in self.waiting.get(job_id, ())), default=0.0)
        timeout = max(0.0, min(seconds, first - self._loop.time())) * 1000
        try:
            reply = await self._ask(WaitJobs(queue=self._queue, ids=ids, timeout=timeout))
        except Exception as error:
            self.fail(ids, error)
            return
        finally:
            self._parked -= seconds > 0
        for ended in reply.ended:
            for future, _ in self.waiting.pop(ended.id, ()):
                if not future.done():
                    future.set_result(ended)
        now = self._loop.time()
        for job_id in [job_id for job_id in ids if job_id in self.waiting]:
            for future, until in self.waiting[job_id]:
                if until <= now:
                    _give_up(future, TimeoutError())
            self._idle[job_id] = True
        if self._idle:
            self._go_soon()


def _give_up(future: asyncio.Future[Ended], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # the waiter may leave at this very moment
