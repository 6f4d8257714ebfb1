"""Shards of this host that are given up because another host is ready for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bunqueue.logs import get_logger
from bunqueue.server.links import host_protocol as host_link

from ..clients.hub import Hub
from .links import Links

PAUSE_S = 2.0  # for the other hosts to send nothing more to a shard that is given up

_log = get_logger("cluster")


class Handovers:
    """Those that are under way."""

    def __init__(
        self, hub: Hub, links: Links, give_up: Callable[[int], Awaitable[None]], ended: Callable[[int], None]
    ) -> None:
        """``give_up`` has a shard answer what it has, and give itself up; ``ended`` is called after that, or
        when it has failed."""
        self._hub, self._links = hub, links
        self._give_up, self._ended = give_up, ended
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._answered: dict[int, asyncio.Event] = {}

    def begin(self, shard: int) -> None:
        """Give a shard up."""
        task = self._tasks[shard] = asyncio.get_running_loop().create_task(self._run(shard))
        task.add_done_callback(lambda task: self._done(shard, task))

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def shard_paused(self, shard: int) -> None:
        """A host sends nothing more to a shard that is given up here."""
        if shard in self._answered:
            self._answered[shard].set()

    def _done(self, shard: int, task: asyncio.Task[None]) -> None:
        self._tasks.pop(shard, None)
        self._ended(shard)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a shard could not be given up", shard=shard, error=repr(task.exception()))

    async def _run(self, shard: int) -> None:
        """No host sends the shard anything more; then it answers what it has, and gives itself up."""
        link = self._hub.shards.links[shard]
        if link is None or not link.is_local:
            return
        self._hub.pause(link)
        waiting = [downlink for downlink in self._links.downlinks if downlink.greeted]
        for downlink in waiting:
            downlink.paused_shards.discard(shard)
        self._links.broadcast(host_link.MOVING, shard)
        event = self._answered[shard] = asyncio.Event()
        try:
            async with asyncio.timeout(PAUSE_S):
                while not all(shard in link.paused_shards or link.closed.done() for link in waiting):
                    await event.wait()
                    event.clear()
        except TimeoutError:
            silent = [self._links.name(link.peer) for link in waiting if shard not in link.paused_shards]
            _log.warning(
                "a shard moves, and hosts did not answer in time", shard=shard, hosts=" ".join(silent)
            )
        del self._answered[shard]
        await self._give_up(shard)
