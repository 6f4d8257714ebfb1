"""A host is reached again: what its shards and those here have said to each other meanwhile may be lost."""

from __future__ import annotations

from typing import Any

from router_parts.stand_ins import Uplink

from bunqueue.server.links import host_protocol as host_link
from bunqueue.server.links import shard_protocol as link_protocol
from bunqueue.server.settings.settings import Settings
from router.clients.hub import Hub
from router.cluster.remote_shard import RemoteShard


class Local:
    """A shard that is owned here."""

    shard, epoch, is_local = 0, 1, True

    def __init__(self) -> None:
        self.told: list[tuple[int, bytes]] = []

    def control(self, kind: int, conn: int = 0, body: bytes = b"") -> None:
        self.told.append((kind, body))


def test_shards_of_both_hosts_ask_each_other_again() -> None:
    """There is one connection each way.  Where only this host's was broken, the other host has not noticed
    that answers to its shards were lost."""
    hub: Any = Hub(Settings(shards=2, data_dir=":memory:"))
    local, uplink = Local(), Uplink()
    hub.shards.links[:] = [local, None]
    for _ in range(2):
        local.told.clear()
        uplink.sent.clear()
        remote: Any = RemoteShard(1, 7, uplink)  # type: ignore[arg-type]
        hub.remote_up(remote)
        assert local.told == [(link_protocol.PEER, bytes((1,)))]
        announced = host_link.envelope(
            host_link.TO_SHARD, link_protocol.PEER, bytes((0,)), shard=1, conn=link_protocol.CONTROL
        )
        assert uplink.sent == [announced]
        hub.link_down(remote)
