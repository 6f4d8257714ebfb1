"""The server as a whole."""

from __future__ import annotations

import time

from bunqueue.client import jobs as replies
from bunqueue.client.jobs import QueueInfo, ServerStats
from bunqueue.client.queue.base import AsyncQueueBase
from bunqueue.protocol.commands import server


class AsyncMonitoring(AsyncQueueBase):
    """What a queue can tell of its server."""

    async def list_queues(self) -> list[QueueInfo]:
        """All queues of the server."""
        reply = await self._caller.call(server.ListQueues(), replies.NamesOfQueues)
        return [QueueInfo(queue) if isinstance(queue, str) else queue for queue in reply.queues]

    async def stats(self) -> ServerStats:
        """Numbers over the whole server."""
        reply = await self._caller.call(server.Stats(), replies.StatsOfServer)
        return reply.stats

    async def ping(self) -> float:
        """How long the server takes to answer, in ms."""
        start = time.perf_counter()
        await self._caller.call(server.Ping(), server.PingReply)
        return (time.perf_counter() - start) * 1000
