"""Routes of a FastAPI application for jobs that take longer than a request: 202, then status and progress."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from bunqueue.client.event_stream import AsyncEventStream
from bunqueue.client.models.jobs import Job
from bunqueue.client.queue.handle import AsyncJobHandle
from bunqueue.client.queue.queue import AsyncQueue
from bunqueue.errors import JobNotFound
from bunqueue.integrations import missing
from bunqueue.protocol.commands.jobs import LogLine

try:
    from fastapi import APIRouter, HTTPException, Request
    from fastapi.responses import JSONResponse, StreamingResponse
except ImportError as error:
    raise missing("fastapi", error) from None

ENDED = frozenset({"completed", "failed", "cancelled", "expired", "unknown"})
MOST_EVENTS = 100  # that wait for a slow reader, which then gets the newest state
POLL_MS = (
    2_000  # log lines cause no events, so the job is read this often; it also keeps proxies from closing
)
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Visible = Callable[[Request, Job], bool | Awaitable[bool]]


def job_router(queue: AsyncQueue, *, path: str = "/jobs", visible: Visible | None = None) -> APIRouter:
    """Routes for the jobs of a queue, for `app.include_router`:

    - GET /jobs/{id}: `{id, name, state, progress, message, attempts, result, error}`
    - GET /jobs/{id}/events: Server-Sent Events: `status`, the job as it is, then each change; `log`
      events have the lines of its log, from the first one on; the stream ends with the job

    Whoever may use the routes may see each job of the queue. `visible(request, job)` can narrow that: unless
    it returns True, the answer is 404, as for a job that does not exist. `accepted` leads to these routes.
    """
    router = APIRouter()

    async def found(request: Request, job_id: str) -> tuple[AsyncJobHandle[Any], Job]:
        handle = queue.handle(job_id)
        try:
            job = await handle.job()
        except JobNotFound:
            raise HTTPException(404, "there is no such job") from None
        allowed = True if visible is None else visible(request, job)
        if inspect.isawaitable(allowed):
            allowed = await allowed
        if job.queue != queue.name or allowed is not True:
            raise HTTPException(404, "there is no such job")
        return handle, job

    async def status(request: Request, job_id: str) -> dict[str, Any]:
        """The state of a job, its progress, and its result or error."""
        return _status(*await found(request, job_id))

    async def events(request: Request, job_id: str) -> StreamingResponse:
        """The same as Server-Sent Events, until the job has ended."""
        handle, _ = await found(request, job_id)
        return StreamingResponse(_events(queue, handle), media_type="text/event-stream", headers=HEADERS)

    router.add_api_route(f"{path}/{{job_id}}", status, name=_name(queue.name, "status"))
    router.add_api_route(
        f"{path}/{{job_id}}/events",
        events,
        name=_name(queue.name, "events"),
        response_class=StreamingResponse,
    )
    return router


def accepted(request: Request, job: AsyncJobHandle[Any]) -> JSONResponse:
    """The answer to a request that has added a job: 202 with `{id, status, events}`, the last two as URLs of
    the routes of `job_router`; `Location` is the first of them.
    """
    urls = {
        what: str(request.url_for(_name(job.queue, what), job_id=job.id)) for what in ("status", "events")
    }
    return JSONResponse({"id": job.id, **urls}, status_code=202, headers={"Location": urls["status"]})


def _name(queue: str, what: str) -> str:
    return f"bunqueue:{queue}:{what}"


def _status(handle: AsyncJobHandle[Any], job: Job) -> dict[str, Any]:
    return {
        "id": handle.id,
        "name": job.name,
        "state": job.state,
        "progress": job.progress,
        "message": job.progress_message,
        "attempts": job.attempts,
        "result": job.result,
        "error": job.error,
    }


async def _events(queue: AsyncQueue, handle: AsyncJobHandle[Any]) -> AsyncIterator[str]:
    """Subscribes before it reads the job, so no change is missed in between."""
    shown: dict[str, Any] = {}
    log: list[LogLine] = []
    stream = AsyncEventStream(
        queue._caller.endpoint, queue.name, lambda event: event.job_id == handle.id, MOST_EVENTS
    )
    await stream.open()
    try:
        while True:
            shown_before, log_before = shown, log
            try:
                shown = _status(handle, await handle.job())
                log = await handle.logs()
            except JobNotFound:  # removed: how it ended is known for a while
                shown = {**shown, "id": handle.id, "state": await handle.state()}
            for line in _new_lines(log_before, log):
                yield _event("log", {"message": line.message, "level": line.level})
            if shown != shown_before:
                yield _event("status", shown)
            if shown["state"] in ENDED:
                return
            try:
                await stream.next(POLL_MS)
            except TimeoutError:
                yield ": alive\n\n"
    finally:
        await stream.close()


def _new_lines(before: list[LogLine], now: list[LogLine]) -> list[LogLine]:
    """The lines that were added since; the server drops the oldest ones of a long log."""
    if not before or before[-1] not in now:
        return now
    return now[len(now) - now[::-1].index(before[-1]) :]


def _event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, default=str)}\n\n"
