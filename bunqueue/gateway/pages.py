"""The dashboard's files, and its single page for every address that a browser shows.

A browser that opens an address asks for HTML, a program does not.  So /queues/mail is the dashboard's page
for a browser, and the queue's numbers for a program.  Following a link from anywhere changes nothing.
"""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

FOLDER = Path(__file__).parent / "dashboard"
INDEX = "index.html"
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "Vary": "Accept"}
ALWAYS_API = (
    "/health",
    "/healthz",
    "/ready",
    "/prometheus",
    "/stats",
    "/history",
    "/openapi.json",
    "/docs",
    "/oidc/login",
    "/oidc/callback",
    "/ws",
)
"""Paths that answer browsers and programs alike."""


class _File(NamedTuple):
    """A file as it is sent."""

    changed_at: int  # ns
    body: bytes
    kind: str
    tag: str


class Pages:
    """Answers browsers.  Passes every other request to the application.

    The files are kept in memory.  They need no token, so no client may make the server open a file.
    """

    def __init__(self, app: ASGIApp, folder: Path = FOLDER) -> None:
        self._app = app
        self._folder = folder
        found = [path for path in folder.rglob("*") if path.is_file()]
        self._files = {path.relative_to(folder).as_posix(): _read(path) for path in found}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        response = self._find(scope["path"], Headers(scope=scope))
        await (response or self._app)(scope, receive, send)

    def _find(self, path: str, asked: Headers) -> Response | None:
        if path in ALWAYS_API or path.startswith("/commands/"):
            return None
        name = path.removeprefix("/")
        if name in self._files:
            return self._answer(name, asked)
        if path != "/" and "text/html" not in asked.get("accept", ""):
            return None
        if INDEX in self._files:
            return self._answer(INDEX, asked)
        return RedirectResponse("/docs", headers={"Vary": "Accept"})

    def _answer(self, name: str, asked: Headers) -> Response:
        """A file, unless the browser already has the current version."""
        file = self._file(name)
        headers = {**HEADERS, "ETag": file.tag}
        if file.tag in asked.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers, media_type=file.kind)

    def _file(self, name: str) -> _File:
        """A file, read again if it has changed, as during development."""
        known, path = self._files[name], self._folder / name
        try:
            if path.stat().st_mtime_ns != known.changed_at:
                known = self._files[name] = _read(path)
        except OSError:  # an upgrade has just removed it
            pass
        return known


def _read(path: Path) -> _File:
    changed_at, body = path.stat().st_mtime_ns, path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return _File(changed_at, body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
