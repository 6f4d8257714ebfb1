"""The clients of an app, made on first use: queues, flows, and the server as a whole."""

from __future__ import annotations

import asyncio
from typing import Any

from bunqueue.client.admin import AsyncAdmin
from bunqueue.client.blocking.admin import Admin
from bunqueue.client.blocking.flow import FlowProducer
from bunqueue.client.blocking.queue import Queue
from bunqueue.client.codecs.codec import Codec
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.client.connection.options import Duration
from bunqueue.client.flow import AsyncFlowProducer
from bunqueue.client.options.job import JobOptions
from bunqueue.client.queue import AsyncQueue
from bunqueue.worker.middleware import Middleware


class Clients:
    """The clients of an app. Those that end in `_async` or begin with `async_` are for coroutines, the others
    block."""

    def __init__(
        self,
        name: str,
        default_job_options: JobOptions | None,
        middleware: list[Middleware],
        endpoint: EndpointOptions,
        wait_if_full: Duration = 0,
    ) -> None:
        """`name` is the queue to use when none is named."""
        self.name = name
        self._default_job_options = default_job_options
        self._middleware = middleware
        self._endpoint_options = endpoint
        self._wait_if_full = wait_if_full
        self._queues: dict[str, Queue] = {}
        self._async_queues: dict[str, AsyncQueue] = {}
        self._flows: FlowProducer | None = None
        self._async_flows: AsyncFlowProducer | None = None
        self._admin: Admin | None = None
        self._async_admin: AsyncAdmin | None = None

    @property
    def codec(self) -> Codec | None:
        """How the payloads of the app are encoded."""
        return self._endpoint_options.get("codec")

    @property
    def add_jobs(self) -> bool:
        """Whether there is any client that adds jobs."""
        return bool(self._queues or self._async_queues or self._flows or self._async_flows)

    def get_queue(self, name: str | None = None) -> Queue:
        """The client of a queue; None: the app's own."""
        name = name or self.name
        found = self._queues.get(name)
        if found is None:
            made = Queue(name, wait_if_full=self._wait_if_full, **self._client_options())
            found = self._queues.setdefault(name, made)
            if found is not made:  # another thread was faster
                made.close()
        return found

    def get_async_queue(self, name: str | None = None) -> AsyncQueue:
        """Like `get_queue`, for coroutines."""
        name = name or self.name
        if name not in self._async_queues:
            options = self._client_options()
            self._async_queues[name] = AsyncQueue(name, wait_if_full=self._wait_if_full, **options)
        return self._async_queues[name]

    @property
    def flows(self) -> FlowProducer:
        if self._flows is None:
            self._flows = FlowProducer(**self._client_options())
        return self._flows

    @property
    def async_flows(self) -> AsyncFlowProducer:
        if self._async_flows is None:
            self._async_flows = AsyncFlowProducer(**self._client_options())
        return self._async_flows

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(**self._endpoint_options)
        return self._admin

    @property
    def async_admin(self) -> AsyncAdmin:
        if self._async_admin is None:
            self._async_admin = AsyncAdmin(**self._endpoint_options)
        return self._async_admin

    def _client_options(self) -> dict[str, Any]:
        return {
            "default_job_options": self._default_job_options,
            "middleware": self._middleware,
            **self._endpoint_options,
        }

    def close(self) -> None:
        """Close the connections of the blocking clients. Later calls open new ones."""
        queues, self._queues = self._queues, {}
        others = (self._flows, self._admin)
        self._flows = self._admin = None
        for client in (*queues.values(), *others):
            if client is not None:
                client.close()

    async def close_async(self) -> None:
        """Close all connections. Later calls open new ones."""
        queues, self._async_queues = self._async_queues, {}
        others = (self._async_flows, self._async_admin)
        self._async_flows = self._async_admin = None
        for client in (*queues.values(), *others):
            if client is not None:
                await client.close()
        await asyncio.to_thread(self.close)
