"""The event logs, shared by all couriers, so that many couriers cost the shards little.

One courier reads at a time. After a read without a match, no courier reads for several times as long as that
read took. A courier at the end of the logs reads again only after new events. One poll detects them for all
couriers.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from bunqueue.gateway.events.entries import Filter, Positions
from bunqueue.gateway.events.log_reader import LogReader, LogUnreadable, Page

POLL_S = 0.25  # between two polls for new events
REST = 4  # times as long as a read without a match took
LONGEST_REST_S = 1.0


class Logs:
    """The logs of all shards, for all couriers."""

    def __init__(self, reader: LogReader, shards: int) -> None:
        self._reader = reader
        self._ends: Positions = [-1] * shards
        self._turn = asyncio.Lock()
        self._refresh: asyncio.Task[None] | None = None

    async def read(self, after: Positions | None, limit: int, wanted: Filter, since: float | None) -> Page:
        """Call `LogReader.read`, one courier at a time."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            page = await self._reader.read(after, limit, wanted, since=since)
            self._advance(page)
            if not page.events:
                await asyncio.sleep(min((loop.time() - begun) * REST, LONGEST_REST_S))
            return page

    async def changed(self, places: Positions) -> None:
        """Return when the logs no longer end at ``places``."""
        while self._ends == places:
            if self._refresh is None or self._refresh.done():
                self._refresh = asyncio.get_running_loop().create_task(self._refresh_later())
            await asyncio.wait((self._refresh,))

    async def _refresh_later(self) -> None:
        await asyncio.sleep(POLL_S)
        async with self._turn:
            with suppress(LogUnreadable):
                self._advance(await self._reader.read(self._ends, 0))

    def _advance(self, page: Page) -> None:
        for place in page.places:
            self._ends[place["shard"]] = place["last"]
