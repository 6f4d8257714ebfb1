"""GET /audit: the trail of this host, newest entries last."""

from __future__ import annotations

import asyncio
from math import inf, isfinite, nan
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from bunqueue.model.rights import Verb
from bunqueue.server.audit.trail import Wanted, latest
from bunqueue.server.settings.settings import Settings

from . import status
from .access import need_everywhere
from .problems import Problem, answer
from .transcode import write_json
from .unknown_fields import check_names

MAX_ENTRIES = 1000
MAX_DIGITS = 7  # of the number of entries of one moment


class Audit:
    """The endpoint."""

    def __init__(self, settings: Settings) -> None:
        self._data_dir = "" if settings.in_memory else settings.data_dir

    async def endpoint(self, request: Request) -> Response:
        """All optional: ``who`` (an identity or address), ``what`` (a command, queue or other value; each of
        several), ``since`` (epoch ms), ``limit``, and the ``cursor`` of an answer, for the entries before."""
        need_everywhere(request, Verb.ADMINISTER, "the trail")
        query = request.query_params
        check_names(query, ("who", "what", "since", "limit", "cursor"))
        since, limit = _number(query, "since", 0.0), int(_number(query, "limit", 100))
        if not 0 < limit <= MAX_ENTRIES:
            raise Problem(status.INVALID, f"limit must be from 1 to {MAX_ENTRIES}", field="limit")
        until, seen = _place(query.get("cursor"))
        wanted = Wanted(query.get("who", ""), tuple(query.getlist("what")), since, until)
        found = (
            await asyncio.to_thread(latest, self._data_dir, wanted, limit + seen) if self._data_dir else []
        )
        shown = found[: len(found) - seen][-limit:]
        data: dict[str, Any] = {"entries": shown}
        if len(shown) == limit:
            same = sum(entry.at == shown[0].at for entry in shown)
            more = seen if shown[0].at == until else 0
            data["cursor"] = f"{shown[0].at}.{same + more}"
        return answer(write_json({"ok": True, "data": data}))


def _number(query: QueryParams, name: str, usual: float) -> float:
    try:
        found = float(query.get(name, usual))
    except ValueError:
        found = nan
    if not isfinite(found):
        raise Problem(status.INVALID, f"{name} must be a number", field=name)
    return found


def _place(cursor: str | None) -> tuple[float, int]:
    """Where a page ends: a moment, and how many entries of that moment were on the pages before it."""
    if not cursor:
        return inf, 0
    at, dot, seen = cursor.partition(".")
    if not (dot and at.isdigit() and seen.isdigit() and len(seen) < MAX_DIGITS):
        raise Problem(status.INVALID, "cursor must be that of an answer", field="cursor")
    return float(at), int(seen)
