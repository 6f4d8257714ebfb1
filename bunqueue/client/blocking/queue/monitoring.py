"""Made by scripts/unasync.py from client/queue/monitoring.py; do not edit."""

from __future__ import annotations

import time

from bunqueue.client import jobs as replies
from bunqueue.client.blocking.queue.base import QueueBase
from bunqueue.client.jobs import QueueInfo, ServerStats
from bunqueue.protocol.commands import server


class Monitoring(QueueBase):
    """What a queue can tell of its server."""

    def list_queues(self) -> list[QueueInfo]:
        """All queues of the server."""
        reply = self._caller.call(server.ListQueues(), replies.NamesOfQueues)
        return [QueueInfo(queue) if isinstance(queue, str) else queue for queue in reply.queues]

    def stats(self) -> ServerStats:
        """Numbers over the whole server."""
        reply = self._caller.call(server.Stats(), replies.StatsOfServer)
        return reply.stats

    def ping(self) -> float:
        """How long the server takes to answer, in ms."""
        start = time.perf_counter()
        self._caller.call(server.Ping(), server.PingReply)
        return (time.perf_counter() - start) * 1000
