"""Requests that are refused before they reach the server, and the form of every refusal: ``{"ok": false,
"error": text}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from bunqueue.logs import get_logger
from bunqueue.protocol.codes import Code

from . import status
from .transcode import write_json

JSON = "application/json"
_TEXTS = {
    404: "there is no {path} here; see /docs",
    405: "{path} does not know the method {method}; see /docs",
}
_CODES = {  # of refusals by the gateway itself
    status.BAD_REQUEST: Code.INVALID_REQUEST,
    status.UNAUTHORIZED: Code.NOT_AUTHENTICATED,
    status.FORBIDDEN: Code.FORBIDDEN,
    status.NOT_FOUND: Code.UNKNOWN_PATH,
    405: Code.METHOD_NOT_ALLOWED,
    status.NO_JSON: Code.NOT_ACCEPTABLE,
    status.CONFLICT: Code.JOB_STATE,
    status.TOO_LARGE: Code.BODY_TOO_LARGE,
    status.WRONG_TYPE: Code.UNSUPPORTED_MEDIA_TYPE,
    status.INVALID: Code.INVALID_FIELD,
    status.TOO_MANY: Code.RATE_LIMITED,
    status.FAILED: Code.INTERNAL_ERROR,
    status.UNAVAILABLE: Code.UNAVAILABLE,
}
_RETRY = {status.TOO_MANY: "1", status.UNAVAILABLE: "1"}  # seconds until the client should try again

_log = get_logger("gateway")


class Problem(Exception):
    """A request that is refused. ``error`` says why, and what to do."""

    def __init__(
        self,
        code: int,
        error: str,
        headers: Mapping[str, str] | None = None,
        *,
        reason: Code | None = None,
        field: str | None = None,
    ) -> None:
        """``code`` is the HTTP status. ``reason`` is the code in the body, for programs, and ``field`` the
        field that is wrong."""
        super().__init__(error)
        self.field = field
        self.code = code
        self.reason = reason
        self.error = error
        self.headers = dict(headers or {})

    @property
    def reply(self) -> dict[str, Any]:
        """The body of the answer."""
        reply = {"ok": False, "error": self.error, "code": self.reason or _CODES[self.code]}
        return reply if self.field is None else {**reply, "field": self.field}


def refusal(code: int, error: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a refused request."""
    return answer(write_json({"ok": False, "error": error, "code": _CODES[code]}), code, headers)


def problem_answer(problem: Problem) -> Response:
    """`Problem` as an answer."""
    return answer(write_json(problem.reply), problem.code, problem.headers)


def answer(body: bytes, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON text as an answer."""
    more = dict(headers or {})
    if code in _RETRY:
        more.setdefault("Retry-After", _RETRY[code])
    return Response(body, code, more, media_type=JSON)


async def on_problem(request: Request, error: Exception) -> Response:
    """`Problem` as an answer."""
    assert isinstance(error, Problem)
    return problem_answer(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer requests that the framework refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    text = _TEXTS.get(error.status_code, error.detail).format(path=request.url.path, method=request.method)
    headers = {"Allow": _allowed(request)} if error.status_code == 405 else error.headers
    return refusal(error.status_code, text, headers)


def _allowed(request: Request) -> str:
    """The methods of a path. Each has its own route."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for methods in found for method in methods}))


async def on_failure(request: Request, error: Exception) -> Response:
    """Answer after a defect in the gateway."""
    _log.error("a request failed", path=request.url.path, method=request.method, error=repr(error))
    return refusal(500, "the gateway failed; its log says why")
