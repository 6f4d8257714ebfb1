"""Access control: tokens, sessions, web pages of other origins, and requests per minute.

A browser sends requests to this server on behalf of any page, even if only that machine can reach the server.
So requests from a page of another origin are refused, unless the settings name that origin.  Without tokens,
requests to a name that is not this machine's are refused as well (DNS rebinding).  A cookie counts only
beside a header of the dashboard's own, which not even the pages of an allowed origin may send.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, cookie_parser
from starlette.types import Scope

from bunqueue.model.marks import Mark
from bunqueue.model.rate_limit import RateLimit
from bunqueue.model.rights import Identity, Verb, may
from bunqueue.model.rights import refusal as right_is_missing
from bunqueue.model.scope import not_of_server, scope_of
from bunqueue.protocol.commands import CommandError, Spec
from bunqueue.protocol.namespaces import inside
from bunqueue.protocol.scoping import of_queue
from bunqueue.server.host.auth_throttle import DELAY_S, AuthThrottle
from bunqueue.server.identities.directory import FULL, Directory, Grant, names_of_certificate
from bunqueue.server.identities.last_used import LastUsed
from bunqueue.server.identities.watch import directory_of
from bunqueue.server.settings.settings import Settings

from . import status
from .problems import Problem
from .proxies import is_address, is_trusted, person, see_through
from .sessions import HEADER, Session, Sessions, cookie_name

MAX_PEERS = 10_000  # addresses with counted requests; beyond, all counts are reset
TOO_MANY = "Rate limit exceeded"
# In a local network any host may claim any name below these domains, so only this machine's own name is
# trusted.  Names below other domains cannot be claimed.
SHARED_SUFFIXES = ("local", "lan", "internal", "home.arpa")
PRIVATE_SUFFIXES = (".localhost", ".svc.cluster.local")


SPARE = "spare"
"""The key in a request's state of a function that marks its connection as expendable when there are too
many."""
END = "end"
"""The key of a function that ends the connection of a request."""
CERTIFICATE = "certificate"
"""The key of the client's certificate, as `ssl` shows it."""


class Known(NamedTuple):
    """What a client has proved: its rights, and the session that it uses, if it does. ``grant`` is None
    without a valid token, session or certificate."""

    grant: Grant | None
    session: Session | None = None


NOBODY, OPEN = Known(None), Known(FULL)


class Access:
    """The access rules of one server."""

    def __init__(self, settings: Settings) -> None:
        self.directory = directory_of(settings)
        self._last_used = LastUsed(settings)
        self.origins = frozenset(settings.http_origin)
        own = socket.gethostname().lower()
        self._hosts = {settings.host.lower(), own, *(urlsplit(origin).hostname for origin in self.origins)}
        self._hosts |= {f"{own.partition('.')[0]}.{suffix}" for suffix in SHARED_SUFFIXES}
        self.throttle = AuthThrottle()
        self.on_wrong_token: Callable[[str], None] = lambda address: None
        """Tells the routers, so that they slow the address down as well."""
        self._limit = settings.rate_limit
        self._rates: dict[str, RateLimit] = {}
        self.sessions = Sessions(settings.session_max_age * 3600.0)
        self._open: dict[object, tuple[Known, Callable[[], None]]] = {}

    def known(self, scope: Scope, headers: Headers) -> Known:
        """What the client of a request has proved.  An open server lets everybody do everything."""
        if self.directory.is_open:
            return OPEN
        is_proxied = is_trusted(scope, self.directory)
        if is_proxied:
            see_through(scope, headers, self.directory)
        peer, now_s, token = peer_of(scope), time.time(), bearer(headers)
        if token is not None:
            return Known(self.grant_of(token, peer))
        if scope["type"] == "http" and HEADER in headers:
            session = self.sessions.of(secret_in(scope, headers), now_s)
            if session is not None and self.directory.holds(session.grant, now_s):
                self._last_used.note(session.grant, peer, now_s)
                return Known(session.grant, session)
            if is_proxied:
                return Known(person(headers, self.directory))
        certificate = scope["state"].get(CERTIFICATE)
        if not certificate:
            return NOBODY
        found = self.directory.of_certificate(names_of_certificate(certificate), now_s)
        return Known(self._noted(found, peer, certificate))

    def grant_of(self, token: str, peer: str) -> Grant | None:
        """Who presents a token; None if that is nobody."""
        if self.directory.is_open:
            return FULL
        return self._noted(self.directory.of_token(token, time.time()), peer)

    def _noted(
        self, grant: Grant | None, peer: str, certificate: Mapping[str, object] | None = None
    ) -> Grant | None:
        if grant is not None:
            self._last_used.note(grant, peer, time.time(), certificate)
        return grant

    @contextmanager
    def kept(self, known: Known, end: Callable[[], None]) -> Iterator[None]:
        """Meanwhile ``end`` is called if the grant does not count any more, or the session ends."""
        if known.grant is None or known.grant is FULL:
            yield
            return
        key, late = object(), None
        self._open[key] = known, end
        if known.session is not None:
            left_s = known.session.until_s - time.time()
            late = asyncio.get_running_loop().call_later(max(0.0, left_s), end)
        try:
            yield
        finally:
            self._open.pop(key, None)
            if late is not None:
                late.cancel()

    def identities_changed(self, directory: Directory) -> None:
        """There are other identities, or one has expired: end what those do who have lost their rights."""
        self.directory = directory
        now_s = time.time()
        self.sessions.keep(lambda session: directory.holds(session.grant, now_s))
        self._end(lambda known: known.grant is None or not directory.holds(known.grant, now_s))

    def end_session(self, number: str, *, spared: Callable[[], None] | None) -> Session | None:
        """End a session and what it does, except for the request that is ``spared``; None if there is no
        session with this id."""
        found = self.sessions.end(number)
        if found is not None:
            self._end(lambda known: known.session == found, spared)
        return found

    def _end(self, which: Callable[[Known], bool], spared: Callable[[], None] | None = None) -> None:
        for key, (known, end) in list(self._open.items()):
            if which(known) and end is not spared:
                self._open.pop(key, None)
                end()

    async def wrong_token(self, peer: str, spare: Callable[[], None] = lambda: None) -> None:
        """Count a wrong token.  After many of them the answer is delayed, however many clients already wait:
        `spare` marks the connection as expendable when there are too many."""
        if self.throttle.wrong(peer, time.monotonic()):
            spare()
            await asyncio.sleep(DELAY_S)
        else:  # beyond, the routers know
            self.on_wrong_token(peer)

    def is_foreign(self, headers: Headers) -> bool:
        """Whether a page of another site, which the settings do not allow, sent the request."""
        origin = headers.get("origin")
        if origin is not None:
            return origin not in self.origins and _place(origin) != headers.get("host")
        return headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"

    def is_misnamed(self, headers: Headers) -> bool:
        """Whether the request was sent to a name that is not this server's.  With tokens this is harmless."""
        if not self.directory.is_open:
            return False
        try:
            name = urlsplit("//" + headers.get("host", "")).hostname or ""
        except ValueError:  # brackets without an address in them
            return True
        private = "." not in name or name.endswith(PRIVATE_SUFFIXES)
        return not (private or name in self._hosts or is_address(name))

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


def _place(origin: str) -> str | None:
    """The host and port of an origin, or None if they are missing."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def peer_of(scope: Scope) -> str:
    """The address that a request comes from."""
    return str((scope.get("client") or ("",))[0])


def is_secure(scope: Scope) -> bool:
    """Whether a request came over TLS."""
    return str(scope["scheme"]) in ("https", "wss")


def cookie_of(scope: Scope) -> str:
    """The name of the cookie that a request may have."""
    return cookie_name((scope.get("server") or ("", 0))[1] or 0, secure=is_secure(scope))


def secret_in(scope: Scope, headers: Headers) -> str:
    """The secret in the cookie of a request; "" without one."""
    return cookie_parser(headers.get("cookie", "")).get(cookie_of(scope), "")


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


def known_of(connection: HTTPConnection) -> Known:
    """What the client of a request has proved."""
    found: Known = connection.state.known
    return found


def need(connection: HTTPConnection, verbs: Verb, what: str) -> Identity:
    """The client's identity. Raises Problem unless it has one of the verbs."""
    grant = known_of(connection).grant
    if grant is None:
        text = "Not authenticated: send the header Authorization: Bearer TOKEN, with a token of the server"
        raise Problem(status.UNAUTHORIZED, text, {"WWW-Authenticate": "Bearer"})
    authorise(grant.identity, verbs, what)
    return grant.identity


class Forbidden(Problem):
    """An identity may not do something. The trail has an entry for it."""

    def __init__(self, identity: Identity, verbs: Verb, what: str, why: str = "") -> None:
        super().__init__(status.FORBIDDEN, why or right_is_missing(identity, what, verbs))
        self.who, self.what = identity, what


def authorise(identity: Identity, verbs: Verb, what: str) -> None:
    """Raise Forbidden unless an identity has one of the verbs."""
    if not may(identity, verbs):
        raise Forbidden(identity, verbs, what)


def authorised_queue(identity: Identity, spec: Spec, queue: str) -> str:
    """The name that the server has for a queue.  Raises Forbidden if it is none of those that an identity is
    for, and Problem if there can be none of that name in its namespace."""
    scope = scope_of(identity)
    if scope is None:
        return queue
    try:
        found = inside(scope.prefix, Mark.QUEUE, queue) if scope.prefix else queue
    except CommandError as error:
        raise Problem(status.INVALID, str(error), reason=error.code, field="queue") from None
    if (problem := of_queue(scope, spec, found)) is not None:
        raise Forbidden(identity, spec.verbs, spec.name, str(problem))
    return found


def need_everywhere(connection: HTTPConnection, verbs: Verb, what: str) -> Identity:
    """`need` for something about the whole server, which is not for identities of some queues only."""
    identity = need(connection, verbs, what)
    scope = scope_of(identity)
    if scope is not None and not scope.is_everywhere:
        raise Forbidden(identity, verbs, what, not_of_server(scope, what))
    return identity
