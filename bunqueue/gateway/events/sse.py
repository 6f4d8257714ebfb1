"""GET /events: live events, as Server-Sent Events.

Browsers' EventSource cannot send a token.  A page that has a token uses fetch instead, which can.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bunqueue.model.events import NAMES
from bunqueue.model.marks import Mark
from bunqueue.model.rights import EVERYBODY, Identity
from bunqueue.model.scope import scope_of
from bunqueue.protocol.commands import COMMANDS
from bunqueue.protocol.namespaces import place_of

from ..http import status
from ..http.access import authorised_queue, need
from ..http.problems import Problem
from ..http.unknown_fields import check_names
from .entries import Entry, EventBatch, Filter, parse_position
from .feed import Feed
from .log_reader import LogUnreadable

MAX_LISTENERS = 2000
STUCK_S = 60.0  # for a listener to read what it was sent; then its connection is closed
HELLO = b"retry: 2000\n: listening\nid: %s\n\n"
ALIVE = b": alive\nid: %s\n\n"  # an id without an event: a listener that reconnects resumes there
MAX_QUEUES = 1000
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}


def filter_of(
    queues: list[str], types: list[str], job_id: str | None, identity: Identity = EVERYBODY
) -> Filter:
    """The filter that a request asks for.  Raises Problem if it is invalid, or not for the identity."""
    if unknown := [name for name in types if name not in NAMES]:
        raise Problem(status.INVALID, f"there is no event {unknown[0][:100]!r}; there are {', '.join(NAMES)}")
    if len(queues) > MAX_QUEUES:
        raise Problem(status.INVALID, f"queues must have at most {MAX_QUEUES} entries")
    queues = [authorised_queue(identity, COMMANDS["GetEvents"], queue) for queue in queues]
    scope = scope_of(identity)
    if scope is not None and scope.prefix and job_id:
        job_id = place_of(scope.prefix, Mark.ID, job_id)
    return Filter(frozenset(queues) or None, frozenset(types) or None, job_id or None, scope)


def check_room(feed: Feed) -> None:
    """Raise Problem if there are too many listeners."""
    if feed.listeners >= MAX_LISTENERS:
        raise Problem(status.UNAVAILABLE, f"too many listeners (max {MAX_LISTENERS}), try again later")


async def begin(events: AsyncGenerator[EventBatch, None]) -> str:
    """Start to listen.  Returns the position of the start.  Raises Problem if that is not possible at the
    moment."""
    try:
        return (await anext(events)).place
    except LogUnreadable as error:
        raise Problem(status.UNAVAILABLE, f"the events cannot be read: {error}") from None


class Events:
    """The endpoint."""

    def __init__(self, feed: Feed, shards: int) -> None:
        self._feed = feed
        self._shards = shards

    async def endpoint(self, request: Request) -> Response:
        """``queue`` and ``event`` may be repeated; ``Last-Event-ID`` says where to continue."""
        identity = need(request, COMMANDS["GetEvents"].verbs, "events")
        query = request.query_params
        check_names(query, ("queue", "event", "job", "after"))
        wanted = filter_of(query.getlist("queue"), query.getlist("event"), query.get("job"), identity)
        check_room(self._feed)
        last = request.headers.get("last-event-id") or query.get("after")
        places = parse_position(last, self._shards) if last else None
        if last and places is None:
            raise Problem(status.BAD_REQUEST, "this server gave no such Last-Event-ID; begin without it")
        events = self._feed.listen(wanted, places)
        return Stream(await begin(events), events)


class Stream(Response):
    """Sends events until the listener leaves, does not read, or the feed ends."""

    def __init__(self, place: str, events: AsyncGenerator[EventBatch, None]) -> None:
        """``events`` have already begun, at that place."""
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._place = place
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        disconnected = asyncio.create_task(_until_disconnect(receive))
        try:
            await asyncio.wait((sending, disconnected), return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnected.cancel()
            sending.cancel()
            await asyncio.wait((sending,))
        if not sending.cancelled() and (error := sending.exception()) is not None:
            if not isinstance(error, OSError | TimeoutError | LogUnreadable):
                raise error

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            await _body(send, HELLO % self._place.encode())
            async for batch in events:
                await _body(send, b"".join(map(render, batch.entries)) or ALIVE % batch.place.encode())
        await send({"type": "http.response.body", "body": b""})


def render(entry: Entry) -> bytes:
    """An event as text."""
    return b"".join((b"id: ", entry.places.encode(), b"\ndata: ", entry.body, b"\n\n"))


async def _body(send: Send, data: bytes) -> None:
    async with asyncio.timeout(STUCK_S):
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
