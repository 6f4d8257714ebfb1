"""A shard of another host, with the methods of `router.shards.link.ShardLink`, so callers can treat both
alike."""

from __future__ import annotations

from collections.abc import Sequence

from bunqueue.server.links import host_protocol as host_link
from bunqueue.server.links import shard_protocol as link_protocol

from ..clients.backpressure import full_shard
from ..clients.hub import Hub
from ..core.ports import Buffer, Feeder
from .wire import HostConnection


class RemoteShard:
    """Reached over the uplink to its owner's host; from a secondary router, over the link to the first
    one."""

    is_local = False

    def __init__(self, shard: int, epoch: int, uplink: HostConnection) -> None:
        self.shard = shard
        self.epoch = epoch
        self._uplink = uplink
        self._feeders: set[Feeder] = set()

    @property
    def host(self) -> str:
        return self._uplink.peer

    @property
    def full(self) -> bool:
        return self._uplink.full

    def send(self, conn: int, kind: int, frames: Sequence[Buffer]) -> None:
        """Send whole frames of one connection, or ticket."""
        self._put(kind, b"".join(frames), conn)

    def control(self, kind: int, conn: int = link_protocol.CONTROL, body: bytes = b"") -> None:
        """Send a message that is not a command. The shard's own router reports which shards are up."""
        if kind != link_protocol.PEER:
            self._put(kind, body, conn)

    def announce(self, shard: int) -> None:
        """Tell the shard that a shard of this host has reached it, perhaps again."""
        self._put(link_protocol.PEER, bytes((shard,)), link_protocol.CONTROL)

    def _put(self, kind: int, body: bytes, conn: int) -> None:
        channel = host_link.TO_SHARD
        self._uplink.put(host_link.envelope(channel, kind, body, shard=self.shard, conn=conn))

    def throttle(self, client: Feeder) -> None:
        """Stop reading a client that sent to this shard while the connection to its host was full."""
        self._feeders.add(client)
        client.gate.close(full_shard(self.shard))

    def emptied(self) -> None:
        """The host has taken what it was sent, or is gone."""
        feeders, self._feeders = self._feeders, set()
        for client in feeders:
            client.gate.open(full_shard(self.shard))


def receive(hub: Hub, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes) -> None:
    """Pass on what a shard of another host sends to connections and tickets of this one."""
    client = hub.clients.get(conn)
    if client is not None:
        client.deliver(shard, replies, slow, body)
    elif conn == link_protocol.CONTROL:
        _receive_for_several(hub, shard, kind, body)
    elif (sibling := hub.sibling_of(conn)) is not None:
        sibling.from_shard(shard, conn, kind, replies, slow, body)
    elif conn >= link_protocol.TICKET:
        hub.tickets.answer(conn, shard, body)


def _receive_for_several(hub: Hub, shard: int, kind: int, body: bytes) -> None:
    match kind:
        case link_protocol.EVENTS:
            hub.deliver_events(shard, body)
        case link_protocol.LOST:
            hub.answers_lost(shard, link_protocol.unpack_connections(body))
    hub.siblings.relay(shard, kind, body)
