"""Access control: tokens, web pages of other origins, and requests per minute.

A browser sends requests to this server on behalf of any page, even if only that machine can reach the server.
So requests from a page of another origin are refused, unless the settings name that origin.  Without tokens,
requests to a name that is not this machine's are refused as well (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import enum
import socket
import time
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bunqueue.model.tokens import RateLimit, token_is_known
from bunqueue.server.host.auth_throttle import DELAY_S, AuthThrottle
from bunqueue.server.settings.settings import Settings

from . import status
from .problems import Problem, refusal

MAX_PEERS = 10_000  # addresses with counted requests; beyond, all counts are reset
TOO_MANY = "Rate limit exceeded"
METHODS = "GET, POST, PUT, PATCH, DELETE"
# In a local network any host may claim any name below these domains, so only this machine's own name is
# trusted.  Names below other domains cannot be claimed.
SHARED_SUFFIXES = ("local", "lan", "internal", "home.arpa")
PRIVATE_SUFFIXES = (".localhost", ".svc.cluster.local")


SPARE = "spare"
"""The key in a request's state of a function that marks its connection as expendable when there are too
many."""


class Role(enum.IntEnum):
    """What a client may do."""

    NOBODY = 0
    READER = 1
    WRITER = 2


class Access:
    """The access rules of one server."""

    def __init__(self, settings: Settings) -> None:
        self._writers = _encoded(settings.auth_token)
        self._readers = _encoded(settings.read_only_token)
        self.origins = frozenset(settings.http_origin)
        own = socket.gethostname().lower()
        self._hosts = {settings.host.lower(), own, *(urlsplit(origin).hostname for origin in self.origins)}
        self._hosts |= {f"{own.partition('.')[0]}.{suffix}" for suffix in SHARED_SUFFIXES}
        self.throttle = AuthThrottle()
        self._limit = settings.rate_limit
        self._rates: dict[str, RateLimit] = {}

    def role_of(self, token: str | None) -> Role:
        """The role of a token.  If the settings have no tokens, every client may do everything."""
        if not self._writers:
            return Role.WRITER
        if token is None:
            return Role.NOBODY
        writes, reads = token_is_known(token, self._writers), token_is_known(token, self._readers)
        return Role.WRITER if writes else Role.READER if reads else Role.NOBODY

    async def wrong_token(self, peer: str, spare: Callable[[], None] = lambda: None) -> None:
        """Count a wrong token.  After many of them the answer is delayed, however many clients already wait:
        `spare` marks the connection as expendable when there are too many."""
        if self.throttle.wrong(peer, time.monotonic()):
            spare()
            await asyncio.sleep(DELAY_S)

    def is_foreign(self, headers: Headers) -> bool:
        """Whether a page of another site, which the settings do not allow, sent the request."""
        origin = headers.get("origin")
        if origin is not None:
            return origin not in self.origins and _place(origin) != headers.get("host")
        return headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"

    def is_misnamed(self, headers: Headers) -> bool:
        """Whether the request was sent to a name that is not this server's.  With tokens this is harmless."""
        if self._writers:
            return False
        try:
            name = urlsplit("//" + headers.get("host", "")).hostname or ""
        except ValueError:  # brackets without an address in them
            return True
        private = "." not in name or name.endswith(PRIVATE_SUFFIXES)
        return not (private or name in self._hosts or _is_address(name))

    def admit(self, peer: str) -> bool:
        """Count a request of an address, unless it exceeds the limit."""
        if not self._limit:
            return True
        rate = self._rates.get(peer)
        if rate is None:
            if len(self._rates) >= MAX_PEERS:
                self._rates.clear()
            rate = self._rates[peer] = RateLimit(self._limit)
        return rate.admit(time.monotonic())


def _encoded(tokens: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(token.encode() for token in tokens)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _place(origin: str) -> str | None:
    """The host and port of an origin, or None if they are missing."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def peer_of(scope: Scope) -> str:
    """The address that a request comes from."""
    return str((scope.get("client") or ("",))[0])


def is_lured(headers: Headers) -> bool:
    """Whether a page of another site may have made a browser send this GET.

    Browsers send the origin of a GET only to servers with TLS or on their own machine.  For other servers it
    is unknown.  Programs are not browsers.
    """
    return "Mozilla/" in headers.get("user-agent", "") and headers.get("sec-fetch-site") != "same-origin"


def bearer(headers: Headers) -> str | None:
    """The token of a request."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def need(connection: HTTPConnection, role: Role, what: str) -> None:
    """Raise Problem unless the client may do this."""
    found: Role = connection.state.role
    if found >= role:
        return
    if found is Role.NOBODY:
        text = "Not authenticated: send the header Authorization: Bearer TOKEN, with a token of the server"
        raise Problem(status.UNAUTHORIZED, text, {"WWW-Authenticate": "Bearer"})
    raise Problem(status.FORBIDDEN, f"this token may only read: {what} needs one that may write")


class Guard:
    """Passes requests to the application, with the client's role in ``state.role``."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        allowed = origin if origin in self._access.origins else None
        is_http = scope["type"] == "http"
        no = self._refusal(scope, headers)
        if no is None and is_http and allowed and scope["method"] == "OPTIONS":
            no = _preflight()
        token = bearer(headers)
        role = scope.setdefault("state", {})["role"] = self._access.role_of(token)
        if token is not None and role is Role.NOBODY:
            spare = scope["state"].get(SPARE)  # missing for a WebSocket
            await self._access.wrong_token(peer_of(scope), spare or (lambda: None))
        dressed = _dress(send, allowed) if is_http else send
        if no is not None:
            await no(scope, receive, dressed)
        else:
            await self._app(scope, receive, dressed)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if self._access.is_foreign(headers):
            text = (
                f"pages of {headers.get('origin', 'another site')} may not use this server; see http_origin"
            )
            return refusal(status.FORBIDDEN, text)
        if self._access.is_misnamed(headers):
            text = "without tokens the server answers to addresses and its own names only; see http_origin"
            return refusal(status.FORBIDDEN, text)
        return None if self._access.admit(peer_of(scope)) else refusal(status.TOO_MANY, TOO_MANY)


def _preflight() -> Response:
    allowed = {
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": "Authorization, Content-Type, Last-Event-ID",
        "Access-Control-Max-Age": "600",
    }
    return Response(status_code=204, headers=allowed)


def _dress(send: Send, origin: str | None) -> Send:
    """Add the common headers to every answer."""

    async def dressed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault("Cache-Control", "no-store")
            headers.setdefault("X-Content-Type-Options", "nosniff")
            headers.setdefault("Referrer-Policy", "no-referrer")
            if origin is not None:
                headers["Access-Control-Allow-Origin"] = origin
                headers.add_vary_header("Origin")
        await send(message)

    return dressed
