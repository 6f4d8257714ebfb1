"""The id of a web request, from the request to the jobs that it adds, and into the log lines of these."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from bunqueue.client.options.job import NewJob
from bunqueue.worker.active_job import REQUEST_ID, ActiveJob
from bunqueue.worker.middleware import CallNext, Middleware

request_id: ContextVar[str | None] = ContextVar("bunqueue.request_id", default=None)
"""The id of the request that is being answered here, or that the running job was added for."""

_FITTING = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_NAME = REQUEST_ID.encode()

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class RequestIdMiddleware:
    """For FastAPI, Starlette and other ASGI applications: `app.add_middleware(RequestIdMiddleware)`.

    Each request has the id that its header `X-Request-ID` gives, or a new one; so has its response.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Called by the server."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == _NAME), b"")
        found = given.decode() if _FITTING.fullmatch(given) else uuid.uuid4().hex

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [(name, value) for name, value in message.get("headers", ()) if name != _NAME]
                message["headers"] = [*others, (_NAME, found.encode())]
            await send(message)

        outer = request_id.set(found)
        try:
            await self._app(scope, receive, answer)
        finally:
            request_id.reset(outer)


class RequestId(Middleware):
    """Middleware for queues, flow producers, apps and workers: jobs carry the id of the request that adds
    them in their header `x-request-id`, and the jobs that they add carry it as well.
    """

    @contextmanager
    def adding(self, job: NewJob) -> Iterator[None]:
        """Add the header, unless the job has it."""
        if (found := request_id.get()) is not None:
            job.options["headers"] = {REQUEST_ID: found, **(job.options.get("headers") or {})}
        yield

    async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
        """Make the id that of the jobs which this one adds."""
        outer = request_id.set(job.request_id)
        try:
            return await call_next(job)
        finally:
            request_id.reset(outer)

    def starting(self, job: ActiveJob, headers: dict[str, str]) -> None:
        """Children of a workflow also carry it."""
        if (found := job.request_id) is not None:
            headers.setdefault(REQUEST_ID, found)
