"""The event logs as couriers read them, all of them together costing the shards little.

One reads at a time; after a look that found nothing wanted, nobody looks for some times as long as it took.
And who has come to the end looks again only when something has happened: one look finds that out for all.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from bunqueue.gateway.events.entries import Filter, Places
from bunqueue.gateway.events.log_reader import LogReader, LogUnreadable, Page

LOOK_S = 0.25  # between two looks at whether something has happened
REST = 4  # times as long as a look in vain took
LONGEST_REST_S = 1.0


class Logs:
    """Of all shards, for all couriers."""

    def __init__(self, reader: LogReader, shards: int) -> None:
        self._reader = reader
        self._ends: Places = [-1] * shards
        self._turn = asyncio.Lock()
        self._look: asyncio.Task[None] | None = None

    async def read(self, after: Places | None, limit: int, wanted: Filter, since: float | None) -> Page:
        """As `LogReader.read`, when it is one's turn."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            page = await self._reader.read(after, limit, wanted, since=since)
            self._settle(page)
            if not page.events:
                await asyncio.sleep(min((loop.time() - begun) * REST, LONGEST_REST_S))
            return page

    async def changed(self, places: Places) -> None:
        """Return when the logs do not end at ``places`` any more."""
        while self._ends == places:
            if self._look is None or self._look.done():
                self._look = asyncio.get_running_loop().create_task(self._look_later())
            await asyncio.wait((self._look,))

    async def _look_later(self) -> None:
        await asyncio.sleep(LOOK_S)
        async with self._turn:
            with suppress(LogUnreadable):
                self._settle(await self._reader.read(self._ends, 0))

    def _settle(self, page: Page) -> None:
        for place in page.places:
            self._ends[place["shard"]] = place["last"]
