"""What is refused before it gets to the server, and how every refusal looks: ``{"ok": false, "error":
text}``.
"""

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
_RETRY = {status.TOO_MANY: "1", status.UNAVAILABLE: "1"}  # seconds until it is worth trying again

_log = get_logger("gateway")


class Problem(Exception):
    """A request that is refused; ``error`` says why, and what to do."""

    def __init__(
        self,
        code: int,
        error: str,
        headers: Mapping[str, str] | None = None,
        *,
        reason: Code | None = None,
    ) -> None:
        """``code`` is the HTTP status; ``reason`` is the code in the body, for programs."""
        super().__init__(error)
        self.code = code
        self.reason = reason
        self.error = error
        self.headers = dict(headers or {})

    @property
    def reply(self) -> dict[str, Any]:
        """The body of the answer."""
        reply: dict[str, Any] = {"ok": False, "error": self.error}
        return reply if self.reason is None else {**reply, "code": self.reason}


def refusal(code: int, error: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that says no."""
    return answer(write_json({"ok": False, "error": error}), code, headers)


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
    """What the framework refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    text = _TEXTS.get(error.status_code, error.detail).format(path=request.url.path, method=request.method)
    headers = {"Allow": _allowed(request)} if error.status_code == 405 else error.headers
    return refusal(error.status_code, text, headers)


def _allowed(request: Request) -> str:
    """The methods that a path knows: each stands for a route of its own."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for methods in found for method in methods}))


async def on_failure(request: Request, error: Exception) -> Response:
    """A defect of the gateway's own."""
    _log.error("a request failed", path=request.url.path, method=request.method, error=repr(error))
    return refusal(500, "the gateway failed; its log says why")
