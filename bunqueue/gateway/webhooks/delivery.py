"""Delivers the events of one webhook in order, retrying each until it arrives.

Delivery is at least once.  The position is stored through the server about once a second.  After a crash,
everything that was delivered since then is delivered again, with the same ids.  After a change of the number
of shards, some of the last deliveries are repeated with other ids.  A failing delivery blocks those behind
it.  When the receiver has refused for a long time, the webhook is switched off.  When it is switched on
again, it continues where it stopped.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Any

from bunqueue.gateway.events.entries import Filter, Positions
from bunqueue.gateway.events.log_reader import LogUnreadable, Page
from bunqueue.logs import get_logger
from bunqueue.protocol.commands.webhooks import Delivery, RecordDelivery

from .messages import KINDS, NAMES, body_of, delivery_id, headers_of
from .sender import NotSent, post
from .shared_event_logs import Logs

PAGE = 100  # events of each shard read at once
RECORD_S = 1.0
RECORD_EVENTS = 50_000  # skipped events between two records of the position: a restart skips these
RETRY_S = 1.0  # when the logs cannot be read
LAST_S = 1.5  # for a delivery in progress at shutdown
SKEW_MS = 30_000  # a page shows one moment, except for the time that its shards take to answer
FIRST_DELAY_S, LAST_DELAY_S = 1.0, 300.0  # before a delivery is repeated; doubled each time
MAX_FAILURES = 20  # in a row: after more than an hour of them the webhook is switched off
GONE = 410  # the receiver wants no more deliveries

Record = Callable[[RecordDelivery], Awaitable[bool]]  # whether it is stored

_log = get_logger("webhooks")


class WebhookDelivery:
    """Delivers one webhook while its task runs."""

    def __init__(
        self,
        hook: Delivery,
        logs: Logs,
        record: Record,
        *,
        shards: int,
        anywhere: bool,
        first_delay_s: float = FIRST_DELAY_S,
        max_failures: int = MAX_FAILURES,
    ) -> None:
        self._hook = hook
        self._logs = logs
        self._record = record
        self._shards = shards
        self._anywhere = anywhere
        self._first_delay_s = first_delay_s
        self._max_failures = max_failures
        self._places: Positions | None = hook.places
        self._until = hook.until  # after a change of the number of shards, delivery continues here
        self._times = [hook.until] * shards  # of the last delivery of each shard
        self._behind: set[int] = set()  # shards that may have more to read
        self._noted = 0  # total of the positions at the last record
        types = frozenset(KINDS[name] for name in hook.events)
        self._wanted = Filter(frozenset((hook.queue,)) if hook.queue else None, types)
        self._news: RecordDelivery | None = None  # data to record
        self._recorded_at = 0.0

    async def run(self) -> None:
        """Deliver until it is cancelled or the webhook is switched off."""
        try:
            while True:
                page = await self._read()
                for event in _in_order(page):
                    if not await self._deliver(event):
                        return
                self._pass(page)
                if not page.events:
                    await self._wait_for_events()
        finally:
            if self._news is not None:
                await asyncio.shield(self._record_news(now=True))

    async def _wait_for_events(self) -> None:
        """Wait until something happens.  Meanwhile, record what is not yet recorded."""
        assert self._places is not None
        while True:
            await self._record_news()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._news is None else RECORD_S):
                    return await self._logs.changed(self._places)

    async def _read(self) -> Page:
        """The next events.  Waits until all shards answer, because no event may be skipped."""
        while True:
            try:
                page = await self._logs.read(self._places, PAGE, self._wanted, self._until)
            except LogUnreadable as error:
                _log.debug("the logs cannot be read", webhook=self._hook.id, error=str(error))
            else:
                if self._places is not None or len(page.places) == self._shards:
                    return self._begun(page)
            await asyncio.sleep(RETRY_S)

    def _begun(self, page: Page) -> Page:
        if self._places is None:
            firsts = {event["shard"]: event["seq"] for event in reversed(page.events)}
            self._places = [0] * self._shards
            for place in page.places:
                shard = place["shard"]
                self._places[shard] = firsts.get(shard, place["after"] + 1) - 1
            self._noted = sum(self._places)
        read = {place["shard"] for place in page.places if place["after"] >= place["last"]}
        self._behind = set(range(self._shards)) - read
        if page.missed:
            _log.warning(
                "events were forgotten before they were delivered", webhook=self._hook.id, events=page.missed
            )
        return page

    def _pass(self, page: Page) -> None:
        """Mark the page as delivered, and skip the unwanted events between its events."""
        assert self._places is not None
        page.advance(self._places)
        self._done_until(max(self._times))
        if page.events or abs(sum(self._places) - self._noted) > RECORD_EVENTS:
            self._note()

    async def _deliver(self, event: dict[str, Any]) -> bool:
        """Send an event until it arrives.  False if the webhook is switched off because of it."""
        body, name = body_of(event, self._hook.queue), NAMES[event["eventType"]]
        failures, delay = 0, self._first_delay_s
        while (problem := await self._attempt(event, name, body)) is not None:
            failures += 1
            off = failures >= self._max_failures or problem.startswith(f"{GONE} ")
            self._note(failed=1, error=problem, disable=off)
            await self._record_news(now=True)
            while off and self._news is not None:
                await asyncio.sleep(RETRY_S)
                await self._record_news(now=True)
            if off:
                _log.warning(
                    "a webhook is switched off", webhook=self._hook.id, error=problem, failures=failures
                )
                return False
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))
            delay = min(delay * 2, LAST_DELAY_S)
        self._arrived(event)
        await self._record_news()
        return True

    def _arrived(self, event: dict[str, Any]) -> None:
        assert self._places is not None
        self._places[event["shard"]] = event["seq"]
        self._times[event["shard"]] = event["timestamp"]
        self._done_until(event["timestamp"])
        self._note(succeeded=1)

    def _done_until(self, time_ms: float) -> None:
        """Everything read so far is delivered up to this time.  But shards may have more to read, or write
        more."""
        times = [self._times[shard] for shard in self._behind]
        self._until = max(self._until, min([time_ms - SKEW_MS, *times]))

    async def _attempt(self, event: dict[str, Any], name: str, body: bytes) -> str | None:
        """Like `_send`, but not interrupted at shutdown: an event that has arrived should not be sent
        again."""
        sending = asyncio.create_task(self._send(name, delivery_id(event), body))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            await asyncio.wait((sending,), timeout=LAST_S)
            if sending.done() and sending.result() is None:
                self._arrived(event)
            sending.cancel()
            raise

    async def _send(self, name: str, delivery: str, body: bytes) -> str | None:
        """The problem of one attempt, or None when it has arrived."""
        hook = self._hook
        headers = headers_of(name, delivery, body, hook.secret, int(time.time()))
        try:
            status = await post(hook.url, headers, body, anywhere=self._anywhere)
        except NotSent as error:
            return str(error)
        return None if 200 <= status < 300 else f"{status} is no success"

    def _note(
        self, succeeded: int = 0, failed: int = 0, error: str | None = None, disable: bool = False
    ) -> None:
        """Remember data to record."""
        news = self._news or RecordDelivery(webhook_id=self._hook.id)
        news.places, news.until = None if self._places is None else list(self._places), self._until
        self._noted = sum(self._places or ())
        news.succeeded += succeeded
        news.failed += failed
        news.disable |= disable
        if succeeded or failed:
            news.at, news.error = time.time() * 1000, error and error[:1000]
        self._news = news

    async def _record_news(self, *, now: bool = False) -> None:
        """Record the data, if there is any and the last record was long enough ago."""
        loop = asyncio.get_running_loop()
        if self._news is None or (not now and loop.time() - self._recorded_at < RECORD_S):
            return
        news, self._news = self._news, None
        self._recorded_at = loop.time()
        if not await self._record(news):
            self._news = news


def _in_order(page: Page) -> list[dict[str, Any]]:
    """The events of a page, roughly in order of time, and in exact order within each shard."""
    by_shard = [list(events) for _, events in groupby(page.events, itemgetter("shard"))]
    return list(heapq.merge(*by_shard, key=itemgetter("timestamp")))
