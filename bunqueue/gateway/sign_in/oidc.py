"""Signing in with OpenID Connect: GET /oidc/login sends a browser to the provider, which sends it back to
GET /oidc/callback.

What the callback has to compare is in a cookie of the browser meanwhile, so a sign-in that nobody ends costs
no memory here.
"""

from __future__ import annotations

import hmac
import secrets
import time
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from bunqueue.logs import get_logger
from bunqueue.protocol.codes import Code
from bunqueue.server.identities.people import OIDC, is_name

from ..http import status
from ..http.access import Access, cookie_of, is_secure, peer_of
from ..http.problems import Problem
from ..http.sessions import cookie
from .notes import Notes

if TYPE_CHECKING:  # needs packages that only few servers have
    from .provider import Provider

LOGIN, CALLBACK = "/oidc/login", "/oidc/callback"
PENDING_S = 600.0  # for somebody to sign in there
MAX_BACK = 1000  # characters of the address to come back to
MISSING = "signing in with OpenID Connect needs more packages on the server: pip install 'bunqueue[oidc]'"

_log = get_logger("gateway")


class OidcSignIn:
    """The endpoints."""

    def __init__(self, access: Access, notes: Notes) -> None:
        self._access, self._notes = access, notes
        self._provider: Provider | None = None

    @property
    def host(self) -> str:
        """That of the provider; "" without one."""
        row = self._access.directory.people.oidc
        return "" if row is None else urlsplit(row.issuer).netloc

    async def login(self, request: Request) -> Response:
        """Send a browser to the provider. ``to``: the page to come back to."""
        provider, verifier = self._current(), secrets.token_urlsafe(48)
        state, nonce = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        from .provider import ProviderError

        try:
            address = await provider.address(state, nonce, verifier)
        except ProviderError as error:
            return self._failed("the provider cannot be reached", str(error), status.UNAVAILABLE)
        back = quote(_within(request.query_params.get("to", "/")), safe="")
        kept = ".".join((state, nonce, verifier, back))
        return RedirectResponse(address, 302, {"Set-Cookie": self._pending(request, kept)})

    async def callback(self, request: Request) -> Response:
        """Somebody comes back: begin a session, if one of their groups has a role."""
        provider, query = self._current(), request.query_params
        from .provider import ProviderError

        kept = cookie_parser(request.headers.get("cookie", "")).get(self._cookie(request), "").split(".")
        if len(kept) != 4 or not hmac.compare_digest(query.get("state", "").encode(), kept[0].encode()):
            return self._failed("this browser has not asked for it, or too long ago", "", status.FORBIDDEN)
        if "code" not in query:
            return self._failed("the provider has refused", query.get("error", "")[:200], status.FORBIDDEN)
        try:
            name, groups = await provider.person(query["code"], kept[1], kept[2])
        except ProviderError as error:
            return self._failed("the provider's answer is not valid", str(error), status.FORBIDDEN)
        grant = self._access.directory.of_person(OIDC, str(name), groups)
        if grant is None:
            who = f"{OIDC}:{name}" if is_name(name) else OIDC
            self._notes.refused(request, who)
            return self._failed(f"none of your groups has a role here, {who}", "", status.FORBIDDEN)
        secret, _ = self._access.sessions.begin(grant, peer_of(request.scope), time.time())
        self._notes.signed_in(request, grant.identity)
        name, secure = cookie_of(request.scope), is_secure(request.scope)
        answer = RedirectResponse(_within(unquote(kept[3])), 302)
        answer.headers.append("Set-Cookie", self._pending(request, ""))
        answer.headers.append(
            "Set-Cookie", cookie(name, secret, self._access.sessions.max_age_s, secure=secure)
        )
        return answer

    def _current(self) -> Provider:
        """The provider that the file names now."""
        people = self._access.directory.people
        if people.oidc is None:
            raise Problem(404, "there is no [oidc] in the file of identities", reason=Code.UNKNOWN_PATH)
        try:
            from .provider import Provider
        except ImportError:
            raise Problem(status.UNAVAILABLE, MISSING) from None
        found = self._provider
        if found is None or (found.row, found.secret) != (people.oidc, people.secret):
            found = self._provider = Provider(people.oidc, people.secret)
        return found

    def _cookie(self, request: Request) -> str:
        return cookie_of(request.scope) + "-oidc"

    def _pending(self, request: Request, value: str) -> str:
        """Lax: the browser comes back from another site."""
        secure = is_secure(request.scope)
        return cookie(self._cookie(request), value, PENDING_S, secure=secure, same_site="Lax")

    def _failed(self, text: str, why: str, code: int) -> Response:
        if self._notes.is_due():
            _log.warning("a sign-in with OpenID Connect has failed", problem=text, why=why)
        return PlainTextResponse(f"Signing in has failed: {text}. Go back to / and try again.\n", code)


def _within(address: str) -> str:
    """An address of the dashboard; "/" for any other."""
    inside = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if inside and len(address) <= MAX_BACK else "/"
