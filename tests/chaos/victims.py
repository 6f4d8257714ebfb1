"""A cluster that is treated badly: hosts, a store, and what can be done to them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from chaos.history import Entry, Final
from chaos.load import Load
from chaos.network import CLIENTS, PEERS, STORE, Network, possible
from chaos.report import Fault, Sample
from cluster.hosts import Hosts
from support.aftermath import no_live_jobs, read_all
from support.postgres import Postgres
from support.procfs import children
from support.server import Server, quiet_port
from support.small_disks import FullDisk, may_mount
from support.waiting import eventually
from support.wire import Address, Wire

from bunqueue.store.setup import init

SHARDS = 4
NAMES = ("a", "b", "c")
QUEUES = tuple(f"q{number}" for number in range(6))
HEALED_S, DRAINED_S = 120.0, 120.0


class Cluster:
    """Three hosts on one store; in networks of their own where that is possible."""

    def __init__(
        self, postgres: Postgres, hosts: Hosts, network: Network | None, disk: FullDisk | None
    ) -> None:
        """``disk``: that of the store's leader."""
        self.postgres, self.hosts, self.network, self.disk = postgres, hosts, network, disk
        self.faults: list[Fault] = []
        self.samples: list[Sample] = []

    @property
    def addresses(self) -> list[Address]:
        return [self.hosts.servers[name].address for name in NAMES]

    def server(self, number: int) -> Server:
        return self.hosts.servers[NAMES[number]]

    def processes(self, number: int) -> list[int]:
        router = self.server(number).pid
        return [router, *(child.pid for child in children(router))]

    async def watch(self) -> None:
        """Note who owns what, until it is cancelled."""
        while True:
            owners = await asyncio.to_thread(self.hosts.owners)
            if not self.samples or self.samples[-1].owners != owners:
                self.samples.append(Sample(time.monotonic(), owners))
            await asyncio.sleep(0.25)  # between two looks

    async def healed(self) -> None:
        """All hosts have their share again, and all is copied."""
        await asyncio.to_thread(self.hosts.until_shared, *NAMES, within_s=HEALED_S)

    async def drained(self, load: Load) -> dict[str, Final]:
        """No job is left; all of them."""
        await load.stop_adding()
        async with await Wire.open(self.addresses[0]) as wire:
            await eventually(lambda: no_live_jobs(wire, QUEUES), "all jobs are done", DRAINED_S, step_s=0.5)
            await load.stop()
            jobs = await read_all(wire, QUEUES)
            ids = [job["id"] for job in jobs]
            replies = wire.send_many([{"cmd": "GetResult", "id": job} for job in ids])
            results = [(await reply).get("result") for reply in replies]
        return {job["id"]: Final(job["state"], result) for job, result in zip(jobs, results, strict=True)}

    def log(self) -> list[Entry]:
        return [Entry(*row) for row in self.hosts.ask("select shard, seq, epoch from bunqueue.log")]

    @contextmanager
    def fault(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            self.faults.append(Fault(what, begun, time.monotonic()))


Deed = Callable[[Cluster, random.Random], Awaitable[None]]


async def kill(cluster: Cluster, choice: random.Random) -> None:
    """A host loses its power, and comes back."""
    number = choice.randrange(len(NAMES))
    with cluster.fault(f"SIGKILL {NAMES[number]}"):
        await asyncio.to_thread(cluster.server(number).kill_all)
        await asyncio.sleep(choice.uniform(0.0, 8.0))  # how long it is away
        await asyncio.to_thread(cluster.server(number).restart)


async def freeze(cluster: Cluster, choice: random.Random) -> None:
    """A host stands still for longer than its lease, and wakes as a zombie."""
    number, away_s = choice.randrange(len(NAMES)), choice.uniform(1.0, 9.0)
    with cluster.fault(f"SIGSTOP {NAMES[number]} {away_s:.0f} s"):
        pids = await asyncio.to_thread(cluster.processes, number)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(away_s)  # as long as it stands still
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def freeze_store(cluster: Cluster, choice: random.Random) -> None:
    """PostgreSQL does not answer."""
    away_s = choice.uniform(1.0, 6.0)
    with cluster.fault(f"PostgreSQL stands still {away_s:.0f} s"):
        cluster.postgres.leader.pause()
        await asyncio.sleep(away_s)  # as long as it stands still
        cluster.postgres.leader.resume()


async def kill_store(cluster: Cluster, choice: random.Random) -> None:
    """PostgreSQL is killed with all its backends, and started again."""
    with cluster.fault("SIGKILL PostgreSQL"):
        await asyncio.to_thread(cluster.postgres.leader.kill)
        await asyncio.sleep(choice.uniform(0.0, 3.0))  # how long it is away
        await asyncio.to_thread(cluster.postgres.leader.start)


async def fill_store(cluster: Cluster, choice: random.Random) -> None:
    """PostgreSQL's disk is full: it refuses to write, or ends.  Then somebody makes room, and starts it."""
    assert cluster.disk is not None
    full_s = choice.uniform(1.0, 6.0)
    with cluster.fault(f"PostgreSQL's disk is full {full_s:.0f} s"):
        with cluster.disk.filled():
            await asyncio.sleep(full_s)  # as long as nobody makes room
        await asyncio.to_thread(cluster.postgres.leader.start_if_ended)


def cut(what: str, *nets: int) -> Deed:
    async def deed(cluster: Cluster, choice: random.Random) -> None:
        assert cluster.network is not None
        number, away_s = choice.randrange(len(NAMES)), choice.uniform(1.0, 10.0)
        with cluster.fault(f"{NAMES[number]} cut from {what} {away_s:.0f} s"):
            cluster.network.cut(number, *nets)
            await asyncio.sleep(away_s)  # as long as the plug is out
            cluster.network.mend(number)

    return deed


ANYWHERE: dict[str, Deed] = {
    "kill": kill,
    "freeze": freeze,
    "freeze-store": freeze_store,
    "kill-store": kill_store,
}
IN_NETWORKS: dict[str, Deed] = {
    "cut-rest": cut("all", CLIENTS, STORE, PEERS),
    "cut-store": cut("the store", STORE),
    "cut-peers": cut("its peers", PEERS),
}

ON_DISKS: dict[str, Deed] = {"fill-store": fill_store}
ALONE = frozenset({"kill", "fill-store"})  # beside these there is no other


@contextmanager
def running(folder: Path, *, code: Path | None = None) -> Iterator[Cluster]:
    """A cluster of three hosts that run; ``code``: of another version's source tree."""
    with ExitStack() as stack:
        network = stack.enter_context(Network(len(NAMES))) if possible() else None
        disk = stack.enter_context(FullDisk()) if may_mount() else None
        reached = network.range if network else ""
        postgres = stack.enter_context(
            Postgres(standby=True, network=reached, disk=disk.folder if disk else None)
        )
        url = postgres.new_database()
        init(url, SHARDS)
        hosts = stack.enter_context(Hosts(url, folder, SHARDS))
        for number, name in enumerate(NAMES):
            _make(hosts, number, name, network, url)
            if code is not None:
                hosts.servers[name].environ["PYTHONPATH"] = str(code)
        for server in hosts.servers.values():
            server.launch()
        for server in hosts.servers.values():
            server.until_ready()
        hosts.until_shared(*NAMES)
        yield Cluster(postgres, hosts, network, disk)


def _make(hosts: Hosts, number: int, name: str, network: Network | None, url: str) -> None:
    if network is None:
        hosts.make(name)
        return
    server = hosts.make(
        name,
        *("--host", "0.0.0.0", "--insecure"),
        *("--store", url.replace("127.0.0.1", network.store)),
        *("--cluster-address", f"{network.address(PEERS, number)}:{quiet_port()}"),
    )
    server.inside = network.inside(number)
    server.host = network.address(CLIENTS, number)
