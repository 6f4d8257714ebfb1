"""The connections of other hosts' clients, as far as shards here may know them.

A host that has dialled reports which of its connections are open. Shards are notified of those that have
closed, and of a host that has gone with all of its own.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

from bunqueue.server.links import host_protocol as host_link
from bunqueue.server.links import shard_protocol as link_protocol

from ..clients.hub import Hub
from .downlink import Downlink

LIVE_S = 1.0  # for the other hosts to report their open connections
GONE_S = 10.0  # after which the connections of a host that does not come back count as closed


class Origins:
    """Hosts by number, which is part of the numbers of their connections."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._known: defaultdict[int, set[int]] = defaultdict(set)  # origin -> its connections, as known here
        self._incarnations: dict[int, str] = {}  # origin -> its current incarnation
        self._going: dict[int, asyncio.TimerHandle] = {}  # origins that are disconnected
        self._asked: dict[str, asyncio.Future[frozenset[int]]] = {}  # hosts, for their open connections

    def arrived(self, downlink: Downlink) -> None:
        """A host has connected, perhaps again."""
        origin = downlink.origin
        if (timer := self._going.pop(origin, None)) is not None:
            timer.cancel()
        if self._incarnations.get(origin, downlink.incarnation) != downlink.incarnation:
            self._expire(origin)
        self._incarnations[origin] = downlink.incarnation

    def left(self, downlink: Downlink) -> None:
        """A host has no connection to this one any more."""
        future = self._asked.get(downlink.peer)
        if future is not None and not future.done():
            future.set_result(frozenset())
        for link in self._hub.shards.served_here:  # or they would hand out jobs that no worker gets
            link.control(link_protocol.ORIGIN_CUT, downlink.origin << link_protocol.ORIGIN_SHIFT)
        loop = asyncio.get_running_loop()
        self._going[downlink.origin] = loop.call_later(GONE_S, self._expire, downlink.origin)

    def close(self) -> None:
        for timer in self._going.values():
            timer.cancel()

    def _expire(self, origin: int) -> None:
        """A host's router has ended, or was unreachable for too long: its connections count as closed."""
        self._going.pop(origin, None)
        self._incarnations.pop(origin, None)
        self._ended(self._known.pop(origin, set()))
        for link in self._hub.shards.served_here:
            link.control(link_protocol.ORIGIN_GONE, origin << link_protocol.ORIGIN_SHIFT)

    def _ended(self, connections: Iterable[int]) -> None:
        """These connections are not there any more; their workers may come back over others."""
        links = self._hub.shards.served_here
        for conn in connections:
            for link in links:
                link.control(link_protocol.BROKEN, conn)

    def known_of(self, downlink: Downlink) -> set[int]:
        """The connections of a host that shards here may know."""
        return self._known[downlink.origin]

    def report(self, downlink: Downlink, connections: frozenset[int]) -> None:
        """A host reports which of its connections are open."""
        known = self._known[downlink.origin]
        self._ended(known - connections)
        known &= connections
        future = self._asked.get(downlink.peer)
        if future is not None and not future.done():
            future.set_result(connections)

    async def ask(self, downlinks: Sequence[Downlink]) -> list[int]:
        """The open connections of these hosts, as far as they answer in time."""
        loop = asyncio.get_running_loop()
        for downlink in downlinks:
            if downlink.peer not in self._asked or self._asked[downlink.peer].done():
                self._asked[downlink.peer] = loop.create_future()
            downlink.send(host_link.LIVE)
        if downlinks:
            await asyncio.wait([self._asked[downlink.peer] for downlink in downlinks], timeout=LIVE_S)
        found: list[int] = []
        for downlink in downlinks:
            future = self._asked[downlink.peer]
            if future.done():
                found += future.result()
                self._known[downlink.origin] |= future.result()
        return found
