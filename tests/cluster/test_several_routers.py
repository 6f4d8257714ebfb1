"""Hosts of a cluster with several routers each: clients may be connected to any router of any host."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import product

import pytest
from cluster.conftest import new_hosts
from cluster.hosts import QUEUES, Hosts
from cluster.test_cluster import Load, checked, shard_of
from support.postgres import Postgres
from support.procfs import Process, runs
from support.server import Server
from support.waiting import eventually, wait_until
from support.wire import Wire, at_router

from bunqueue import Admin, Queue

PLACES = tuple(product("ab", (0, 1)))  # host and router
LONG_MS = 60_000  # a timeout that is never reached


@pytest.fixture(scope="module")
def hosts(store_cluster: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with new_hosts(store_cluster, tmp_path_factory.mktemp("hosts")) as made:
        made.start("a", "b", flags=("--routers", "2"))
        yield made


@asynccontextmanager
async def at(server: Server, router: int) -> AsyncIterator[Wire]:
    """A connection that this router of the host has."""
    async with await at_router(server.address, router) as wire:
        yield wire


def further_router(server: Server) -> Process:
    """The process of the host's second router; waits until there is one."""

    def look() -> Process | None:
        found = (each for each in server.shard_processes() if runs(each.pid, "router 1"))
        return next(found, None)

    found = wait_until(look, "there is a second router")
    assert found is not None
    return found


async def test_each_router_reaches_the_shards_of_each_host(hosts: Hosts) -> None:
    for owner, (host, router) in product("ab", PLACES):
        name = hosts.queue_of(owner)
        other = "b" if host == "a" else "a"
        async with at(hosts.servers[host], router) as one, at(hosts.servers[other], 1) as two:
            pulled = two.send("PULL", queue=name, timeout=LONG_MS)
            await two.ok("Ping")
            job = (await one.ok("PUSH", queue=name, data={"n": 1}))["id"]
            assert (await pulled)["job"]["id"] == job
            waits = one.send("WaitJob", id=job, timeout=LONG_MS)
            await two.ok("ACK", id=job, result={"r": 1})
            assert (await waits)["result"] == {"r": 1}


async def test_events_and_listings_at_each_router(hosts: Hosts) -> None:
    names = {owner: hosts.queue_of(owner) for owner in "ab"}
    for host, router in PLACES:
        async with at(hosts.servers[host], router) as wire, at(hosts.servers["a"], 1) as pushing:
            for name in names.values():
                await wire.ok("SubscribeEvents", queue=name)
                job = (await pushing.ok("PUSH", queue=name, data={}))["id"]
                event = await wire.next_stray()
                while "event" not in event or event["event"].get("jobId") != job:
                    event = await wire.next_stray()
            listed = {found["name"] for found in (await wire.ok("ListQueues"))["queues"]}
            assert listed >= set(names.values())
            status = (await wire.ok("ClusterStatus"))["data"]
            assert (status["host"], len(status["hosts"])) == (host, 2)
            refused = await wire.call("ClusterDrain", host="zz")
            assert refused["code"] == "HOST_NOT_FOUND"


async def test_a_closed_connection_gives_its_jobs_back(hosts: Hosts) -> None:
    for owner in "ab":
        name = hosts.queue_of(owner)
        async with at(hosts.servers["a"], 0) as stays:
            async with at(hosts.servers["a"], 1) as ends:
                await ends.ok("PUSH", queue=name, data={})
                assert (await ends.ok("PULL", queue=name))["job"]
                await ends.close()
            assert (await stays.ok("PULL", queue=name, timeout=LONG_MS))["job"]


def test_shards_move_under_load(hosts: Hosts) -> None:
    """No client sees an error, and each job is added once."""
    a, b = hosts.servers.values()
    load = Load(a, b)
    with checked(load, a, b), Admin(port=a.port) as admin:
        for target in "abab":
            admin.move_shard(0, target)
            wait_until(lambda target=target: hosts.owners()[0] == target, "the shard has moved")
            load.more()
        admin.rebalance()


async def test_a_pull_that_waits_goes_on_with_the_next_owner(hosts: Hosts) -> None:
    for target in "ba":
        owner = "a" if target == "b" else "b"
        name = hosts.queue_of(owner)
        async with at(hosts.servers["a"], 1) as far, at(hosts.servers["b"], 1) as wire:
            pulls = [each.send("PULL", queue=name, timeout=LONG_MS) for each in (far, wire)]
            await asyncio.gather(far.ok("Ping"), wire.ok("Ping"))
            shard = shard_of(name)
            await wire.ok("ClusterMove", shard=shard, host=target)
            await eventually(lambda at=shard, to=target: hosts.owners()[at] == to, "the shard has moved")
            for number in (1, 2):
                await wire.ok("PUSH", queue=name, data={"n": number})
            assert {(await pull)["job"]["data"]["n"] for pull in pulls} == {1, 2}
            await wire.ok("ClusterRebalance")


async def test_a_router_that_is_killed_takes_only_its_connections_along(hosts: Hosts) -> None:
    a = hosts.servers["a"]
    names = [hosts.queue_of(owner) for owner in "ab"]
    async with at(a, 0) as stays, at(a, 1) as ends:
        for name in names:
            await ends.ok("PUSH", queue=name, data={})
            assert (await ends.ok("PULL", queue=name, lockTtl=1000))["job"]
        further_router(a).kill()
        await ends.ended.wait()
        for name in names:
            assert (await stays.ok("PULL", queue=name, timeout=LONG_MS))["job"], "it came back"
    async with at(a, 1) as again:  # it was started again, and knows all shards
        for name in names:
            await again.ok("PUSH", queue=name, data={})


async def test_a_router_that_stands_still(hosts: Hosts) -> None:
    """Clients of the other routers go on, also those that wait for what its own clients do."""
    a = hosts.servers["a"]
    names = [hosts.queue_of(owner) for owner in "ab"]
    async with at(a, 0) as goes_on, at(a, 1) as stands:
        for name in names:
            await stands.ok("SubscribeEvents", queue=name)
        stopped = further_router(a)
        stopped.kill(signal.SIGSTOP)
        try:
            asked = [stands.send("PUSH", queue=name, data={"from": "stands"}) for name in names]
            for name in names:
                await goes_on.ok("PUSH", queue=name, data={"from": "goes on"})
                assert (await goes_on.ok("PULL", queue=name))["job"]["data"] == {"from": "goes on"}
            assert not any(reply.done() for reply in asked)
        finally:
            stopped.kill(signal.SIGCONT)
        for name, reply in zip(names, asked, strict=True):
            assert (await reply)["ok"]
            assert (await goes_on.ok("PULL", queue=name))["job"]["data"] == {"from": "stands"}


def test_a_host_dies(hosts: Hosts) -> None:
    """The last test here: the host that lives serves all, at both of its routers."""
    a, b = hosts.servers.values()
    for name in QUEUES:
        with Queue(name, port=b.port) as queue:
            queue.drain()
    load = Load(a, b)
    with checked(load, b):
        a.kill_all()
        wait_until(lambda: set(hosts.owners()) == {"b"}, "b owns all shards")
        load.more()
