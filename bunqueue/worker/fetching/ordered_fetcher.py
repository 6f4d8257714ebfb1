"""Asks several queues one after the other, in a strict order or by weights."""

from __future__ import annotations

import asyncio

from bunqueue.errors import AuthError, BunqueueError
from bunqueue.worker.fetching.fetcher import FetchConfig, Fetcher
from bunqueue.worker.fetching.order import Turns

IDLE = 200  # ms: the longest wait of a job in another queue while the first queue's poll is parked


class OrderedFetcher(Fetcher):
    """Runs one poll at a time, so that its jobs were next in order when it asked.

    A parked poll cannot be withdrawn, so an idle worker parks one only briefly, and then asks all queues
    again.
    """

    def _begin(self) -> list[asyncio.Task[None]]:
        queues, order = self._config.queues, self._config.order
        self._turns = Turns(queues, None if isinstance(order, str) else order)
        return [self._loop.create_task(self._sweeps())]

    async def _sweeps(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                await self._sweep()
                failures = 0
            except AuthError as error:
                self._give_up(error)
                return
            except BunqueueError as error:
                failures += 1
                await self._failed(error, failures)

    async def _sweep(self) -> None:
        """Ask until there is no room, or no queue has more; then wait until that may have changed."""
        empty: set[str] = set()
        while len(empty) < len(self._config.queues):
            count = await self._ask(empty, 0)
            if count is None:
                self.change.clear()
                await self.change.wait()
                return
            if self._stopping.is_set():
                return
        await self._ask(set(), min(IDLE, self._config.poll_timeout))

    async def _ask(self, empty: set[str], wait: float) -> int | None:
        """The number of jobs from the next queue; None: there is no room.

        Adds the queue to `empty` if it has no more. `wait` in ms.
        """
        room = min(self._intake.room(), self.pull_size)
        if room <= 0:
            self._turns.ended(empty)
            return None
        queue, count = self._turns.ask(room, empty)
        reply = await self._pull(queue, count, wait)
        self._take_reply(reply)
        self._turns.took(queue, len(reply.jobs))
        if len(reply.jobs) < count:
            empty.add(queue)
        if len(empty) == len(self._config.queues):
            self._turns.ended(empty)
        return len(reply.jobs)


def fetcher_for(config: FetchConfig) -> type[Fetcher]:
    """The fetcher class that keeps to the order."""
    return OrderedFetcher if config.in_turns else Fetcher
