"""Asks for as many jobs as can start at once, and never for one that would have to wait here."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from bunqueue.client.connection.options import reconnect_delay
from bunqueue.client.connection.replies import decode_reply
from bunqueue.client.connection.transport import Transport
from bunqueue.client.models.jobs import PulledJobs
from bunqueue.errors import AuthError, BunqueueError
from bunqueue.protocol.commands.core import FAIR, GroupRule, PullBatch
from bunqueue.worker.fetching.intake import Intake
from bunqueue.worker.fetching.order import Order
from bunqueue.worker.outcomes import Outcomes

MAX_PULL = 1000  # jobs in one reply; the protocol's limit
POLLS = 2  # for a single queue: while one is parked for few jobs, the other asks for slots freed since then
MAX_POLL_DELAY = 5.0  # seconds between polls that fail


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    """What to ask for. `lock_ttl` and `poll_timeout` in ms, as they are sent."""

    queues: tuple[str, ...]
    owner: str
    pull_size: int
    lock_ttl: int
    poll_timeout: float
    group: GroupRule = FAIR
    order: Order = "even"

    @property
    def in_turns(self) -> bool:
        """Whether the queues are asked one after the other."""
        return len(self.queues) > 1 and self.order != "even"

    @property
    def least(self) -> int:
        """The minimum number of slots: in even order each queue has one of its own."""
        return len(self.queues) if self.order == "even" else 1


class Fetcher:
    """The polls of a worker, for one queue or for several, which share the room.

    Each of several queues has a job here, or a poll in flight for one; the remaining room goes to queues that
    have more jobs.
    """

    def __init__(
        self,
        config: FetchConfig,
        intake: Intake,
        stats: Outcomes,
        give_up: Callable[[BaseException], None],
        ended: Callable[[asyncio.Task[None]], None],
        change: asyncio.Event,
        address: str,
    ) -> None:
        """`intake` runs the jobs. `stats` is notified of polls that failed and are repeated; `give_up` is
        called when polling makes no sense any more, and `ended` with each of its tasks that has ended. Set
        `change` when there may be more room.
        """
        self.change = change
        self.pull_size = config.pull_size
        """How many jobs one poll may bring; may be changed."""
        self.received_at = 0.0
        """When a poll was last answered, by the monotonic clock; 0: never."""
        self._config = config
        self._intake = intake
        self._stats = stats
        self._give_up = give_up
        self._task_ended = ended
        self._transport: Transport | None = None
        self._address = address
        self._asked_for = 0  # jobs that polls in flight may bring
        self._under_way = dict.fromkeys(config.queues, 0)  # the number of polls
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tasks: Sequence[asyncio.Task[None]] = ()

    def start(self, transport: Transport) -> None:
        """Poll over this connection, which is not shared."""
        self._transport = transport
        self._tasks = self._begin()
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    @property
    def is_cancelled(self) -> bool:
        """Whether its tasks were cancelled, as an event loop does with all its tasks when it ends."""
        return any(task.cancelling() for task in self._tasks)

    def _begin(self) -> list[asyncio.Task[None]]:
        only = len(self._config.queues) == 1
        queues = [queue for queue in self._config.queues for _ in range(POLLS if only else 1)]
        return [self._loop.create_task(self._poll(queue)) for queue in queues]

    def stop_asking(self) -> None:
        """Start no more polls; those in flight end with their connection."""
        self._stopping.set()
        self.change.set()

    async def stop(self) -> None:
        """Returns when no poll is left."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _poll(self, queue: str) -> None:
        failures, idle = 0, False
        while not self._stopping.is_set():
            room = self._room(queue, idle=idle)
            if room <= 0:
                self.change.clear()
                await self.change.wait()
                continue
            self._asked_for += room
            self._under_way[queue] += 1
            try:
                patient = idle or len(self._under_way) == 1
                reply = await self._pull(queue, room, self._config.poll_timeout if patient else 0)
                failures = 0
            except AuthError as error:
                self._give_up(error)
                return
            except BunqueueError as error:
                failures += 1
                await self._failed(error, failures)
                continue
            finally:
                self._asked_for -= room
                self._under_way[queue] -= 1
                if len(self._under_way) > 1:
                    self.change.set()  # the room it did not use is free for others
            idle = not reply.jobs
            self._take_reply(reply)
            if 0 < len(reply.jobs) < room:
                await asyncio.sleep(0)  # the queue has no more: start these before asking again

    def _take_reply(self, reply: PulledJobs) -> None:
        self.received_at = time.monotonic()
        if not self._stopping.is_set():  # else the jobs are left alone: closing gives them back
            self._intake.take(reply)

    def _room(self, queue: str, *, idle: bool) -> int:
        """How many jobs could start at once, are not asked for yet, and may come from this queue."""
        room = min(self._intake.room() - self._asked_for, self.pull_size)
        if len(self._under_way) == 1:
            return room
        for other, polls in self._under_way.items():
            if other != queue and not polls and not self._intake.has_any(other):
                room -= 1  # reserved for it
        return min(room, 1) if idle else room

    async def _pull(self, queue: str, count: int, wait: float) -> PulledJobs:
        config = self._config
        command = PullBatch(
            queue=queue,
            count=count,
            timeout=wait,
            owner=config.owner,
            lock_ttl=config.lock_ttl,
            signals=True,
            own_timeouts=True,
            group=config.group,
        )
        assert self._transport is not None
        return decode_reply(await self._transport.call(command), PulledJobs, command, self._address)

    async def _failed(self, error: BunqueueError, failures: int) -> None:
        if self._stopping.is_set():
            return
        self._stats.unreachable(error)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(reconnect_delay(failures, random.random()), MAX_POLL_DELAY)):
                await self._stopping.wait()
