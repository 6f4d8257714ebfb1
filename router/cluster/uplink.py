"""A connection to another host: this router has dialled it, and uses the shards that the host owns."""

from __future__ import annotations

import ssl
from typing import Protocol

from bunqueue.logs import get_logger
from bunqueue.server.links import host_protocol as host_link

from ..clients.hub import Hub
from ..core.cluster_view import HostRow
from .greeting import Greeting
from .remote_shard import RemoteShard, receive
from .wire import HostConnection, Listener

_log = get_logger("cluster")


class Uplinks(Protocol):
    """All connections to other hosts, as one of them sees them."""

    cluster: Listener

    @property
    def hub(self) -> Hub: ...

    @property
    def greeting(self) -> Greeting: ...

    def live(self) -> bytes: ...

    def uplink_made(self, uplink: Uplink) -> None: ...

    def uplink_lost(self, uplink: Uplink) -> None: ...


class Uplink(HostConnection):
    """One connection to one host."""

    def __init__(self, links: Uplinks, host: HostRow) -> None:
        super().__init__()
        self._links = links
        self._host = host
        self.peer = host.id
        self.workers_sent = b""  # the last list of workers that was sent to the host
        self.shards: dict[int, RemoteShard] = {}  # those it owns, and those it is giving up

    # -- the greeting

    def connection_made(self, transport: object) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        shown = self.certificate()
        if shown != ssl.PEM_cert_to_DER_cert(self._host.certificate):
            self.abort("its certificate is not the one that it has in the store")
            return
        self.send(host_link.HELLO, host_link.encode(self._links.greeting.hello()))

    def greet(self, kind: int, body: bytes) -> None:
        match kind:
            case host_link.CHALLENGE:
                self.send(host_link.PROOF, self._links.greeting.prove(body))
            case host_link.WELCOME:
                self._welcomed(body)
            case host_link.REFUSED:
                self.abort(body.decode(errors="replace"))
            case _:
                self.abort("it does not speak this protocol")

    def _welcomed(self, body: bytes) -> None:
        welcome = host_link.decode_welcome(body)
        if welcome.host != self._host.id:
            self.abort("another host answers there")
            return
        self.begin_watching()
        self._links.uplink_made(self)

    # -- incoming

    def received(
        self, channel: int, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes
    ) -> None:
        if channel == host_link.FROM_SHARD:
            receive(self._links.hub, shard, conn, kind, replies, slow, body)
            return
        match kind:
            case host_link.UP:
                self._up(shard, int.from_bytes(body))
            case host_link.DOWN:
                self._down(shard)
            case host_link.MOVING:
                self._moving(shard)
            case host_link.RELEASED:
                self._released(shard)
            case host_link.RETURNED:
                self._links.hub.returned(shard, conn, body)
            case host_link.LIVE:  # it asks for the open connections
                self.send(host_link.LIVE, self._links.live())
            case host_link.PING:
                self.send(host_link.PONG)
            case _:
                self._links.cluster.received(self, kind, shard, conn, body)

    def _up(self, shard: int, epoch: int) -> None:
        remote = self.shards[shard] = RemoteShard(shard, epoch, self)
        self.send(host_link.LIVE, self._links.live())  # connections may have ended since it asked
        self._links.hub.remote_up(remote)

    def _down(self, shard: int) -> None:
        remote = self.shards.pop(shard, None)
        if remote is not None:
            remote.emptied()
            self._links.hub.link_down(remote)

    def _moving(self, shard: int) -> None:
        """It is about to give the shard up; commands in flight there are still answered."""
        remote = self.shards.get(shard)
        if remote is None:
            self.send(host_link.PAUSED, shard=shard)
        else:
            remote.emptied()
            self._links.hub.pause(remote, lambda: self.send(host_link.PAUSED, shard=shard))

    def _released(self, shard: int) -> None:
        remote = self.shards.pop(shard, None)
        if remote is not None:
            self._links.hub.released(remote)  # everything in flight is answered, or returned
        self._links.cluster.released(shard)

    def emptied(self) -> None:
        for remote in self.shards.values():
            remote.emptied()

    def ended(self) -> None:
        """The outcome of what was in flight there is unknown."""
        for shard in list(self.shards):
            self._down(shard)
        self._links.uplink_lost(self)
