"""What every request passes first: who sends it, from which page, as which request."""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import status
from .access import END, SPARE, TOO_MANY, Access, bearer, peer_of
from .problems import refusal

METHODS = "GET, POST, PUT, PATCH, DELETE"
REQUEST_ID = "X-Request-Id"
_ID = re.compile(r"[!-~]{1,128}")  # what a client may give: anything else could forge lines of logs


class Guard:
    """Passes requests to the application, with what the client has proved in ``state.known`` and the id of
    the request in ``state.request_id``."""

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
        state = scope.setdefault("state", {})
        known = state["known"] = self._access.known(scope, headers)
        no = self._refusal(scope, headers)
        if no is None and is_http and allowed and scope["method"] == "OPTIONS":
            no = _preflight()
        number = state["request_id"] = _request_id(headers)
        if known.grant is None and bearer(headers) is not None:
            spare = state.get(SPARE)  # missing for a WebSocket
            await self._access.wrong_token(peer_of(scope), spare or (lambda: None))
        dressed = _dress(send, allowed, number) if is_http else send
        if no is not None:
            await no(scope, receive, dressed)
        elif is_http:
            with self._access.kept(known, state.get(END, lambda: None)):
                await self._app(scope, receive, dressed)
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


def _request_id(headers: Headers) -> str:
    """The id that a client or a proxy has given the request, or a new one."""
    given = headers.get(REQUEST_ID, "")
    return given if _ID.fullmatch(given) else secrets.token_hex(8)


def _preflight() -> Response:
    allowed = {
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": "Authorization, Content-Type, Last-Event-ID, X-Request-Id",
        "Access-Control-Max-Age": "600",
    }
    return Response(status_code=204, headers=allowed)


def _dress(send: Send, origin: str | None, number: str) -> Send:
    """Add the common headers to every answer."""

    async def dressed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault("Cache-Control", "no-store")
            headers.setdefault("X-Content-Type-Options", "nosniff")
            headers.setdefault("Referrer-Policy", "no-referrer")
            headers[REQUEST_ID] = number
            if origin is not None:
                headers["Access-Control-Allow-Origin"] = origin
                headers.add_vary_header("Origin")
        await send(message)

    return dressed
