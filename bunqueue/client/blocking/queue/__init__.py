"""Made by scripts/unasync.py from client/queue/__init__.py; do not edit."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from bunqueue.client.blocking.queue.adding import Adding
from bunqueue.client.blocking.queue.control import Control
from bunqueue.client.blocking.queue.crons import Crons
from bunqueue.client.blocking.queue.dead_letters import Dlq
from bunqueue.client.blocking.queue.groups import Groups, JobGroup
from bunqueue.client.blocking.queue.handle import JobHandle
from bunqueue.client.blocking.queue.limits import Limiting
from bunqueue.client.blocking.queue.looking import Looking
from bunqueue.client.blocking.queue.monitoring import Monitoring
from bunqueue.client.blocking.queue.pulling import Pulling
from bunqueue.client.blocking.queue.unique_keys import UniqueKeys
from bunqueue.client.blocking.queue.webhooks import Webhooks
from bunqueue.client.connection.caller import Caller
from bunqueue.client.connection.options import ConnectionOptions
from bunqueue.client.connection.tls import Tls
from bunqueue.client.options import checks
from bunqueue.client.options.job import JobOptions, default_fields
from bunqueue.client.worker.middleware import Around, Middleware, around_adding

__all__ = ["JobGroup", "JobHandle", "Queue"]


class Queue(
    Adding,
    Pulling,
    Looking,
    Control,
    Dlq,
    Limiting,
    Groups,
    UniqueKeys,
    Crons,
    Webhooks,
    Monitoring,
):
    """A queue on a server, or in this process with `embedded=True`.

        with Queue("emails") as queue:
            handle = queue.add("welcome", {"to": "a@example.com"}, delay=5_000)

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
        self._caller = Caller(endpoint)
        around = around_adding(middleware)
        self._around = Around(around) if around else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} at {self._caller.endpoint.address})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up the connection; safe to call twice. The queue and its handles are of no use any more."""
        self._caller.close()
