"""Paths as they were sent: what stands encoded in a segment does not end it.

Decoded as a whole, ``/jobs/a%2Flogs`` would be the logs of the job ``a``, and not the job ``a/logs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Receive, Scope, Send

PLAIN = ":@!$&'()*+,;="  # stand for themselves in a segment, beside letters, digits and -._~


class Segments:
    """Gives the application paths whose segments are encoded, all in the same way."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            scope = {**scope, "path": encoded(scope["raw_path"].decode("ascii"))}
        await self._app(scope, receive, send)


def encoded(path: str) -> str:
    """A path in the one spelling that equal paths have in common."""
    return "/".join(quote(unquote(segment), safe=PLAIN) for segment in path.split("/"))


def decoded(names: Mapping[str, str]) -> dict[str, str]:
    """What stands in the segments of a path."""
    return {name: unquote(segment) for name, segment in names.items()}
