"""The ASGI application and its routes."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib import metadata

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from bunqueue.server.host.descriptors import MAX_WAITING
from bunqueue.server.settings.settings import Settings

from .api_docs.openapi import document
from .api_docs.reference import POLICY, page
from .events.feed import Feed
from .events.history import History
from .events.log_reader import LogReader
from .events.sse import Events
from .events.websocket import Sockets
from .http import status
from .http.access import Access, Guard
from .http.commands import CommandEndpoint, Endpoint
from .http.health import Health
from .http.problems import Problem, answer, on_failure, on_http_error, on_problem
from .http.resources import RESOURCES
from .http.segments import Segments
from .http.transcode import write_json
from .http.unknown_fields import check_names
from .pages import Pages
from .router_client.backend import Backend
from .webhooks.dispatcher import Deliverer


class Application:
    """All request handlers of one server."""

    def __init__(self, settings: Settings, socket: str, max_waiting: int = MAX_WAITING) -> None:
        self.backend = Backend(socket, max_waiting)
        self.feed = Feed(LogReader(self.backend), settings.shards)
        self._carrier = CommandEndpoint(self.backend)
        self._events = Events(self.feed, settings.shards)
        self._history = History(self._carrier)
        access = Access(settings)
        self.throttle = access.throttle
        self._health = Health(self._carrier, version(), self.throttle, settings.cluster)
        self._sockets = Sockets(self._carrier, self.feed, access, settings.shards)
        self._deliverer = Deliverer(
            self.backend,
            shards=settings.shards,
            anywhere=settings.webhook_addresses == "any",
            alone=not settings.cluster,
        )
        app = Starlette(
            routes=self._routes(),
            exception_handlers={
                Problem: on_problem,
                HTTPException: on_http_error,
                Exception: on_failure,
            },
        )
        app.router.redirect_slashes = False
        self.asgi: ASGIApp = Segments(Guard(Pages(app), access))

    def _routes(self) -> list[BaseRoute]:
        health, carrier = self._health, self._carrier
        return [
            Route("/health", health.health),
            Route("/healthz", health.alive),
            Route("/ready", health.ready),
            Route("/prometheus", health.prometheus),
            _route("/events", self._events.endpoint, "GET"),
            Route("/history", self._history.endpoint),
            WebSocketRoute("/ws", self._sockets.endpoint),
            Route("/openapi.json", self._document),
            Route("/docs", self._reference),
            Route("/queues/summary", _no_summary),
            Route("/commands/{command}", carrier.command, methods=["POST"]),
            *(
                _route(each.path, carrier.resource(each), each.method, headless=not each.spec.writes)
                for each in RESOURCES
            ),
        ]

    async def _document(self, request: Request) -> Response:
        check_names(request.query_params, ())
        return answer(_documented()[0])

    async def _reference(self, request: Request) -> Response:
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
        return HTMLResponse(_documented()[1], headers=headers)

    def start(self) -> None:
        """Start the background tasks."""
        self._deliverer.start()
        self._history.start()

    async def stop(self) -> None:
        """End the endless responses, so that the server can shut down."""
        self.feed.close()
        self._carrier.stop()
        await asyncio.gather(self._sockets.close(), self._deliverer.stop(), self._history.stop())

    def close(self) -> None:
        """End the connections to the router."""
        self.backend.close()


async def _no_summary(request: Request) -> Response:
    """The reference server has this path. Here it would be the queue of that name."""
    text = (
        "there is no /queues/summary here: GET /queues has the counts of all queues, and of a queue named "
        "summary GET /queues/summary/counts"
    )
    raise Problem(status.NOT_FOUND, text)


def _route(path: str, endpoint: Endpoint, method: str, *, headless: bool = False) -> Route:
    """A route. ``headless``: a GET that also answers HEAD, because it neither changes anything nor runs
    forever."""
    route = Route(path, endpoint, methods=[method])
    if not headless and route.methods:
        route.methods.discard("HEAD")
    return route


@cache
def _documented() -> tuple[bytes, bytes]:
    """The OpenAPI document and its page, made on the first request."""
    found = document(version())
    return write_json(found), page(found).encode()


def version() -> str:
    """The version of the package. Empty for a source tree that was never installed."""
    try:
        return metadata.version("bunqueue")
    except metadata.PackageNotFoundError:
        return "unknown"
