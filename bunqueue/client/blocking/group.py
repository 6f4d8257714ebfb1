"""Made by scripts/unasync.py from client/group.py; do not edit."""

from __future__ import annotations

import re
from typing import Unpack, cast

from bunqueue.client.blocking.base import Client
from bunqueue.client.connection.concurrent_calls import Gather
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.client.connection.options import refused
from bunqueue.client.models import jobs as replies
from bunqueue.client.models.jobs import JobCounts, QueueInfo
from bunqueue.client.options.job import JobOptions
from bunqueue.client.blocking.queue import Queue
from bunqueue.protocol.commands import query, queues, server
from bunqueue.worker.options import WorkerOptions
from bunqueue.worker.routes import Work
from bunqueue.worker.worker import Worker

SEPARATOR = ":"


class QueueGroup(Client):
    """All queues of a namespace: "billing" has "billing:invoices" and "billing:payments".

        with QueueGroup("billing") as billing:
            billing.queue("invoices").add("send", {"number": 17})
            billing.pause_all()

    With namespaces, several teams, tenants or environments share a server without name clashes. `list_queues`
    and the methods that end in `_all` apply to all queues of the namespace on the server, even if other
    programs created them. A queue created later is not paused by an earlier `pause_all`.
    `default_job_options` apply to the queues made here. For the other options see `EndpointOptions`.
    """

    def __init__(
        self,
        namespace: str,
        *,
        default_job_options: JobOptions | None = None,
        **endpoint: Unpack[EndpointOptions],
    ) -> None:
        if not isinstance(namespace, str) or not re.fullmatch(r"[a-zA-Z0-9_.:-]{1,200}", namespace):
            allowed = "1 to 200 of the characters a-z A-Z 0-9 _ - . :"
            raise refused("namespace", namespace, f"is not allowed; give {allowed}")
        super().__init__(**endpoint)
        self.namespace = namespace
        self._endpoint_options = endpoint
        self._defaults = default_job_options
        self._queues: dict[str, Queue] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.namespace!r} at {self._caller.endpoint.address})"

    def full_name(self, name: str) -> str:
        """The server's name for the queue `name` of this namespace."""
        return f"{self.namespace}{SEPARATOR}{name}"

    def queue(self, name: str) -> Queue:
        """The queue `name` of this namespace. It is closed together with the group."""
        if name not in self._queues:
            full, options = self.full_name(name), self._defaults
            self._queues[name] = Queue(full, default_job_options=options, **self._endpoint_options)
        return self._queues[name]

    def worker(self, name: str, handler: Work, /, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker for the queue `name` of this namespace. The options are those of `Worker`."""
        merged = cast(WorkerOptions, {**self._endpoint_options, **options})
        return Worker(self.full_name(name), handler, **merged)

    def close(self) -> None:
        """Close the connections, including those of the queues made here; safe to call twice."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.close()
        super().close()

    # -- all of them

    def list_queues(self) -> list[QueueInfo]:
        """The queues of this namespace on the server, by name."""
        reply = self._caller.call(server.ListQueues(details=True), replies.NamesOfQueues)
        found = [QueueInfo(queue) if isinstance(queue, str) else queue for queue in reply.queues]
        mine = [queue for queue in found if queue.name.startswith(self.full_name(""))]
        return sorted(mine, key=lambda queue: queue.name)

    def counts(self) -> dict[str, JobCounts]:
        """The number of jobs in each state, by the full name of the queue."""
        names = [queue.name for queue in self.list_queues()]
        return dict(zip(names, Gather.all([self._counts(name) for name in names]), strict=True))

    def _counts(self, queue: str) -> JobCounts:
        reply = self._caller.call(query.GetJobCounts(queue=queue), replies.CountsOfJobs)
        return reply.counts

    def pause_all(self) -> None:
        """Stop handing out jobs of these queues. Running jobs continue."""
        for queue in self.list_queues():
            self._caller.call(queues.Pause(queue=queue.name))

    def resume_all(self) -> None:
        """Resume handing out jobs of these queues."""
        for queue in self.list_queues():
            self._caller.call(queues.Resume(queue=queue.name))

    def drain_all(self) -> int:
        """Remove the waiting and delayed jobs; returns their number."""
        count = 0
        for queue in self.list_queues():
            reply = self._caller.call(queues.Drain(queue=queue.name))
            count += reply.count
        return count

    def obliterate_all(self) -> None:
        """Remove these queues, with their jobs in all states and all their settings."""
        for queue in self.list_queues():
            self._caller.call(queues.Obliterate(queue=queue.name))
