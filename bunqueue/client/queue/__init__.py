"""The queue as its users have it, put together from one part a subject.

`client/blocking/queue` is the same for threads, made from this folder by `python scripts/unasync.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.connection.options import ConnectionOptions
from bunqueue.client.connection.tls import Tls
from bunqueue.client.options import checks
from bunqueue.client.options.job import JobOptions, default_fields
from bunqueue.client.queue.adding import AsyncAdding
from bunqueue.client.queue.control import AsyncControl
from bunqueue.client.queue.crons import AsyncCrons
from bunqueue.client.queue.dead_letters import AsyncDlq
from bunqueue.client.queue.groups import AsyncGroups, AsyncJobGroup
from bunqueue.client.queue.handle import AsyncJobHandle
from bunqueue.client.queue.limits import AsyncLimiting
from bunqueue.client.queue.looking import AsyncLooking
from bunqueue.client.queue.monitoring import AsyncMonitoring
from bunqueue.client.queue.pulling import AsyncPulling
from bunqueue.client.queue.unique_keys import AsyncUniqueKeys
from bunqueue.client.queue.webhooks import AsyncWebhooks
from bunqueue.client.worker.middleware import AsyncAround, Middleware, around_adding

__all__ = ["AsyncJobGroup", "AsyncJobHandle", "AsyncQueue"]


class AsyncQueue(
    AsyncAdding,
    AsyncPulling,
    AsyncLooking,
    AsyncControl,
    AsyncDlq,
    AsyncLimiting,
    AsyncGroups,
    AsyncUniqueKeys,
    AsyncCrons,
    AsyncWebhooks,
    AsyncMonitoring,
):
    """A queue on a server, or in this process with `embedded=True`.

        async with AsyncQueue("emails") as queue:
            handle = await queue.add("welcome", {"to": "a@example.com"}, delay=5_000)

    The server is at `host` and `port`, or at `url`, or where BUNQUEUE_URL says, else 127.0.0.1:6789; `token`
    is what it wants to see, `tls` as in `Place`. `data_path` is where an embedded queue keeps its jobs (None:
    in memory). `default_job_options` hold for each job that does not say otherwise, `middleware` is around
    the adding of each. The connection is made when it is first needed, and shared with other queues of the
    same server.

    Every method raises BunqueueError, as `bunqueue.errors` has it; one that changes something and raises
    ConnectionLost or CommandTimeout may have changed it.
    """

    def __init__(
        self,
        name: str,
        *,
        host: str | None = None,
        port: int | str | None = None,
        token: str | None = None,
        url: str | None = None,
        tls: Tls | None = None,
        embedded: bool = False,
        data_path: str | os.PathLike[str] | None = None,
        connection: ConnectionOptions | None = None,
        default_job_options: JobOptions | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> None:
        self.name = checks.queue_name(name)
        self._defaults = default_fields(default_job_options)
        endpoint = checks.endpoint(host, port, token, embedded, data_path, connection, url, tls)
        self._caller = AsyncCaller(endpoint)
        around = around_adding(middleware)
        self._around = AsyncAround(around) if around else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} at {self._caller.endpoint.address})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give up the connection; safe to call twice. The queue and its handles are of no use any more."""
        await self._caller.close()
