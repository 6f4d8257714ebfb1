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

from bunqueue.server.audit.trail import Trail
from bunqueue.server.host.descriptors import MAX_WAITING
from bunqueue.server.identities.watch import IdentitiesWatch
from bunqueue.server.settings.settings import Settings

from .api_docs.openapi import document
from .api_docs.reference import POLICY, page
from .events.feed import Feed
from .events.history import History
from .events.log_reader import LogReader
from .events.sse import Events
from .events.websocket import Sockets
from .http import status
from .http.access import Access, Forbidden, peer_of
from .http.audit import Audit
from .http.commands import CommandEndpoint, Endpoint
from .http.guard import Guard
from .http.health import Health
from .http.problems import Problem, answer, on_failure, on_http_error, on_problem
from .http.resources import RESOURCES, Resource
from .http.segments import Segments
from .http.transcode import write_json
from .http.unknown_fields import check_names
from .pages import Pages
from .router_client.backend import Backend
from .sign_in.endpoints import SignIn
from .sign_in.oidc import CALLBACK, LOGIN
from .webhooks.dispatcher import Deliverer

SCRAPED_AS = "version=0.0.4"
"""What each scraper of Prometheus names among the formats that it accepts."""


class Application:
    """All request handlers of one server."""

    def __init__(
        self, settings: Settings, socket: str, max_waiting: int = MAX_WAITING, *, overheard: bool = False
    ) -> None:
        """``overheard``: tokens come unencrypted over a network."""
        self.backend = Backend(socket, max_waiting)
        self.feed = Feed(LogReader(self.backend), settings.shards)
        self.trail = Trail(settings, "gateway")
        self._carrier = CommandEndpoint(self.backend, self.trail)
        self._audit = Audit(settings)
        self._events = Events(self.feed, settings.shards)
        self._history = History(self._carrier)
        access = Access(settings)
        self.access, self.throttle = access, access.throttle
        self._identities = IdentitiesWatch(settings, access.directory, access.identities_changed, logs=False)
        self._is_standby = bool(settings.follow)
        self._health = Health(
            self._carrier, version(), self.throttle, settings.cluster, is_standby=self._is_standby
        )
        self._sockets = Sockets(self._carrier, self.feed, access, settings.shards)
        self._sign_in = SignIn(settings, access, self.trail, overheard=overheard)
        self._deliverer = Deliverer(
            self.backend,
            shards=settings.shards,
            anywhere=settings.webhook_addresses == "any",
            alone=not settings.cluster,
        )
        app = Starlette(
            routes=self._routes(),
            exception_handlers={
                Forbidden: self._on_forbidden,
                Problem: on_problem,
                HTTPException: on_http_error,
                Exception: on_failure,
            },
        )
        app.router.redirect_slashes = False
        self.asgi: ASGIApp = Segments(Guard(Pages(app), access))

    def _routes(self) -> list[BaseRoute]:
        health, carrier, sign_in = self._health, self._carrier, self._sign_in
        return [
            Route("/health", health.health),
            Route("/healthz", health.alive),
            Route("/ready", health.ready),
            Route("/prometheus", health.prometheus),
            _route("/events", self._events.endpoint, "GET"),
            Route("/history", self._history.endpoint),
            Route("/audit", self._audit.endpoint),
            _route("/session", sign_in.shown, "GET"),
            _route("/session", sign_in.begin, "POST"),
            _route("/session", sign_in.end_own, "DELETE"),
            Route(LOGIN, sign_in.oidc.login),
            Route(CALLBACK, sign_in.oidc.callback),
            _route("/sessions", sign_in.listed, "GET"),
            _route("/sessions/{id}", sign_in.end, "DELETE"),
            WebSocketRoute("/ws", self._sockets.endpoint),
            Route("/openapi.json", self._document),
            Route("/docs", self._reference),
            Route("/queues/summary", _no_summary),
            Route("/commands/{command}", carrier.command, methods=["POST"]),
            *(
                _route(each.path, self._resource(each), each.method, headless=not each.spec.writes)
                for each in RESOURCES
            ),
        ]

    def _resource(self, resource: Resource) -> Endpoint:
        """The endpoint of a resource. At /metrics, where Prometheus looks first, it gets its own format."""
        endpoint = self._carrier.resource(resource)
        if resource.path != "/metrics":
            return endpoint

        async def metrics(request: Request) -> Response:
            is_scraper = SCRAPED_AS in request.headers.get("accept", "")
            return await (self._health.prometheus(request) if is_scraper else endpoint(request))

        return metrics

    async def _document(self, request: Request) -> Response:
        check_names(request.query_params, ())
        return answer(_documented()[0])

    async def _reference(self, request: Request) -> Response:
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
        return HTMLResponse(_documented()[1], headers=headers)

    async def _on_forbidden(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Forbidden)
        number = request.state.request_id
        self.trail.refused(error.who, peer_of(request.scope), "http", error.what, number)
        return await on_problem(request, error)

    def start(self) -> None:
        """Start the background tasks."""
        if not self._is_standby:  # the primary delivers webhooks
            self._deliverer.start()
        self._history.start()
        self._identities.start()

    def read_files_again(self) -> None:
        """Read the identities again."""
        self._identities.reload()

    async def stop(self) -> None:
        """End the endless responses, so that the server can shut down."""
        self._identities.stop()
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
