"""The other hosts of a server, as a server on one host sees them: it has no other hosts, and owns all shards.

A host of a cluster gets an object that overrides all of this: `router.cluster.cluster.Cluster`; a standby
one that overrides a little: `router.standby.Standby`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bunqueue.protocol.commands.backups import StandbyView
from bunqueue.protocol.commands.cluster import ClusterView

from .ports import Asks, LocalEndpoint, RemoteEndpoint
from .routing import Peek


class Hosts:
    """None."""

    def owned_at_start(self, shards: int) -> Sequence[int]:
        """The shards that this host owns from the start, of so many; in a cluster the store says so later."""
        return range(shards)

    async def start(self) -> None:
        """Join the others."""

    async def withdraw(self) -> None:
        """This host is about to end: give its shards to others, while it still serves its clients."""

    async def stop(self) -> None:
        """Leave."""

    # The shards of this host

    def recovered(self, link: LocalEndpoint) -> bool:
        """A process is ready to serve; whether it does so at once."""
        return True

    def became_standby(self, shard: int) -> None:
        """A process waits for the end of the shard's owner, and lacks nothing else."""

    def returned(self, shard: int, conn: int, body: bytes) -> None:
        """Commands of another host's connection that waited at a shard which is given up."""

    def gave_up(self, shard: int) -> None:
        """A shard has given itself up."""

    def ended(self, shard: int) -> None:
        """A process has ended, whether it served or not; perhaps it is started again."""

    def stopped(self, shard: int) -> None:
        """There is no process for a shard any more, and none is started again."""

    def lost(self, shard: int) -> None:
        """A shard that served here does not any more."""

    # What reaches other hosts

    def remote_up(self, remote: RemoteEndpoint) -> None:
        """A shard of another host serves."""

    def answer(self, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes) -> None:
        """What a shard here answers to a connection, or a ticket, of another host."""

    def events(self, shard: int, connections: Iterable[int], frames: bytes) -> None:
        """Events for subscribers at other hosts."""

    def answers_lost(self, shard: int, connections: Iterable[int]) -> None:
        """Nobody can say what became of what these connections of other hosts asked."""

    def connections_changed(self) -> None:
        """Connections of a sibling router have ended with it."""

    # Commands

    def status(self) -> ClusterView | None:
        """What operators see of the cluster."""
        return None

    def standby(self) -> StandbyView | None:
        """What a standby follows; None of any other server."""
        return None

    def view_refusal(self) -> str:
        """How the shards of a standby refuse changes; "" if this is none."""
        return ""

    def answers(self, peeked: Peek) -> bool:
        """Whether a command takes as long as the store does, or another host."""
        return False

    def answer_later(self, client: Asks, payload: bytes) -> None:
        """Answer such a command; the client has counted it as slow."""
        raise NotImplementedError
