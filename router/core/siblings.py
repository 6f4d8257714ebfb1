"""The other routers of this host, as a router without siblings sees them: nobody to notify, nobody to ask.

A router that has some gets an object with the same methods: `router.secondary.supervisor.SecondaryRouters` in
the first one, `router.secondary.first_router.FirstRouter` in the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from .ports import Asks, Endpoint
from .routing import Peek


class Row(NamedTuple):
    """What a router reports of itself."""

    connections: int
    memory_bytes: int
    cpu_s: float
    lag_s: float  # of its event loop, the longest of the last seconds


class Sibling(Protocol):
    """One of them, as the first router reaches it."""

    def from_shard(self, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes) -> None:
        """What a shard of another host answers to a connection, or a ticket, of that router."""

    def returned(self, shard: int, conn: int, body: bytes) -> None:
        """Commands of its client that waited at an owner which has given the shard up."""


class Siblings:
    """None."""

    @property
    def others(self) -> Sequence[Row]:
        """What the other routers report of themselves."""
        return ()

    @property
    def all_connections(self) -> int:
        """Clients of all routers together; 0 if there are no others."""
        return 0

    @property
    def connections(self) -> list[int]:
        """The clients of the other routers."""
        return []

    def joined(self, number: int, connections: int) -> None:
        """A client has connected here; there are ``connections`` now."""

    def left(self, number: int, connections: int) -> None:
        """A client is gone."""

    def of(self, number: int) -> Sibling | None:
        """The router with this number; None if that is this one, or it is gone."""
        return None

    def pause(self, shard: int, done: Callable[[], None]) -> None:
        """A shard moves: have the others send it nothing more, and call ``done`` when none does."""
        done()

    def shard_up(self, shard: Endpoint) -> None:
        """A shard serves."""

    def shard_down(self, shard: Endpoint) -> None:
        """It does not serve any more."""

    def shard_damaged(self, shard: int, text: str) -> None:
        """It is out of service until its file is repaired."""

    def relay(self, shard: int, kind: int, body: bytes) -> None:
        """What a shard of another host sends to several connections at once."""

    def answers(self, peeked: Peek) -> bool:
        """Whether another router answers a command."""
        return False

    def ask(self, client: Asks, payload: bytes) -> None:
        """Have it answer; the client has counted the command as slow."""
        raise NotImplementedError

    def read_files_again(self) -> None:
        """The files of the certificate or of the identities are new."""

    async def start(self) -> None:
        """Start the other routers."""

    def stop_reading(self) -> None:
        """Have them ask nothing more."""

    async def stop(self) -> None:
        """The shards have ended: wait for the others to deliver what was answered."""

    def kill(self) -> None:
        """End them at once."""
