"""Commands for a shard that has no owner at the moment: they wait for some seconds instead of being refused.

The client still sees the command as in flight.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bunqueue.server.links import shard_protocol as link_protocol

from ..core.ports import Asks, Buffer, Client, Endpoint
from ..core.single_host import Pending

HOLD_S = 15.0  # longer than a take-over takes; then they are refused
MAX_BYTES = 32 << 20  # over all shards; above it, commands are refused at once


@dataclass(slots=True)
class Held:
    """Frames of one client."""

    client: Client
    kind: int
    frames: list[bytes]
    until: float


@dataclass(slots=True)
class Later:
    """A command for several shards. ``again`` asks them if it can, and returns whether it could."""

    client: Asks
    size: int
    again: Callable[[], bool]
    refuse: Callable[[], None]
    until: float


class Holds(Pending):
    """All that waits, by shard."""

    waits = True

    def __init__(self, refused: Callable[[int, bytes], tuple[int, int, bytes]]) -> None:
        """``refused``: see `router.clients.tickets.Tickets.refused`."""
        self._refused = refused
        self._held: dict[int, deque[Held]] = {}
        self._later: list[Later] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, shard: int, client: Client, kind: int, frames: Sequence[Buffer]) -> bool:
        """Keep frames, and count them as in flight.  They are refused if there is no room."""
        client.in_flight[shard] = client.in_flight.get(shard, 0) + len(frames)
        self._keep(shard, client, kind, frames)
        return True

    def _keep(self, shard: int, client: Client, kind: int, frames: Sequence[Buffer]) -> None:
        loop = asyncio.get_running_loop()
        held = Held(client, kind, [bytes(part) for part in frames], loop.time() + HOLD_S)
        if self._bytes > MAX_BYTES:
            self._answer(shard, held)
            return
        self._held.setdefault(shard, deque()).append(held)
        self._bytes += sum(map(len, held.frames))
        self._watch()

    def later(
        self,
        client: Asks,
        size: int,
        again: Callable[[], bool],
        refuse: Callable[[], None],
    ) -> None:
        """Keep a command for several shards, of ``size`` bytes, until all of them have owners."""
        if self._bytes > MAX_BYTES:
            refuse()
            return
        until = asyncio.get_running_loop().time() + HOLD_S
        self._later.append(Later(client, size, again, refuse, until))
        self._bytes += size
        self._watch()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(1.0, self._sweep)

    def count(self, shard: int, client: Client) -> int:
        """How many commands of a client wait for a shard."""
        return sum(_count(held.frames) for held in self._held.get(shard, ()) if held.client is client)

    def returned(self, shard: int, client: Client | None, body: bytes) -> None:
        """Frames that an owner has given back, after the byte of their version."""
        if client is not None:
            self._keep(shard, client, body[0], [body[1:]])

    def release(self, shard: int, link: Endpoint) -> None:
        """The shard has an owner: send what waits, in the order in which it came."""
        clients = self._of_shard(shard)
        for held in clients:
            if held.client.number and not held.client.finished:
                link.send(held.client.number, held.kind, held.frames)
                held.client.tell_if_half_closed(link)
                if link.full:
                    link.hold_back(held.client)
        self._again()

    def _again(self) -> None:
        """Send the commands that need several shards, if all of those have owners now."""
        waiting, self._later = self._later, []
        for later in waiting:
            if later.client.finished or later.again():
                self._bytes -= later.size
            else:
                self._later.append(later)

    def _of_shard(self, shard: int) -> deque[Held]:
        found = self._held.pop(shard, deque())
        self._bytes -= sum(len(part) for held in found for part in held.frames)
        return found

    def refuse(self, shard: int) -> None:
        """Refuse what waits: no host will serve the shard soon."""
        for held in self._of_shard(shard):
            self._answer(shard, held)

    def _answer(self, shard: int, held: Held) -> None:
        if held.client.finished:
            return
        replies, slow, frames = self._refused(shard, b"".join(held.frames))
        held.client.deliver(shard, replies, slow, frames)

    def _sweep(self) -> None:
        """Each second: refuse what has waited too long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for shard, waiting in list(self._held.items()):
            while waiting and (waiting[0].until <= now or waiting[0].client.finished):
                held = waiting.popleft()
                self._bytes -= sum(map(len, held.frames))
                self._answer(shard, held)
            if not waiting:
                del self._held[shard]
        for later in [later for later in self._later if later.until <= now or later.client.finished]:
            self._later.remove(later)
            self._bytes -= later.size
            if not later.client.finished:
                later.refuse()
        self._timer = loop.call_later(1.0, self._sweep) if self._held or self._later else None


def _count(frames: Sequence[bytes]) -> int:
    return sum(len(link_protocol.split_frames(part)) for part in frames)
