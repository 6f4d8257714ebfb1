"""The events of the whole server, for any number of listeners.  They are read once from the shards' logs, and
kept for a while.

Listeners have no buffers.  The feed keeps the last events, and a listener is a position among them.  If a
listener is so slow that its position was dropped, it is informed of the number of missed events, and
continues with the oldest.  So the memory for all listeners does not depend on how fast they read.

The feed must not slow the queues down.  The more processor time the gateway uses, and the more it sends to
all listeners, the longer the feed waits between two reads of the logs, and the less it reads.  If more events
happen than it reads, it leaves some out and reports that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import NamedTuple

from bunqueue.logs import get_logger

from .entries import Entry, EventBatch, Filter, Positions, format_position, lost, parse_position, unknown_to
from .log_reader import LogReader, LogUnreadable, Page

MAX_KEPT = 10_000  # events; about 5 MB
PAGE, SMALLEST_PAGE = 500, 20  # events of each shard per read, also when a listener resumes
BEHIND = 5_000  # unread events of each shard; if there are more, the oldest are left out
FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0  # between two reads
SHORT_S, LONG_S = 0.1, 0.3  # pauses below which a page may grow, and above which it must shrink
SHARE = 50  # seconds of rest for each second of work: one fiftieth of a core
RATE = 4 << 20  # bytes a second, to all listeners combined
RETRY_S = 0.5  # when the router is down
CHUNK = 64 * 1024  # bytes that a listener receives at once
MAX_CATCH_UP = 100_000  # events of each shard that are read again for a listener that resumes
CATCHING_UP = 4  # listeners at the same time
UNAVAILABLE_S = 15.0  # to wait for a shard that is unavailable (has no owner) and has a known position
MOVES_S = 2.0  # to wait for a shard that moves or restarts, before a listener gets the others
QUIET_S = 15.0

_log = get_logger("gateway")


class _Chunk(NamedTuple):
    """Some matching entries, the index after the last entry checked, and their size in bytes."""

    batch: EventBatch
    end: int
    size: int


class Feed:
    """All events from now on, while there are listeners."""

    def __init__(self, reader: LogReader, shards: int) -> None:
        self._reader = reader
        self._entries: list[Entry] = []
        self._base = 0  # the index of the first entry, counting all that were dropped
        self._floor: Positions = [-1] * shards  # the ends of the logs before the first entry
        self._head: Positions = [-1] * shards  # and after the last one
        self._chunks: dict[tuple[Filter, int], _Chunk] = {}  # since the last read
        self._sent = 0  # bytes since the last read, to all listeners
        self._page = SMALLEST_PAGE
        self._news = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()
        self._catching_up = asyncio.Semaphore(CATCHING_UP)
        self.listeners = 0
        self.closed = False

    async def listen(
        self, wanted: Filter, places: Positions | None = None, quiet_s: float = QUIET_S
    ) -> AsyncGenerator[EventBatch, None]:
        """Yield the start position first, without events: the listener is now registered.  Then yield events
        as they arrive, several at once.  After ``quiet_s`` seconds without a wanted event, yield an empty
        list.

        With ``places``, the events since then come first.  Ends when the feed is closed.  Raises the errors
        of reading the logs.
        """
        async with aclosing(self._listen(wanted, places, quiet_s)) as found:
            async for batch in found:
                yield wanted.shown(batch)

    async def _listen(
        self, wanted: Filter, places: Positions | None, quiet_s: float
    ) -> AsyncGenerator[EventBatch, None]:
        self.listeners += 1
        try:
            await self._begin()
            at = self._end
            if places is None:
                yield EventBatch([], format_position(self._head))
            else:
                complete = await self._adjust(places)
                yield EventBatch([], format_position(places))
                if not complete:
                    yield EventBatch([lost(None, places)], format_position(places))
                async for batch in self._catch_up(wanted, places):
                    yield batch
                at = self._base
            async for batch in self._go_on(wanted, at, places, quiet_s):
                yield batch
        finally:
            self.listeners -= 1
            if not self.listeners:
                self._stop()

    async def _go_on(
        self, wanted: Filter, at: int, known: Positions | None, quiet_s: float
    ) -> AsyncGenerator[EventBatch, None]:
        """The kept entries from an index on, without those in ``known``, and then new ones."""
        spoken = time.monotonic()
        while not self.closed:
            if at < self._base:
                missed, at = self._base - at, self._base
                batch = EventBatch([lost(missed, self._floor)], format_position(self._floor))
            else:
                batch, at, size = self._chunk(wanted, at)
                self._sent += size
            if known is not None:
                batch = unknown_to(known, batch)
                if at == self._end and _reached(self._head, known):
                    known = None
            if not batch.entries:
                rest = spoken + quiet_s - time.monotonic()
                if at < self._end or (rest > 0 and await self._wait(rest)):
                    continue
            yield batch
            spoken = time.monotonic()

    def close(self) -> None:
        """End the feed for all listeners."""
        self.closed = True
        self._stop()
        self._news.set()

    @property
    def _end(self) -> int:
        """The index that the next entry will have."""
        return self._base + len(self._entries)

    async def _wait(self, limit_s: float) -> bool:
        """Whether new entries arrive within that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._news.wait()
                return True
        return False

    def _chunk(self, wanted: Filter, at: int) -> _Chunk:
        """The next matching entries from an index on.

        Most listeners want the same events and are at the same position, so the result is computed once for
        all of them.
        """
        found = self._chunks.get((wanted, at))
        if found is None:
            found = self._find(wanted, at)
            if found.end > at:  # otherwise the head may move past entries that do not match
                self._chunks[wanted, at] = found
        return found

    def _find(self, wanted: Filter, at: int) -> _Chunk:
        entries: list[Entry] = []
        size = 0
        for index in range(at - self._base, len(self._entries)):
            entry = self._entries[index]
            if wanted.wants(entry):
                if size > CHUNK:
                    return _Chunk(
                        EventBatch(entries, self._entries[index - 1].places), self._base + index, size
                    )
                entries.append(entry)
                size += len(entry.body)
        return _Chunk(EventBatch(entries, format_position(self._head)), self._end, size)

    # Listeners that resume

    async def _adjust(self, places: Positions) -> bool:
        """Whether nothing is missing after ``places``.  Positions that no log knows are set to the ends of
        the logs.

        Those positions belong to another data folder, or to a shard that was unavailable.
        """
        complete = min(places) >= 0
        page = await self._reader.read(places, 0)
        for place in page.places:
            if not 0 <= places[place["shard"]] <= place["last"]:
                places[place["shard"]] = place["last"]
                complete = False
        return complete

    async def _catch_up(self, wanted: Filter, places: Positions) -> AsyncGenerator[EventBatch, None]:
        """The events after ``places``, which advance, until they reach the kept entries.  Waits for a shard
        that is unavailable: otherwise its events would be missing once it is back."""
        limit = max(PAGE // len(places), SMALLEST_PAGE)
        until = time.monotonic() + UNAVAILABLE_S
        while not self.closed:
            is_unavailable = self._is_unavailable(places) and time.monotonic() < until
            if _reached(places, self._floor) and not is_unavailable:
                return
            before = list(places)
            async with self._catching_up:  # released while the listener processes what was read
                page = await self._reader.read(places, limit, wanted)
            entries = page.entries(places)
            page.advance(places)
            if skipped := page.missed + _skip(places, page, MAX_CATCH_UP):
                entries.append(lost(skipped, places))
            if entries:
                yield EventBatch(entries, format_position(places))
            if places == before or (is_unavailable and len(page.events) < limit):
                await asyncio.sleep(RETRY_S)

    def _is_unavailable(self, places: Positions) -> bool:
        """Whether the feed does not yet know the log of a shard for which ``places`` has a position."""
        return any(floor < 0 <= place for floor, place in zip(self._floor, places, strict=True))

    # The logs

    async def _begin(self) -> None:
        async with self._beginning:
            if (self._follower is None or self._follower.done()) and not self.closed:
                until = time.monotonic() + MOVES_S
                await self._find_ends()
                while min(self._head) < 0 and time.monotonic() < until:
                    await asyncio.sleep(FIRST_PAUSE_S)
                    await self._find_ends()
                self._floor = list(self._head)
                self._follower = asyncio.get_running_loop().create_task(self._follow())

    async def _find_ends(self) -> None:
        """Find the ends of the logs of all available shards."""
        page = await self._reader.read([-1] * len(self._head), 0)
        page.advance(self._head)

    def _stop(self) -> None:
        """Stop reading and keep nothing, because there are no listeners."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
        self._base = self._end
        self._entries.clear()
        self._chunks.clear()
        self._head = [-1] * len(self._head)

    async def _follow(self) -> None:
        """Read the logs repeatedly."""
        worked = time.process_time()
        while True:
            try:
                page = await self._reader.read(self._head, self._page)
            except LogUnreadable as error:
                _log.warning("the event logs cannot be read, trying on", error=str(error))
                await asyncio.sleep(RETRY_S)
                continue
            full = len(page.events) >= self._page
            self._take(page)
            now = time.process_time()
            pause = max((now - worked) * SHARE, self._sent / RATE, FIRST_PAUSE_S)
            worked, self._sent = now, 0
            if pause > LONG_S:
                self._page = max(int(self._page * LONG_S / pause), SMALLEST_PAGE)
            elif full and pause < SHORT_S:
                self._page = min(self._page * 2, PAGE)
            await asyncio.sleep(min(pause, LAST_PAUSE_S))

    def _take(self, page: Page) -> None:
        """Keep new entries, drop old ones, and wake the listeners."""
        unavailable = [shard for shard, place in enumerate(self._head) if place < 0]
        fresh = page.entries(self._head)
        page.advance(self._head)
        skipped = page.missed + _skip(self._head, page, BEHIND)
        if skipped:
            fresh.append(lost(skipped, self._head))
        if back := [shard for shard in unavailable if self._head[shard] >= 0]:
            for shard in back:
                self._floor[shard] = self._head[shard]
            fresh.append(lost(None, self._head, tuple(back)))
        if not fresh:
            return
        self._entries += fresh
        self._chunks.clear()
        if len(self._entries) > MAX_KEPT:
            self._forget(len(self._entries) - MAX_KEPT * 3 // 4)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _forget(self, count: int) -> None:
        self._floor = parse_position(self._entries[count - 1].places, len(self._floor)) or self._floor
        del self._entries[:count]
        self._base += count


def _reached(places: Positions, others: Positions) -> bool:
    return all(place >= other for place, other in zip(places, others, strict=True))


def _skip(places: Positions, page: Page, most: int) -> int:
    """Advance where more than ``most`` events are unread.  Return the number of events that this leaves
    out."""
    skipped = 0
    for place in page.places:
        behind = place["last"] - places[place["shard"]]
        if behind > most:
            skipped += behind - most
            places[place["shard"]] = place["last"] - most
    return skipped
