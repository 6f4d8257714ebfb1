"""A cluster that is treated badly: three hosts and their store, each with a network, a disk and a clock."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psycopg
from chaos.history import Entry, Final
from chaos.load import Load
from chaos.network import CLIENTS, PEERS, STORE, Network, possible
from chaos.report import Fault, Sample
from cluster.hosts import Hosts
from support.aftermath import LIVE, PAGE, no_live_jobs, read_all
from support.patroni import Machine, PatroniCluster
from support.postgres import Postgres
from support.procfs import tree
from support.server import NotStarted, Server, quiet_port
from support.small_disks import FullDisk, may_mount
from support.waiting import eventually
from support.wall_clock import WallClock
from support.wire import Address, Wire

from bunqueue.store.setup import init

SHARDS = 4
NAMES = ("a", "b", "c")
FLAGS = {"b": ("--routers", "2")}  # hosts need not be the same
LEADER, MEMBERS = "PostgreSQL", ("pg1", "pg2", "pg3")  # the store's machines, without Patroni and with it
QUEUES = tuple(f"q{number}" for number in range(6))
HEALED_S, DRAINED_S = 240.0, 240.0
SHORT_S, LONG_S = 9.0, 60.0  # how long a fault lasts at most, in a short run and in a long one
TRACE = "Traceback (most recent call last)"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Cluster:
    """Three hosts on one store; in networks of their own where that is possible."""

    def __init__(
        self,
        postgres: Postgres | PatroniCluster,
        hosts: Hosts,
        network: Network | None,
        disks: dict[str, FullDisk],
        clocks: dict[str, WallClock],
    ) -> None:
        """``disks``, ``clocks``: those of the hosts, and of the store's machines, where that is possible."""
        self.hosts, self.network, self.disks, self.clocks = hosts, network, disks, clocks
        self.alone = postgres if isinstance(postgres, Postgres) else None
        self.patroni = postgres if isinstance(postgres, PatroniCluster) else None
        self.longest_s = SHORT_S  # of a fault
        self.always_s = 0.0  # so long each fault is to last; 0: as chance has it
        self.well = set(range(len(NAMES)))  # hosts to which nothing is being done
        self.faults: list[Fault] = []
        self.wrong_clocks: list[tuple[float, float]] = []  # of hosts, from when to when
        self.full_disks: list[tuple[float, float]] = []
        self.ended: list[str] = []  # hosts that did so by themselves, and were started again
        self.samples: list[Sample] = []

    @property
    def addresses(self) -> list[Address]:
        return [self.hosts.servers[name].address for name in NAMES]

    def server(self, number: int) -> Server:
        return self.hosts.servers[NAMES[number]]

    def processes(self, number: int) -> list[int]:
        return tree(self.server(number).pid)

    async def watch(self) -> None:
        """Note who owns what, until it is cancelled."""
        while True:
            with suppress(psycopg.Error):
                owners = await asyncio.to_thread(self.hosts.owners)
                if not self.samples or self.samples[-1].owners != owners:
                    self.samples.append(Sample(time.monotonic(), owners))
            await asyncio.sleep(0.25)  # between two looks

    async def healed(self) -> None:
        """All hosts have their share again, and all is copied; the store could lose any of its machines."""
        if self.patroni is not None:
            await asyncio.to_thread(self.patroni.until_whole)
        await eventually(
            lambda: asyncio.to_thread(self._is_healed), "the hosts share the shards", HEALED_S, step_s=0.2
        )

    def _is_healed(self) -> bool:
        for number in sorted(self.well):
            if not self.server(number).running:
                self.ended.append(f"{NAMES[number]} ended by itself: {self.server(number).wait()}")
                start_again(self.server(number))
        with suppress(psycopg.Error):
            return self.hosts.are_shared(*NAMES) and self.hosts.are_copies_made()
        return False

    async def drained(self, load: Load) -> dict[str, Final]:
        """No job is left; all of them."""
        async with asyncio.timeout(DRAINED_S):
            await load.stop_adding()
        found: dict[str, Final] = {}
        async with await Wire.open(self.addresses[0]) as wire:
            try:
                await eventually(
                    lambda: no_live_jobs(wire, QUEUES), "all jobs are done", DRAINED_S, step_s=0.5
                )
            except AssertionError as error:
                left = [job for job in await read_all(wire, QUEUES) if job["state"] in LIVE]
                raise AssertionError(f"{error}; left are {left}") from None
            await load.stop()
            jobs = await read_all(wire, QUEUES)
            for first in range(0, len(jobs), PAGE):
                page = jobs[first : first + PAGE]
                replies = wire.send_many([{"cmd": "GetResult", "id": job["id"]} for job in page])
                for job, reply in zip(page, replies, strict=True):
                    found[job["id"]] = Final(job["state"], (await reply).get("result"))
        return found

    def mistakes(self) -> list[str]:
        """What the hosts' logs say of mistakes in their own code."""
        logs = [(name, server.whole_log()) for name, server in self.hosts.servers.items()]
        return [
            f"{name} logged a mistake:\n{log[log.index(TRACE) :][:3000]}"
            for name, log in logs
            if TRACE in log
        ]

    def log(self) -> list[Entry]:
        return [Entry(*row) for row in self.hosts.ask("select shard, seq, epoch from bunqueue.log")]

    @contextmanager
    def victim(self, choice: random.Random) -> Iterator[int]:
        """A host to which nothing else is being done meanwhile."""
        number = choice.choice(sorted(self.well))
        self.well.remove(number)
        try:
            yield number
        finally:
            self.well.add(number)

    @contextmanager
    def fault(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            self.faults.append(Fault(what, begun, time.monotonic()))


def start_again(server: Server) -> None:
    """As a service manager does, which does not give up while the store is unavailable."""
    deadline = time.monotonic() + HEALED_S
    while True:
        try:
            server.restart()
        except NotStarted:
            if time.monotonic() > deadline:
                raise
        else:
            return


@contextmanager
def running(folder: Path, *, patroni: bool = False, code: Path | None = None) -> Iterator[Cluster]:
    """A cluster of three hosts that run; ``patroni``: on three PostgreSQL with as many etcd, else on one with
    a standby; ``code``: of another version's source tree."""
    folder.mkdir(exist_ok=True)
    names = (*NAMES, *(MEMBERS if patroni else [LEADER]))
    with ExitStack() as stack:
        network = stack.enter_context(Network(len(names))) if possible() else None
        disks = {name: stack.enter_context(FullDisk()) for name in names} if may_mount() else {}
        clocks = {name: stack.enter_context(_clock()) for name in names} if shutil.which("gcc") else {}
        make = _with_patroni if patroni else _alone
        postgres = make(network, disks, clocks)
        stack.enter_context(postgres)
        url = postgres.new_database()
        init(url, SHARDS)
        hosts = stack.enter_context(Hosts(url, folder, SHARDS))
        for number, name in enumerate(NAMES):
            _make(hosts, number, name, network, url, folder, () if code else FLAGS.get(name, ()))
            server = hosts.servers[name]
            if disks:
                server.data_dir = disks[name].folder / "data"
            if clocks:
                server.environ |= clocks[name].environ
            if code is not None:
                server.environ["PYTHONPATH"] = str(code)
        for server in hosts.servers.values():
            server.launch()
        for server in hosts.servers.values():
            server.until_ready()
        hosts.until_shared(*NAMES)
        yield Cluster(postgres, hosts, network, disks, clocks)


@contextmanager
def _clock() -> Iterator[WallClock]:
    with tempfile.TemporaryDirectory(prefix="bunqueue-clock-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL reads its own as somebody else
        yield WallClock(Path(folder))


def _alone(network: Network | None, disks: dict[str, FullDisk], clocks: dict[str, WallClock]) -> Postgres:
    return Postgres(
        standby=True,
        network=network.range if network else "",
        disk=disks[LEADER].folder if disks else None,
        leaders_environ=clocks[LEADER].environ if clocks else {},
    )


def _with_patroni(
    network: Network | None, disks: dict[str, FullDisk], clocks: dict[str, WallClock]
) -> PatroniCluster:
    machines = []
    for number, name in enumerate(MEMBERS, start=len(NAMES)):
        machine = Machine(
            disk=disks[name].folder if disks else None, environ=clocks[name].environ if clocks else {}
        )
        if network is not None:
            address, inside = network.address(STORE, number), network.inside(number)
            machine = replace(machine, address=address, inside=inside, network=network.range)
        machines.append(machine)
    return PatroniCluster(machines, etcds=len(machines))


def _make(
    hosts: Hosts,
    number: int,
    name: str,
    network: Network | None,
    url: str,
    folder: Path,
    flags: tuple[str, ...],
) -> None:
    if network is None:
        hosts.make(name, *flags)
        return
    server = hosts.make(
        name,
        *("--host", "0.0.0.0", "--insecure"),
        *("--store", url.replace("127.0.0.1", network.store)),
        *("--cluster-address", f"{network.address(PEERS, number)}:{quiet_port()}"),
        *flags,
    )
    boot = folder / f"boot-{name}"  # as on a machine of its own
    boot.write_text(f"{uuid.uuid4()}\n")
    other_boot = ("sh", "-ec", f'mount --bind {boot} {BOOT_ID}; exec "$@"', "sh")
    server.inside = (*network.inside(number), *other_boot)
    server.host = network.address(CLIENTS, number)
