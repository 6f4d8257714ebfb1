"""Commands for a shard that has no owner at the moment.

In a cluster it has one again within seconds: they wait for it, and their clients still see them as in flight.
A server on one host refuses them at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bunqueue.protocol.codec import is_slow_payload, request_id
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.base import RequestId
from bunqueue.protocol.framing import HEADER
from bunqueue.server.links.shard_protocol import split_frames, split_scope

from ..core.ports import Asks, Buffer, Endpoint
from ..core.sending import send
from ..core.shard_map import ShardMap
from .own_commands import refusal
from .ports import Client

WAIT_S = 15.0  # longer than a take-over takes; then they are refused
MAX_BYTES = 32 << 20  # over all shards; above it, commands are refused at once


@dataclass(slots=True)
class _Frames:
    """Frames of one client."""

    client: Client
    kind: int
    frames: list[bytes]
    until: float

    @property
    def size(self) -> int:
        """The number of bytes."""
        return sum(map(len, self.frames))


@dataclass(slots=True)
class _Gathered:
    """A command for several shards. ``again`` asks them if it can, and returns whether it could."""

    client: Asks
    size: int
    again: Callable[[], bool]
    refuse: Callable[[], None]
    until: float


class PendingCommands:
    """All that waits, by shard."""

    def __init__(self, shards: ShardMap, deaths: Callable[[int], str], *, waits: bool) -> None:
        """``deaths``: what there is to report of a shard that dies again and again."""
        self._shards, self._deaths = shards, deaths
        self.waits = waits
        """Whether commands wait. If not, a subscription ends with its shard's process."""
        self._frames: dict[int, deque[_Frames]] = {}
        self._gathered: list[_Gathered] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    # Refusals

    def refusal(self, shard: int, req_id: RequestId) -> bytes:
        """The refusal of a command for a shard without an owner, as a frame."""
        if shard in self._shards.damaged:
            text = f"Shard unavailable: shard {shard} is out of service: {self._shards.damaged[shard]}"
            return refusal(CommandError(text, Code.STORAGE_DAMAGED), req_id)
        text = f"Shard unavailable: shard {shard} is restarting, try again{self._deaths(shard)}"
        return refusal(CommandError(text, Code.SHARD_UNAVAILABLE), req_id)

    def refusals(self, shard: int, kind: int, body: bytes) -> tuple[int, int, bytes]:
        """The refusals of an envelope with commands: their number, the number of those for slow commands, and
        the frames."""
        _, _, body = split_scope(kind, body)
        payloads = split_frames(body)
        frames = [self.refusal(shard, request_id(payload)) for payload in payloads]
        return len(frames), sum(map(is_slow_payload, payloads)), b"".join(frames)

    # What waits

    def add(self, shard: int, client: Client, kind: int, frames: Sequence[Buffer]) -> list[bytes]:
        """Keep frames, and count them as in flight; returns the refusals if none wait here."""
        if not self.waits:
            return [self.refusal(shard, request_id(frame[HEADER:])) for frame in frames]
        client.in_flight.add(shard, len(frames))
        self._keep(shard, client, kind, frames)
        return []

    def _keep(self, shard: int, client: Client, kind: int, frames: Sequence[Buffer]) -> None:
        loop = asyncio.get_running_loop()
        waiting = _Frames(client, kind, [bytes(part) for part in frames], loop.time() + WAIT_S)
        if self._bytes > MAX_BYTES:
            self._refuse(shard, waiting)
            return
        self._frames.setdefault(shard, deque()).append(waiting)
        self._bytes += waiting.size
        self._sweep_soon()

    def add_gathered(
        self,
        client: Asks,
        size: int,
        again: Callable[[], bool],
        refuse: Callable[[], None],
    ) -> None:
        """Keep a command for several shards, of ``size`` bytes, until all of them have owners."""
        if not self.waits or self._bytes > MAX_BYTES:
            refuse()
            return
        until = asyncio.get_running_loop().time() + WAIT_S
        self._gathered.append(_Gathered(client, size, again, refuse, until))
        self._bytes += size
        self._sweep_soon()

    def _sweep_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(1.0, self._sweep)

    def count(self, shard: int, client: Client) -> int:
        """How many commands of a client wait for a shard."""
        mine = (frames for frames in self._frames.get(shard, ()) if frames.client is client)
        return sum(len(split_frames(part)) for frames in mine for part in frames.frames)

    def returned(self, shard: int, client: Client | None, body: bytes) -> None:
        """Frames that an owner has given back, after the byte of their version."""
        if client is not None:
            self._keep(shard, client, body[0], [body[1:]])

    def release(self, shard: int, link: Endpoint) -> None:
        """The shard has an owner: send what waits, in the order of its arrival."""
        waiting = self._frames.pop(shard, deque())
        self._bytes -= sum(frames.size for frames in waiting)
        for frames in waiting:
            if frames.client.number and not frames.client.finished:
                send(link, frames.client.number, frames.kind, frames.client.scope, frames.frames)
                frames.client.send_half_closed(link)
                if link.full:
                    link.throttle(frames.client)
        self._ask_again()

    def _ask_again(self) -> None:
        """Send the commands that need several shards, if all of those have owners now."""
        waiting, self._gathered = self._gathered, []
        for command in waiting:
            if command.client.finished or command.again():
                self._bytes -= command.size
            else:
                self._gathered.append(command)

    def _refuse(self, shard: int, frames: _Frames) -> None:
        if not frames.client.finished:
            replies, slow, refused = self.refusals(shard, frames.kind, b"".join(frames.frames))
            frames.client.deliver(shard, replies, slow, refused)

    def _sweep(self) -> None:
        """Each second: refuse what has waited too long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for shard, waiting in list(self._frames.items()):
            while waiting and (waiting[0].until <= now or waiting[0].client.finished):
                frames = waiting.popleft()
                self._bytes -= frames.size
                self._refuse(shard, frames)
            if not waiting:
                del self._frames[shard]
        for command in [each for each in self._gathered if each.until <= now or each.client.finished]:
            self._gathered.remove(command)
            self._bytes -= command.size
            if not command.client.finished:
                command.refuse()
        self._timer = loop.call_later(1.0, self._sweep) if self._frames or self._gathered else None
