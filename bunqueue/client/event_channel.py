"""One subscription to the events of a queue, shared by all streams of an event loop that read them.

A web server that forwards events to 200 browsers needs one connection for this, not 200.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from bunqueue.client import background, engine_override
from bunqueue.client.connection.options import reconnect_delay
from bunqueue.client.connection.replies import decode_reply
from bunqueue.client.connection.transport import Endpoint, Transport
from bunqueue.errors import AuthError, BunqueueError
from bunqueue.protocol.commands import Ok
from bunqueue.protocol.commands.events import SubscribeEvents

logger = logging.getLogger("bunqueue.events")

MAX_DELAY = 5.0  # seconds between attempts to subscribe again

Key = tuple[asyncio.AbstractEventLoop, Endpoint, str, engine_override.EngineOverride | None, int]

_channels: dict[Key, Channel] = {}
_lock = threading.Lock()  # event loops may run in several threads


class Listener(Protocol):
    """Receives the frames of a channel, in its event loop. No method may raise."""

    def receive(self, payload: bytes) -> None:
        """A frame that answers no request."""

    def missed(self) -> None:
        """The connection was lost and is back: events are missing here."""

    def fail(self, error: BunqueueError) -> None:
        """There will be no more events."""


class Channel:
    """A connection that stays subscribed to one queue while there are listeners."""

    def __init__(self, endpoint: Endpoint, queue: str, on_closed: Callable[[Channel], None]) -> None:
        """``on_closed`` is called once no other listeners can join."""
        # Use a single connection: resubscribing has to use the connection that is listened to.
        self._endpoint = replace(endpoint, options=replace(endpoint.options, pool_size=1))
        self._queue = queue
        self._on_closed = on_closed
        self._listeners: dict[Listener, None] = {}
        self._disconnected: set[Listener] = set()  # were subscribed when the connection was lost
        self._opening = asyncio.Lock()
        self._session: Transport | None = None
        self._subscribed = False
        self._breaks = 0  # number of connections that ended
        self._subscribing: asyncio.Task[None] | None = None

    async def join(self, listener: Listener) -> None:
        """Subscribe a listener; it misses nothing after this returns. Raises BunqueueError."""
        self._listeners[listener] = None
        try:
            async with self._opening:
                if self._session is None:
                    self._session = await self._endpoint.open(private=True)
                    self._session.listen(self._on_frame)
                if not self._subscribed:
                    await self._subscribe()
        except BaseException:
            await self.leave(listener)
            raise

    async def leave(self, listener: Listener) -> None:
        """Unsubscribe a listener; safe to call twice. The last one closes the connection."""
        self._listeners.pop(listener, None)
        self._disconnected.discard(listener)
        if self._listeners:
            return
        self._on_closed(self)
        session, self._session = self._session, None
        if self._subscribing is not None:
            self._subscribing.cancel()
        if session is not None:
            session.listen(None)
            await session.close()

    def _on_frame(self, payload: bytes | None) -> None:
        if payload is not None:
            for listener in list(self._listeners):
                listener.receive(payload)
            return
        self._breaks += 1
        self._subscribed = False
        self._disconnected.update(self._listeners)
        if self._subscribing is None and self._session is not None:
            self._subscribing = background.begin(asyncio.get_running_loop(), self._subscribe_again())
            self._subscribing.add_done_callback(self._ended)

    async def _subscribe(self) -> None:
        assert self._session is not None
        command, breaks = SubscribeEvents(queue=self._queue), self._breaks
        decode_reply(await self._session.call(command), Ok, command, self._endpoint.address)
        self._subscribed = self._breaks == breaks

    async def _subscribe_again(self) -> None:
        """Retry until the subscription was made over the current connection."""
        failures = 0
        while not self._subscribed:
            try:
                await self._subscribe()
            except AuthError:
                raise
            except BunqueueError as error:
                failures += 1
                logger.debug("queue %r: cannot subscribe: %s", self._queue, error)
                await asyncio.sleep(min(reconnect_delay(failures, random.random()), MAX_DELAY))
        disconnected, self._disconnected = self._disconnected, set()
        for listener in disconnected:
            listener.missed()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._subscribing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_closed(self)
            for listener in list(self._listeners):
                listener.fail(error if isinstance(error, BunqueueError) else BunqueueError(str(error)))


def channel_to(endpoint: Endpoint, queue: str) -> Channel:
    """The channel that all listeners to a queue in this event loop share."""
    loop = asyncio.get_running_loop()
    # Another codec decodes to other data. A channel keeps its codec alive, so its id cannot be reused.
    key = (loop, endpoint, queue, engine_override.current, id(endpoint.codec))
    with _lock:
        for other in [other for other in _channels if other[0].is_closed()]:
            del _channels[other]  # its loop was closed without closing it
        if key not in _channels:
            _channels[key] = Channel(endpoint, queue, partial(_forget, key))
        return _channels[key]


def _forget(key: Key, channel: Channel) -> None:
    with _lock:
        if _channels.get(key) is channel:
            del _channels[key]


def _after_fork() -> None:
    """Replace the lock. The channels belong to the parent's event loops."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
