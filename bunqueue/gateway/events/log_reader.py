"""The shards' event logs, page by page."""

from __future__ import annotations

import heapq
from itertools import groupby
from operator import itemgetter
from typing import Any

from ..http.transcode import NotJson, read_packed
from ..router_client.backend import Backend, Unanswered
from ..router_client.connection import RouterDisconnected
from .entries import Entry, Filter, Positions, as_entry

EVERYTHING = Filter()


class LogUnreadable(Exception):
    """The logs cannot be read at the moment."""


class Page:
    """Some events of all shards."""

    def __init__(self, events: list[dict[str, Any]], places: list[dict[str, Any]]) -> None:
        self.events = events
        self.places = places  # maps {shard, after, last, missed}
        self.missed = sum(place["missed"] for place in places)

    def entries(self, places: Positions) -> list[Entry]:
        """The events, roughly in order of time. Advances ``places`` to the last one."""
        by_shard = [list(events) for _, events in groupby(self.events, itemgetter("shard"))]
        return [as_entry(event, places) for event in heapq.merge(*by_shard, key=itemgetter("timestamp"))]

    def advance(self, places: Positions) -> None:
        """Advance ``places`` to where reading ended, past the events that did not match."""
        for place in self.places:
            places[place["shard"]] = place["after"]


class LogReader:
    """Reads through the router."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def read(
        self, after: Positions | None, limit: int, wanted: Filter = EVERYTHING, since: float | None = None
    ) -> Page:
        """At most ``limit`` events of each shard, after these positions or ``since`` (epoch ms).

        Raises LogUnreadable if there is no answer.
        """
        fields: dict[str, Any] = {"limit": limit, **wanted.as_fields()}
        if after is not None:
            fields["after"] = after
        elif since is not None:
            fields["since"] = since
        try:
            reply = read_packed(await self._backend.call("GetEvents", fields))
        except (RouterDisconnected, Unanswered, NotJson) as error:
            raise LogUnreadable(str(error) or "no answer") from error
        if not reply["ok"]:
            raise LogUnreadable(reply["error"])
        return Page(reply["events"], reply["places"])
