"""What is done to a cluster: to its hosts, to its store, and to the machines of Patroni."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence

from chaos.chaos_cluster import LEADER, MEMBERS, NAMES, Cluster, start_again
from chaos.network import CLIENTS, PEERS, STORE
from support.patroni import Member, Process
from support.postgres import Node
from support.procfs import signal_all
from support.waiting import eventually
from support.wall_clock import HOUR

WRONG_BY = 2 * HOUR
STARTS_WITH_WRONG_CLOCK = 0.5  # of all times that a clock is set
SETTLES_S = 5.0  # until a clock that is set right, or room on a disk, has been noticed everywhere
FAILS_OVER_S = 90.0

Fault = Callable[[Cluster, random.Random], Awaitable[None]]


def how_long(cluster: Cluster, choice: random.Random) -> float:
    """Mostly some seconds, sometimes much longer; always the same where a test wants that."""
    return cluster.always_s or min(1.0 + choice.expovariate(1 / 6), cluster.longest_s)


async def stand_still(pids: Sequence[int], for_s: float) -> None:
    """Stop these processes, and let them go on."""
    signal_all(signal.SIGSTOP, pids)
    await asyncio.sleep(for_s)  # as long as they stand still
    signal_all(signal.SIGCONT, pids)


# -- hosts


async def kill(cluster: Cluster, choice: random.Random) -> None:
    """A host loses its power, and comes back."""
    with cluster.victim(choice) as number, cluster.fault(f"SIGKILL {NAMES[number]}"):
        await asyncio.to_thread(cluster.server(number).kill_all)
        await asyncio.sleep(choice.uniform(0.0, 8.0))  # how long it is away
        await asyncio.to_thread(start_again, cluster.server(number))


async def freeze(cluster: Cluster, choice: random.Random) -> None:
    """A host stands still, mostly for longer than its lease, and wakes as a zombie."""
    unavailable_s = how_long(cluster, choice)
    with cluster.victim(choice) as number, cluster.fault(f"SIGSTOP {NAMES[number]} {unavailable_s:.0f} s"):
        await stand_still(await asyncio.to_thread(cluster.processes, number), unavailable_s)


async def set_clock(cluster: Cluster, choice: random.Random) -> None:
    """A host's clock is two hours ahead or behind for a while; sometimes the host is started meanwhile."""
    ahead, wrong_s = choice.choice((WRONG_BY, -WRONG_BY)), choice.uniform(1.0, 8.0)
    starts = choice.random() < STARTS_WITH_WRONG_CLOCK
    with cluster.victim(choice) as number:
        name = NAMES[number]
        what = f"clock of {name} {ahead // HOUR:+} h {wrong_s:.0f} s" + ", killed" * starts
        begun = time.monotonic()
        with cluster.fault(what):
            assert cluster.clocks[name].moves(cluster.server(number).pid)
            cluster.clocks[name].set(ahead)
            await asyncio.sleep(wrong_s)  # as long as nobody sets it right
            if starts:
                await asyncio.to_thread(cluster.server(number).kill_all)
                await asyncio.to_thread(start_again, cluster.server(number))
                await cluster.healed()  # it owns shards, and has put its time into them
            cluster.clocks[name].set(0)
        cluster.wrong_clocks.append((begun, time.monotonic() + SETTLES_S))


async def fill_host(cluster: Cluster, choice: random.Random) -> None:
    """The disk of a host is full: it refuses what needs room, or gives its shards up."""
    full_s = how_long(cluster, choice)
    with cluster.victim(choice) as number:
        begun = time.monotonic()
        with cluster.fault(f"disk of {NAMES[number]} is full {full_s:.0f} s"):
            with cluster.disks[NAMES[number]].filled():
                await asyncio.sleep(full_s)  # as long as nobody makes room
        cluster.full_disks.append((begun, time.monotonic() + SETTLES_S))


def cut(what: str, *nets: int) -> Fault:
    async def fault(cluster: Cluster, choice: random.Random) -> None:
        assert cluster.network is not None
        unavailable_s = how_long(cluster, choice)
        with (
            cluster.victim(choice) as number,
            cluster.fault(f"{NAMES[number]} cut from {what} {unavailable_s:.0f} s"),
        ):
            cluster.network.cut(number, *nets)
            await asyncio.sleep(unavailable_s)  # as long as the plug is out
            cluster.network.mend(number)

    return fault


# -- PostgreSQL with a standby, which does not take over


def _alone(cluster: Cluster) -> Node:
    assert cluster.alone is not None
    return cluster.alone.leader


async def freeze_store(cluster: Cluster, choice: random.Random) -> None:
    """PostgreSQL does not answer."""
    unavailable_s = choice.uniform(1.0, 6.0)
    with cluster.fault(f"SIGSTOP {LEADER} {unavailable_s:.0f} s"):
        _alone(cluster).pause()
        await asyncio.sleep(unavailable_s)  # as long as it stands still
        _alone(cluster).resume()


async def kill_store(cluster: Cluster, choice: random.Random) -> None:
    """PostgreSQL is killed with all its backends, and started again."""
    with cluster.fault(f"SIGKILL {LEADER}"):
        await asyncio.to_thread(_alone(cluster).kill)
        await asyncio.sleep(choice.uniform(0.0, 3.0))  # how long it is away
        await asyncio.to_thread(_alone(cluster).start)


async def fill_store(cluster: Cluster, choice: random.Random) -> None:
    """PostgreSQL's disk is full: it refuses to write, or ends.  Then somebody makes room, and starts it."""
    full_s = choice.uniform(1.0, 6.0)
    with cluster.fault(f"disk of {LEADER} is full {full_s:.0f} s"):
        with cluster.disks[LEADER].filled():
            await asyncio.sleep(full_s)  # as long as nobody makes room
        await asyncio.to_thread(_alone(cluster).start_if_ended)


async def set_clock_of_store(cluster: Cluster, choice: random.Random) -> None:
    """PostgreSQL's clock is two hours off, and nobody minds."""
    ahead, wrong_s = choice.choice((WRONG_BY, -WRONG_BY)), how_long(cluster, choice)
    with cluster.fault(f"clock of {LEADER} {ahead // HOUR:+} h {wrong_s:.0f} s"):
        await _wrong_clock(cluster, LEADER, _alone(cluster).pid, ahead, wrong_s)


async def _wrong_clock(cluster: Cluster, name: str, pid: int, ahead: int, wrong_s: float) -> None:
    assert cluster.clocks[name].moves(pid)
    cluster.clocks[name].set(ahead)
    await asyncio.sleep(wrong_s)  # as long as nobody sets it right
    cluster.clocks[name].set(0)


# -- three machines, each with a PostgreSQL, its Patroni and an etcd


class Machine:
    """One of them."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        assert cluster.patroni is not None
        self.cluster, self.name = cluster, MEMBERS[number]
        self.member: Member = cluster.patroni.members[number]
        self.etcd: Process = cluster.patroni.etcds[number]
        self._net = len(NAMES) + number

    @classmethod
    def leading(cls, cluster: Cluster) -> Machine:
        assert cluster.patroni is not None
        return cls(cluster, cluster.patroni.members.index(cluster.patroni.until_led()))

    @classmethod
    def following(cls, cluster: Cluster) -> Machine:
        """That of the standby for which commits wait."""
        assert cluster.patroni is not None
        return cls(cluster, cluster.patroni.members.index(cluster.patroni.until_followed()))

    @property
    def pids(self) -> list[int]:
        return [*self.member.pids, *self.etcd.pids]

    def kill(self) -> None:
        self.member.kill()
        self.etcd.kill()

    def start(self) -> None:
        self.etcd.start_if_ended()
        self.member.process.start_if_ended()

    def cut(self) -> None:
        assert self.cluster.network is not None
        self.cluster.network.cut(self._net, STORE)

    def mend(self) -> None:
        assert self.cluster.network is not None
        self.cluster.network.mend(self._net)

    def is_replaced(self) -> bool:
        """Whether another one leads."""
        assert self.cluster.patroni is not None
        others = [member for member in self.cluster.patroni.members if member is not self.member]
        return any(member.leads for member in others)


Which = Callable[[Cluster], Machine]
ROLES = {Machine.leading: "the leader", Machine.following: "a standby"}


def kill_machine(which: Which) -> Fault:
    async def fault(cluster: Cluster, choice: random.Random) -> None:
        """A machine of the store loses its power.  If it led, it comes back when another one does."""
        machine = await asyncio.to_thread(which, cluster)
        with cluster.fault(f"SIGKILL {machine.name}, {ROLES[which]}, its Patroni and etcd"):
            await asyncio.to_thread(machine.kill)
            if which == Machine.leading:
                await eventually(
                    lambda: asyncio.to_thread(machine.is_replaced), "another one leads", FAILS_OVER_S
                )
            await asyncio.sleep(how_long(cluster, choice))  # how long it is away
            await asyncio.to_thread(machine.start)

    return fault


def freeze_machine(which: Which) -> Fault:
    async def fault(cluster: Cluster, choice: random.Random) -> None:
        """A machine of the store stands still, and wakes.  By then a leader may have been replaced."""
        unavailable_s = how_long(cluster, choice)
        machine = await asyncio.to_thread(which, cluster)
        with cluster.fault(f"SIGSTOP {machine.name}, {ROLES[which]}, {unavailable_s:.0f} s"):
            await stand_still(await asyncio.to_thread(lambda: machine.pids), unavailable_s)

    return fault


def cut_machine(which: Which) -> Fault:
    async def fault(cluster: Cluster, choice: random.Random) -> None:
        unavailable_s = how_long(cluster, choice)
        machine = await asyncio.to_thread(which, cluster)
        with cluster.fault(f"{machine.name}, {ROLES[which]}, cut from all {unavailable_s:.0f} s"):
            machine.cut()
            await asyncio.sleep(unavailable_s)  # as long as the plug is out
            machine.mend()

    return fault


def fill_machine(which: Which) -> Fault:
    async def fault(cluster: Cluster, choice: random.Random) -> None:
        """Its disk is full: PostgreSQL and etcd end.  Then somebody makes room, and starts etcd."""
        full_s = how_long(cluster, choice)
        machine = await asyncio.to_thread(which, cluster)
        with cluster.fault(f"disk of {machine.name}, {ROLES[which]}, is full {full_s:.0f} s"):
            with cluster.disks[machine.name].filled():
                await asyncio.sleep(full_s)  # as long as nobody makes room
            await asyncio.to_thread(machine.start)

    return fault


async def kill_postgresql(cluster: Cluster, choice: random.Random) -> None:
    """Its Patroni lives, and starts it again."""
    machine = await asyncio.to_thread(Machine.leading, cluster)
    with cluster.fault(f"SIGKILL PostgreSQL of {machine.name}, the leader"):
        await asyncio.to_thread(machine.member.kill_postgresql)
        assert cluster.patroni is not None
        await asyncio.to_thread(cluster.patroni.until_led)


async def kill_etcd(cluster: Cluster, choice: random.Random) -> None:
    """One etcd of three."""
    assert cluster.patroni is not None
    machine = Machine(cluster, choice.randrange(len(MEMBERS)))
    with cluster.fault(f"SIGKILL etcd of {machine.name}"):
        await asyncio.to_thread(machine.etcd.kill)
        await asyncio.sleep(how_long(cluster, choice))  # how long it is away
        machine.etcd.start()


async def freeze_etcd(cluster: Cluster, choice: random.Random) -> None:
    unavailable_s = how_long(cluster, choice)
    machine = Machine(cluster, choice.randrange(len(MEMBERS)))
    with cluster.fault(f"SIGSTOP etcd of {machine.name} {unavailable_s:.0f} s"):
        await stand_still(machine.etcd.pids, unavailable_s)


async def set_clock_of_leader(cluster: Cluster, choice: random.Random) -> None:
    """That of its PostgreSQL and Patroni.

    Patroni sleeps by the time of day: when that goes back, it does nothing for as long.  Its lease runs out,
    and nobody takes over, for PostgreSQL lives.  So who sets the clock right starts Patroni again.
    """
    ahead, wrong_s = choice.choice((WRONG_BY, -WRONG_BY)), how_long(cluster, choice)
    machine = await asyncio.to_thread(Machine.leading, cluster)
    patroni = machine.member.process
    with cluster.fault(f"clock of {machine.name}, the leader, {ahead // HOUR:+} h {wrong_s:.0f} s"):
        await _wrong_clock(cluster, machine.name, patroni.pids[0], ahead, wrong_s)
        await asyncio.to_thread(patroni.stop)
        patroni.start()


# -- all of them, by what a machine that runs the tests must allow

Faults = dict[str, Fault]
OF_HOSTS: Faults = {"kill": kill, "freeze": freeze}
OF_HOSTS_LINKS: Faults = {
    "cut-rest": cut("all", CLIENTS, STORE, PEERS),
    "cut-store": cut("the store", STORE),
    "cut-peers": cut("its peers", PEERS),
}
OF_HOSTS_DISKS: Faults = {"fill-host": fill_host}
OF_HOSTS_CLOCKS: Faults = {"set-clock": set_clock}
OF_STORE: Faults = {"freeze-store": freeze_store, "kill-store": kill_store}
OF_STORES_DISK: Faults = {"fill-store": fill_store}
OF_STORES_CLOCK: Faults = {"set-clock-of-store": set_clock_of_store}
OF_MACHINES: Faults = {
    "kill-leader": kill_machine(Machine.leading),
    "kill-standby": kill_machine(Machine.following),
    "kill-postgresql": kill_postgresql,
    "kill-etcd": kill_etcd,
    "freeze-leader": freeze_machine(Machine.leading),
    "freeze-standby": freeze_machine(Machine.following),
    "freeze-etcd": freeze_etcd,
}
OF_MACHINES_LINKS: Faults = {
    "cut-leader": cut_machine(Machine.leading),
    "cut-standby": cut_machine(Machine.following),
}
OF_MACHINES_DISKS: Faults = {
    "fill-leader": fill_machine(Machine.leading),
    "fill-standby": fill_machine(Machine.following),
}
OF_MACHINES_CLOCKS: Faults = {"set-clock-of-leader": set_clock_of_leader}


def of_hosts(cluster: Cluster) -> Faults:
    """What can be done to hosts here."""
    return _possible(cluster, OF_HOSTS, OF_HOSTS_LINKS, OF_HOSTS_DISKS, OF_HOSTS_CLOCKS)


def of_store(cluster: Cluster) -> Faults:
    """What can be done to the store here: one at a time, for it needs two of its machines."""
    if cluster.patroni is None:
        return _possible(cluster, OF_STORE, {}, OF_STORES_DISK, OF_STORES_CLOCK)
    return _possible(cluster, OF_MACHINES, OF_MACHINES_LINKS, OF_MACHINES_DISKS, OF_MACHINES_CLOCKS)


def _possible(cluster: Cluster, always: Faults, links: Faults, disks: Faults, clocks: Faults) -> Faults:
    return (
        always
        | (links if cluster.network is not None else {})
        | (disks if cluster.disks else {})
        | (clocks if cluster.clocks else {})
    )
