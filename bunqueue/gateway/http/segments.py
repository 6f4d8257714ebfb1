"""Keeps paths as they were sent: an encoded slash in a segment does not end the segment.

Decoded as a whole, ``/jobs/a%2Flogs`` would be the logs of the job ``a``, and not the job ``a/logs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Receive, Scope, Send

PLAIN = ":@!$&'()*+,;="  # not encoded in a segment, like letters, digits and -._~


class Segments:
    """Passes paths with uniformly encoded segments to the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            scope = {**scope, "path": encoded(scope["raw_path"].decode("ascii"))}
        await self._app(scope, receive, send)


def encoded(path: str) -> str:
    """The canonical spelling of a path."""
    return "/".join(quote(unquote(segment), safe=PLAIN) for segment in path.split("/"))


def decoded(names: Mapping[str, str]) -> dict[str, str]:
    """The decoded segments of a path."""
    return {name: unquote(segment) for name, segment in names.items()}
