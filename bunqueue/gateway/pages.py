"""The dashboard's files, and its one page for every address that a browser shows.

A browser that opens an address asks for HTML, a program does not.  So /queues/mail is the dashboard's page
for a browser, and the queue's numbers for a program, and following a link from anywhere changes nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
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
    "/ws",
)
"""Paths that answer browsers and programs alike."""


class Pages:
    """Answers what a browser shows; everything else is the application's."""

    def __init__(self, app: ASGIApp, folder: Path = FOLDER) -> None:
        self._app = app
        self._folder = folder
        self._files = StaticFiles(directory=folder, check_dir=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        response = await self._find(scope)
        await (response or self._app)(scope, receive, send)

    async def _find(self, scope: Scope) -> Response | None:
        path = scope["path"]
        if path in ALWAYS_API or path.startswith("/commands/"):
            return None
        if path != "/" and (found := await self._file(scope)) is not None:
            return found
        if path != "/" and "text/html" not in Headers(scope=scope).get("accept", ""):
            return None
        index = self._folder / INDEX
        if index.is_file():
            return FileResponse(index, headers=HEADERS)
        return RedirectResponse("/docs", headers={"Vary": "Accept"})

    async def _file(self, scope: Scope) -> Response | None:
        """A file of the dashboard's; only those with a dot in their name, which no resource has to have."""
        name = scope["path"].lstrip("/")
        if "." not in name.rpartition("/")[2] or name.partition("/")[0] not in self._names():
            return None
        try:
            response = await self._files.get_response(self._files.get_path({**scope, "root_path": ""}), scope)
        except HTTPException:
            return None
        if response.status_code not in (200, 206, 304):
            return None
        response.headers.update(HEADERS)
        return response

    def _names(self) -> list[str]:
        """The files in the folder."""
        return os.listdir(self._folder) if self._folder.is_dir() else []
