"""What the parts of the router need of one another: a client, and the way to a shard."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from bunqueue.model.scope import Scope

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
    """The sender of a command that several shards or hosts answer: a client, here or at a sibling router."""

    number: int
    kind: int

    @property
    def scope(self) -> Scope | None:
        """To which queues its commands are limited, and what it may not read."""

    def count_slow(self) -> None:
        """A command was sent that may be answered late."""

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

    def throttle(self, client: Feeder) -> None:
        """Do not read this client until the other end has taken what it was sent."""


class LocalEndpoint(Endpoint, Protocol):
    """A shard's process on this host."""

    @property
    def secret(self) -> str:
        """What the process was started with."""

    def throttle_host(self, host: Host) -> None:
        """The same as `throttle`, for another host with all its clients."""


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
    """A connection of another host, as far as it can be throttled."""

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
