"""The part of an app that adds jobs: its queues, blocking and for coroutines, and flows over them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar, Unpack

from bunqueue.client.admin import AsyncAdmin
from bunqueue.client.blocking.admin import Admin
from bunqueue.client.blocking.events import QueueEvents
from bunqueue.client.blocking.flow import FlowProducer
from bunqueue.client.blocking.queue import JobHandle, Queue
from bunqueue.client.connection.endpoint_options import EndpointOptions, endpoint_of
from bunqueue.client.events import AsyncQueueEvents, EventType
from bunqueue.client.flow import AsyncFlowProducer
from bunqueue.client.flow_plan import FlowJob
from bunqueue.client.options.job import JobOptions
from bunqueue.client.queue import AsyncJobHandle, AsyncQueue
from bunqueue.client.worker.middleware import Middleware
from bunqueue.errors import OptionError

R = TypeVar("R")


class Adding:
    """Whatever ends in `_async` is for coroutines, its twin blocks. Connections are made when needed."""

    def __init__(
        self,
        name: str,
        default_job_options: JobOptions | None,
        middleware: list[Middleware],
        place: EndpointOptions,
    ) -> None:
        self.name = name
        self._default_job_options = default_job_options
        self._middleware = middleware
        self._place = place
        self._endpoint = endpoint_of(place)
        self._queues: dict[str, Queue] = {}
        self._async_queues: dict[str, AsyncQueue] = {}
        self._flows: FlowProducer | None = None
        self._async_flows: AsyncFlowProducer | None = None
        self._admin: Admin | None = None
        self._async_admin: AsyncAdmin | None = None

    # -- queues

    @property
    def queue(self) -> Queue:
        """The app's own queue: counts, pausing, dead letters and so on."""
        return self.get_queue()

    @property
    def async_queue(self) -> AsyncQueue:
        """The app's own queue, for coroutines."""
        return self.get_async_queue()

    def get_queue(self, name: str | None = None) -> Queue:
        """One of the app's queues; None: its own."""
        name = name or self.name
        found = self._queues.get(name)
        if found is None:
            made = Queue(name, **self._client_options())
            found = self._queues.setdefault(name, made)
            if found is not made:  # another thread was faster
                made.close()
        return found

    def get_async_queue(self, name: str | None = None) -> AsyncQueue:
        """As `get_queue`, for coroutines."""
        name = name or self.name
        if name not in self._async_queues:
            self._async_queues[name] = AsyncQueue(name, **self._client_options())
        return self._async_queues[name]

    @property
    def flows(self) -> FlowProducer:
        """Adds flows: `app.flows.add(report.job("May").after(fetch.job("a"), fetch.job("b")))`."""
        if self._flows is None:
            self._flows = FlowProducer(**self._client_options())
        return self._flows

    @property
    def async_flows(self) -> AsyncFlowProducer:
        """As `flows`, for coroutines."""
        if self._async_flows is None:
            self._async_flows = AsyncFlowProducer(**self._client_options())
        return self._async_flows

    @property
    def admin(self) -> Admin:
        """The server as a whole: figures, workers, schedules of all queues and so on."""
        if self._admin is None:
            self._admin = Admin(**self._place)
        return self._admin

    @property
    def async_admin(self) -> AsyncAdmin:
        """As `admin`, for coroutines."""
        if self._async_admin is None:
            self._async_admin = AsyncAdmin(**self._place)
        return self._async_admin

    def _client_options(self) -> dict[str, Any]:
        return {
            "default_job_options": self._default_job_options,
            "middleware": self._middleware,
            **self._place,
        }

    def events(
        self,
        queue: str | None = None,
        *,
        types: EventType | Iterable[EventType] | None = None,
        job_ids: str | Iterable[str] | None = None,
    ) -> QueueEvents:
        """What happens in one of the app's queues; see `QueueEvents`."""
        return QueueEvents(queue or self.name, types=types, job_ids=job_ids, **self._place)

    def events_async(
        self,
        queue: str | None = None,
        *,
        types: EventType | Iterable[EventType] | None = None,
        job_ids: str | Iterable[str] | None = None,
    ) -> AsyncQueueEvents:
        """As `events`, for coroutines."""
        return AsyncQueueEvents(queue or self.name, types=types, job_ids=job_ids, **self._place)

    # -- adding

    def add(self, name: str, data: object = None, **options: Unpack[JobOptions]) -> JobHandle[Any]:
        """Add a job of any name to the app's own queue, as `Queue.add` does."""
        return self.queue.add(name, data, **options)

    async def add_async(
        self, name: str, data: object = None, **options: Unpack[JobOptions]
    ) -> AsyncJobHandle[Any]:
        """As `add`, for coroutines."""
        return await self.async_queue.add(name, data, **options)

    def add_bulk(self, jobs: Iterable[FlowJob[R]]) -> list[JobHandle[R]]:
        """Add jobs, `[send.job("ada"), send.job("bob")]`; those of one queue all or none, in one go.

        The handles come in the order of the jobs.
        """
        handles: dict[int, JobHandle[R]] = {}
        for name, some in _by_queue(jobs).items():
            queue = self.get_queue(name)
            for (place, job), handle in zip(some, queue.add_bulk(job for _, job in some), strict=True):
                handle.result_type = job.result_type
                handles[place] = handle
        return [handles[place] for place in range(len(handles))]

    async def add_bulk_async(self, jobs: Iterable[FlowJob[R]]) -> list[AsyncJobHandle[R]]:
        """As `add_bulk`, for coroutines."""
        handles: dict[int, AsyncJobHandle[R]] = {}
        for name, some in _by_queue(jobs).items():
            queue = self.get_async_queue(name)
            for (place, job), handle in zip(some, await queue.add_bulk(job for _, job in some), strict=True):
                handle.result_type = job.result_type
                handles[place] = handle
        return [handles[place] for place in range(len(handles))]

    # -- the end

    def close(self) -> None:
        """Give up the connections of what blocks; what is used after that makes new ones."""
        queues, self._queues = self._queues, {}
        others = (self._flows, self._admin)
        self._flows = self._admin = None
        for client in (*queues.values(), *others):
            if client is not None:
                client.close()

    async def close_async(self) -> None:
        """Give up all connections; what is used after that makes new ones."""
        queues, self._async_queues = self._async_queues, {}
        others = (self._async_flows, self._async_admin)
        self._async_flows = self._async_admin = None
        for client in (*queues.values(), *others):
            if client is not None:
                await client.close()
        await asyncio.to_thread(self.close)


def _by_queue(jobs: Iterable[FlowJob[R]]) -> dict[str, list[tuple[int, FlowJob[R]]]]:
    """Jobs with their places, by queue."""
    groups: dict[str, list[tuple[int, FlowJob[R]]]] = {}
    for place, job in enumerate(jobs):
        if job.children:
            raise OptionError(f"{job!r}: jobs that wait for others are added with app.flows")
        groups.setdefault(job.queue, []).append((place, job))
    return groups
