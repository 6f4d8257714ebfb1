"""What the other parts need of the connection of a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from bunqueue.protocol.commands import CommandError
from bunqueue.server.identities.directory import Grant

from ..core.ports import Asks, Buffer, Endpoint, Feeder, Subscribed
from .in_flight import InFlight


class Client(Asks, Feeder, Protocol):
    """A connection of a client to this router."""

    in_flight: InFlight
    half_closed: bool
    silent: int
    subscription: Subscribed | None
    write: Callable[[bytes], None]

    @property
    def limited(self) -> bool:
        """Whether it counts towards the limit of clients; the gateway does not."""

    @property
    def behind(self) -> bool:
        """Whether it does not take what it was sent."""

    @property
    def stuck(self) -> bool:
        """Within a frame, though nothing hinders the router from reading on."""

    @property
    def unrouted(self) -> int:
        """Bytes that it has sent and that are not routed yet."""

    @property
    def unread(self) -> int:
        """Bytes that it was sent and has not taken."""

    @property
    def granted(self) -> Grant | None:
        """Who it is; None before it has authenticated."""

    def deliver(self, shard: int, replies: int, slow: int, body: bytes) -> None:
        """Replies of a shard, ready to send."""

    def send_half_closed(self, link: Endpoint | None) -> None:
        """After what was sent to a shard: that nothing else comes from this client, if that is so."""

    def forward(self, batches: dict[int, list[Buffer]], out: list[bytes]) -> None:
        """Send each shard its frames; refusals go to ``out``."""

    def finish(self, kind: int, error: CommandError | None = None) -> None:
        """End the connection, after sending the error if there is one."""

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
