"""A shard changes hands, and what its two owners say comes in another order than usual, or an owner dies on
the way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from router_parts.stand_ins import Uplink

from bunqueue.server.links import host_protocol as host_link
from bunqueue.server.links import router_protocol as router_link
from bunqueue.server.links import shard_protocol as link_protocol
from bunqueue.server.settings.settings import Settings
from router.clients.hub import Hub
from router.cluster.cluster import Cluster
from router.cluster.remote_shard import RemoteShard
from router.cluster.store import HostRow
from router.processes.launcher import Launcher
from router.secondary.first_router import FirstRouter
from router.shards.supervisor import Supervisor

ME = HostRow("a", "a", 1, "127.0.0.1:1", "", "", "", 1, 1, 1, 0, draining=False)
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


class Local:
    """A shard's process here."""

    shard, is_local, full = 0, True, False

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def control(self, kind: int, conn: int = 0, body: bytes = b"") -> None: ...


class Downlink:
    """The connection from another host."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []

    def send(self, kind: int, body: bytes = b"", *, shard: int = 0) -> None:
        self.sent.append((kind, shard))


class Client:
    """One command of it is under way, at shard 0."""

    subscription, number, finished, kind, scope = None, 5, False, 3, None

    def __init__(self) -> None:
        self.in_flight = {0: 1}
        self.ended: list[int] = []

    def finish(self, kind: int) -> None:
        self.ended.append(kind)

    def send_half_closed(self, link: object) -> None:
        """It is not."""


def host() -> tuple[Any, Any, Any]:
    """Its cluster, its hub and its supervisor; nothing is started, and the store is unavailable."""
    settings = Settings(
        shards=2, data_dir="nowhere", store=NOWHERE, cluster="test", cluster_address="127.0.0.1:1"
    )
    hub: Any = Hub(settings)
    launcher = Launcher()
    supervisor: Any = Supervisor(hub, settings, launcher)
    cluster = Cluster(hub, supervisor, launcher, settings, ME, "store-1")
    hub.join_cluster(cluster, 1)
    return cluster, hub, supervisor


def remote(epoch: int) -> Any:
    return RemoteShard(0, epoch, Uplink())  # type: ignore[arg-type]


async def test_a_process_that_ended_while_connections_were_counted_does_not_serve() -> None:
    cluster, hub, supervisor = host()
    await cluster.enter(Local(5))
    assert hub.shards.links[0] is None
    supervisor._shards[0].link = here = Local(5)
    await cluster.enter(here)
    assert hub.shards.links[0] is here


async def test_a_process_that_was_overtaken_while_connections_were_counted_does_not_serve() -> None:
    cluster, hub, supervisor = host()
    supervisor._shards[0].link = here = Local(5)
    hub.remote_up(there := remote(6))
    await cluster.enter(here)
    assert hub.shards.links[0] is there


async def test_a_process_that_dies_while_it_gives_a_shard_up_is_not_waited_for() -> None:
    """The other hosts have commands under way there, which nobody will answer."""
    cluster, hub, supervisor = host()
    supervisor._shards[0].link = here = Local(5)
    hub.link_up(here)
    cluster.links._downlinks["b"] = other = Downlink()
    hub.pause(here)
    supervisor._stopping = True
    supervisor.lost(here)
    assert (host_link.DOWN, 0) in other.sent


async def test_a_process_that_has_ended_is_not_said_to_stand_by() -> None:
    cluster, _, supervisor = host()
    cluster.became_standby(0)
    assert 0 in cluster.membership._standing_by
    supervisor._shards[0].link = here = Local(5)
    supervisor._stopping = True
    supervisor.lost(here)
    assert 0 not in cluster.membership._standing_by


async def test_what_an_owner_gives_back_after_the_next_one_came_is_asked_at_once() -> None:
    _, hub, _ = host()
    hub.clients[5] = client = Client()
    hub.remote_up(before := remote(5))
    hub.pause(before)
    hub.remote_up(after := remote(6))
    hub.pending.returned(0, client, bytes((3,)) + b"\x00\x00\x00\x01\x80")
    after._uplink.sent.clear()
    hub.released(before)
    assert len(after._uplink.sent) == 1
    assert after._uplink.sent[0].endswith(b"\x00\x00\x00\x01\x80")


async def test_a_shard_that_was_out_of_service_here_serves_elsewhere() -> None:
    _, hub, supervisor = host()
    hub.shards.damaged[0] = "its file is damaged"
    hub.remote_up(remote(6))
    assert hub.shards.damaged == {}
    hub.shards.damaged[0] = supervisor._shards[0].damaged = "its file is damaged"
    supervisor._launcher = SimpleNamespace(start=lambda _: asyncio.Event().wait())
    supervisor.run(0, None)
    assert supervisor._shards[0].damaged is None
    supervisor._shards[0].task.cancel()
    hub.link_up(Local(7))
    assert hub.shards.damaged == {}


async def test_a_shard_that_is_ended_between_two_processes_is_not_started_again() -> None:
    _, _, supervisor = host()
    started = asyncio.Queue[None]()

    async def start(command: object) -> None:
        started.put_nowait(None)
        raise OSError("no more processes")

    supervisor._launcher = SimpleNamespace(start=start)
    supervisor.run(0, None)
    await started.get()
    supervisor.end(0)
    await supervisor._shards[0].task
    assert started.empty()


def _send(router: FirstRouter, kind: int, body: bytes = b"") -> None:
    router.received(host_link.HOST, 0, 0, kind, 0, 0, body)


async def test_a_further_router_hears_of_the_next_owner_before_the_end_of_the_last_one() -> None:
    settings = Settings(shards=2, data_dir=":memory:")
    hub: Any = Hub(settings)
    released: list[int] = []

    hub.pending.waits = True
    hub.pending.release = lambda shard, link: released.append(link.epoch)
    first = FirstRouter(hub, SimpleNamespace())  # type: ignore[arg-type]
    first.send = lambda *args, **fields: None  # type: ignore[method-assign]
    up: Sequence[bytes] = [router_link.encode(router_link.Up("", "", epoch)) for epoch in (5, 6)]
    _send(first, router_link.SHARD_UP, up[0])
    hub.clients[5] = client = Client()
    _send(first, router_link.MOVING)
    _send(first, router_link.SHARD_UP, up[1])
    assert client.ended == []
    _send(first, router_link.SHARD_DOWN, (5).to_bytes(8))
    assert client.ended == [link_protocol.SEVERED], "nobody will answer what it asked the last owner"
    assert released[-1] == 6
