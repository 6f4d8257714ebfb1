"""What the parts of the router need of one another: a client, and the way to a shard."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

Buffer = bytes | memoryview


class Gate(Protocol):
    """Whether a client's socket is read; there may be several reasons at once not to."""

    def close(self, reason: int) -> None:
        """Do not read, for this reason among others."""

    def open(self, reason: int) -> None:
        """The reason is gone: read, if it was the last."""


class Feeder(Hashable, Protocol):
    """A client, or a sibling router, that sends commands to shards."""

    @property
    def gate(self) -> Gate: ...


class Asks(Hashable, Protocol):
    """Whoever sends a command that several shards or hosts answer: a client, here or at a sibling router."""

    number: int
    kind: int
    slow: int

    @property
    def finished(self) -> bool:
        """No longer there for anybody."""

    def gathered(self, reply: bytes) -> None:
        """The reply to a command that counts as slow."""

    def finish(self, kind: int) -> None:
        """End the connection."""


class Endpoint(Protocol):
    """The way to a shard: its process on this host, or its owner's host."""

    @property
    def shard(self) -> int:
        """The number of the shard."""

    @property
    def epoch(self) -> int:
        """How often the shard's owner had changed when this one became it; 0 without a store."""

    @property
    def is_local(self) -> bool:
        """Whether the process is on this host."""

    @property
    def full(self) -> bool:
        """Whether the other end has more to take than it should."""

    def send(self, conn: int, kind: int, frames: Sequence[Buffer]) -> None:
        """Whole frames of one connection, or ticket."""

    def control(self, kind: int, conn: int = ..., body: bytes = ...) -> None:
        """A message that is no command."""

    def hold_back(self, client: Feeder) -> None:
        """Do not read this client until the other end has taken what it was sent."""


class LocalEndpoint(Endpoint, Protocol):
    """A shard's process on this host."""

    @property
    def secret(self) -> str:
        """What the process was started with."""

    def hold_back_host(self, host: Host) -> None:
        """The same as `hold_back`, for another host with all its clients."""


class RemoteEndpoint(Endpoint, Protocol):
    """A shard of another host."""

    @property
    def host(self) -> str:
        """The id of that host."""

    def announce(self, shard: int) -> None:
        """Tell the shard that a shard of this host reaches it, perhaps again."""

    def emptied(self) -> None:
        """The host has taken what it was sent, or is gone."""


class Host(Hashable, Protocol):
    """A connection of another host, as far as it can be held back."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Subscribed(Protocol):
    """A client that gets the events of a queue."""

    @property
    def shard(self) -> int:
        """Where the queue is."""

    def deliver(self, shard: int, frames: bytes) -> None:
        """Events of a shard."""

    def caught_up(self) -> None:
        """The client has taken what it was sent."""

    def end(self) -> None:
        """The client wants no more events."""

    def resume(self, link: Endpoint) -> None:
        """The shard has another process, which continues with the events."""


class Client(Asks, Feeder, Protocol):
    """A connection of a client to this router."""

    in_flight: dict[int, int]
    carry: bytearray | None
    half_closed: bool
    silent: int
    subscription: Subscribed | None
    behind: bool
    write: Callable[[bytes], None]

    @property
    def limited(self) -> bool:
        """Whether it counts among the clients of which there is a largest number; the gateway does not."""

    @property
    def stuck(self) -> bool:
        """Within a frame, though nothing hinders the router from reading on."""

    @property
    def unread(self) -> int:
        """Bytes that it was sent and has not taken."""

    def deliver(self, shard: int, replies: int, slow: int, body: bytes) -> None:
        """Replies of a shard, ready to send."""

    def tell_if_half_closed(self, link: Endpoint | None) -> None:
        """After what was sent to a shard: that nothing else comes from this client, if that is so."""

    def forward(self, batches: dict[int, list[Buffer]], out: list[bytes]) -> None:
        """Send each shard its frames; refusals go to ``out``."""

    def abort(self) -> None:
        """End the connection at once, whatever is still to be sent."""

    def drop(self, why: str) -> None:
        """`vanish`, and log why."""

    def vanish(self) -> None:
        """`abort`, with all that is kept for it."""

    def stop_reading(self) -> None:
        """The server stops: take no more commands, but deliver replies."""

    def close(self) -> None:
        """The server stops: close when everything is sent."""


Clients = Mapping[int, Client]
