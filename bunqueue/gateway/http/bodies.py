"""Request bodies: JSON objects, bounded in size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from starlette.requests import ClientDisconnect, Request

from . import status
from .problems import Problem
from .transcode import NotJson, TooManyValues, read_json

MIB = 1024 * 1024
MAX_BODY = 16 * MIB  # a job's data may have 10 MB
MAX_HELD = 128 * MIB  # of all requests in progress, as text or encoded again
BODY_S = 30.0  # for a body to arrive


class MemoryBudget:
    """Bounds the total bytes of all requests in progress."""

    def __init__(self, most: int = MAX_HELD) -> None:
        self._left = most

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """A function that reserves bytes until the block ends.  It raises Problem."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if size > self._left:
                raise Problem(status.UNAVAILABLE, "too many large requests at the same time, try again")
            self._left -= size
            taken += size

        try:
            yield take
        finally:
            self._left += taken


class Bodies:
    """Reads bodies."""

    def __init__(self, room: MemoryBudget) -> None:
        self._room = room

    @asynccontextmanager
    async def read(self, request: Request, whole: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """The fields in a body, or an empty map if there is no body.  The body takes room until the block
        ends.  With `whole`, the entire body is the value of that field.  Raises Problem."""
        with self._room.share() as take:
            yield _fields(request, await _bytes(request, take), whole)


def _fields(request: Request, body: bytes, whole: str | None) -> dict[str, Any]:
    if not body.strip():
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Problem(
            status.WRONG_TYPE, "the body must be JSON, with the header Content-Type: application/json"
        )
    try:
        given = read_json(body)
    except TooManyValues as error:
        raise Problem(status.TOO_LARGE, str(error)) from None
    except NotJson as error:
        raise Problem(status.BAD_REQUEST, str(error)) from None
    fields = given if whole is None else {whole: given}
    if not isinstance(fields, dict):
        raise Problem(status.BAD_REQUEST, "the body must be a JSON object")
    return fields


async def _bytes(request: Request, take: Callable[[int], None]) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > MAX_BODY:
                    raise Problem(status.TOO_LARGE, f"the body is larger than {MAX_BODY} bytes")
                take(len(part))
                parts.append(part)
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise Problem(status.BAD_REQUEST, "the request ended in the middle of its body") from None
    return b"".join(parts)
