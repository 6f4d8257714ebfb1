"""What comes with a request: a JSON object of bounded size, in bounded time."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, Request

from . import status
from .problems import Problem
from .transcode import NotJson, read_json

MIB = 1024 * 1024
MAX_BODY = 16 * MIB  # a job's data may have 10 MB
MAX_HELD = 128 * MIB  # of all requests that are being read; their values take several times as much
BODY_S = 30.0  # for a body to arrive


class Bodies:
    """Reads bodies, and bounds what all of them take together."""

    def __init__(self) -> None:
        self._held = 0

    async def read(self, request: Request) -> dict[str, Any]:
        """The fields in a body; none if there is no body.  Raises Problem."""
        body = await self._bytes(request)
        if not body.strip():
            return {}
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise Problem(
                status.WRONG_TYPE, "the body must be JSON, with the header Content-Type: application/json"
            )
        try:
            fields = read_json(body)
        except NotJson as error:
            raise Problem(status.BAD_REQUEST, str(error)) from None
        if not isinstance(fields, dict):
            raise Problem(status.BAD_REQUEST, "the body must be a JSON object")
        return fields

    async def _bytes(self, request: Request) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.stream():
                    size += len(part)
                    self._held += len(part)
                    if size > MAX_BODY:
                        raise Problem(status.TOO_LARGE, f"the body is larger than {MAX_BODY} bytes")
                    if self._held > MAX_HELD:
                        raise Problem(
                            status.UNAVAILABLE, "too many large requests at the same time, try again"
                        )
                    parts.append(part)
        except TimeoutError:
            raise Problem(408, f"the body did not arrive within {BODY_S:g} s") from None
        except ClientDisconnect:
            raise Problem(status.BAD_REQUEST, "the request ended in the middle of its body") from None
        finally:
            self._held -= size
        return b"".join(parts)
