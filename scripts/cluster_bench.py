"""Measures a cluster: how soon a dead host is replaced, how long a move takes, and the cost of hosts.

    python scripts/cluster_bench.py [--only dead move throughput] [--live 100000] [--kills 6] [--moves 8]
                                    [--rounds 3] [--jobs 100000] [--json FILE]

Everything runs on this machine: the hosts, PostgreSQL with two synchronous standbys from the system's
packages, and the clients. Everything is removed afterwards.

    dead        three hosts, --live jobs waiting in each shard, a client at each host for each shard, which
                adds one job after the other. One host after the other is killed with all its processes.
                Measures the time until a command for one of its shards, sent after the kill, is answered
    move        the same hosts, jobs and clients. One shard after the other moves. Measures the longest wait
                of a client
    throughput  jobs a second of one server with the same store, and of a cluster of 1, 2 and 3 hosts: added
                one by one, added 400 at a time, and pulled and acknowledged 400 at a time; each client uses
                one host. Also CPU time per job, in microseconds. Medians over the rounds, and of the
                rounds' ratios
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from bunqueue.client.blocking.admin import Admin
from bunqueue.model.ids import slot_of_queue
from load_client import Connection, Options, Outcome, drive
from load_test import perform
from store_bench import BATCH, CONNECTIONS, PAYLOAD, Figures, middle, say, show
from store_bench_servers import bunqueue, cpu_s, postgresql, running, settle, tree_s

# After store_bench_servers, which makes these importable.
from cluster.hosts import Hosts  # isort: skip
from support.postgres import Postgres  # isort: skip
from support.procfs import children, runs  # isort: skip
from support.server import Server  # isort: skip
from support.waiting import wait_until  # isort: skip
from support.wire import Address, ConnectionEnded, Wire  # isort: skip

NAMES = ("one", "two", "three")
PAUSE_S = 0.005  # of a client, between two jobs
AGAIN_S = 0.02  # before a retry after a refusal
SERVED_S = 60.0  # within which a dead host must be replaced
DEPTH_SINGLE, DEPTH_BATCH, SINGLES = 50, 4, 5  # jobs / SINGLES are added one by one
SCENARIOS = ("push", "push-batch", "drain")


@contextmanager
def cluster(postgres: Postgres, names: Sequence[str], shards: int) -> Iterator[Hosts]:
    """Hosts that share the shards of a new store, once all copies are made."""
    url = postgres.new_database()
    bunqueue("store", "init", "--shards", str(shards), store=url)
    with tempfile.TemporaryDirectory(prefix="bunqueue-bench-") as folder:
        hosts = Hosts(url, Path(folder), shards)
        try:
            hosts.start(*names, flags=("--log-level", "error"))
            yield hosts
        finally:
            for server in hosts.servers.values():
                server.dispose()


# -- clients that send all the time


class Client:
    """Adds one job after the other to a queue, and records when each was sent and answered."""

    def __init__(self, address: Address, queue: str) -> None:
        self._address, self._queue = address, queue
        self.times: list[tuple[float, float]] = []
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        wire: Wire | None = None
        while True:
            begun = time.monotonic()
            try:
                wire = wire if wire is not None and wire.alive else await Wire.open(self._address)
                reply = await wire.call("PUSH", queue=self._queue, data="x" * PAYLOAD)
            except (OSError, TimeoutError, ConnectionEnded):
                reply = {}
            if reply.get("ok"):
                self.times.append((begun, time.monotonic()))
            await asyncio.sleep(PAUSE_S if reply.get("ok") else AGAIN_S)

    def answered(self, since: float) -> float | None:
        """When the first command sent after `since` was answered; None: not yet."""
        return next((ended for begun, ended in self.times if begun >= since), None)

    def longest(self, since: float) -> float:
        """The longest wait, in seconds, of the commands answered after `since`."""
        return max(ended - begun for begun, ended in self.times if ended >= since)


class Clients:
    """One at each host for each shard."""

    def __init__(self, hosts: Hosts, queues: Sequence[str]) -> None:
        self.hosts, self.queues = hosts, queues
        self.at: dict[str, list[Client]] = {}

    async def start(self, name: str) -> None:
        address = self.hosts.servers[name].address
        self.at[name] = [Client(address, queue) for queue in self.queues]
        await self.until_answered(range(len(self.queues)))

    async def stop(self, name: str) -> None:
        clients = self.at.pop(name)
        for client in clients:
            client.task.cancel()
        await asyncio.gather(*(client.task for client in clients), return_exceptions=True)

    def of(self, shard: int) -> list[Client]:
        return [clients[shard] for clients in self.at.values()]

    async def until_answered(self, shards: Sequence[int]) -> list[float]:
        """Wait until every client of these shards has a reply to a command sent after this call.

        Returns, for each shard, the seconds until the last of them.
        """
        since = time.monotonic()
        waiting = [[client.answered(since) for client in self.of(shard)] for shard in shards]
        while any(None in answers for answers in waiting):
            if time.monotonic() - since > SERVED_S:
                raise TimeoutError(f"shards are not served within {SERVED_S:g} s")
            await asyncio.sleep(AGAIN_S)
            waiting = [[client.answered(since) for client in self.of(shard)] for shard in shards]
        return [max(at for at in answers if at is not None) - since for answers in waiting]


def queues_of(shards: int, tag: str) -> list[str]:
    """The prefix of a queue of each shard; its name is ``prefix-0``."""
    names = (f"{tag}{number}" for number in count())
    found: dict[int, str] = {}
    while len(found) < shards:
        name = next(names)
        found.setdefault(slot_of_queue(f"{name}-0") & (shards - 1), name)
    return [found[shard] for shard in range(shards)]


def options(server: Server, jobs: int, scenario: str, **others: Any) -> Options:
    return Options(
        **{
            "scenario": scenario,
            "host": server.host,
            "port": server.port,
            "token": None,
            "connections": CONNECTIONS,
            "depth": DEPTH_SINGLE if scenario == "push" else DEPTH_BATCH,
            "batch": BATCH,
            "payload": PAYLOAD,
            "queues": 1,
            "jobs": jobs,
            "processes": 1,
            "prefix": "bench",
            **others,
        }
    )


@contextmanager
def filled(postgres: Postgres, arguments: argparse.Namespace) -> Iterator[Hosts]:
    """Three hosts, with the given number of live jobs in each shard."""
    with cluster(postgres, NAMES, arguments.shards) as hosts:
        for prefix in queues_of(arguments.shards, "live"):
            perform(options(hosts.servers[NAMES[0]], arguments.live, "push-batch", prefix=prefix))
        hosts.until_shared(*NAMES)
        yield hosts


# -- a host dies


def measure_dead(hosts: Hosts, arguments: argparse.Namespace) -> Figures:
    kills = asyncio.run(_kills(hosts, arguments))
    say("dead: " + "; ".join(", ".join(f"{s:.2f}" for s in shards) for shards in kills) + " s")
    each = sorted(seconds for shards in kills for seconds in shards)
    last = [max(shards) for shards in kills]
    return {
        "a shard": {"p50_s": statistics.median(each), "max_s": each[-1], "of": len(each)},
        "all shards of the host": {"p50_s": statistics.median(last), "max_s": max(last), "of": len(last)},
    }


async def _kills(hosts: Hosts, arguments: argparse.Namespace) -> list[list[float]]:
    """For each kill, the seconds until each shard of the dead host was served again."""
    clients, kills = await _everywhere(hosts, arguments), []
    for number in range(arguments.kills):
        owners = hosts.owners()
        name = sorted(set(owners))[number % len(set(owners))]
        server = hosts.servers[name]
        await clients.stop(name)
        mine = [shard for shard, owner in enumerate(owners) if owner == name]
        kill(server)
        kills.append(await clients.until_answered(mine))
        await asyncio.to_thread(server.wait)
        await asyncio.to_thread(server.until_gone)
        await asyncio.to_thread(server.restart)
        await asyncio.to_thread(hosts.until_shared, *NAMES)
        await clients.start(name)
    for name in NAMES:
        await clients.stop(name)
    return kills


def kill(server: Server) -> None:
    """End all its processes at once."""
    router, others = server.pid, children(server.pid)
    os.kill(router, signal.SIGSTOP)  # so that no process sees another one end
    for process in others:
        process.kill()
    os.kill(router, signal.SIGKILL)


async def _everywhere(hosts: Hosts, arguments: argparse.Namespace) -> Clients:
    clients = Clients(hosts, [f"{prefix}-0" for prefix in queues_of(arguments.shards, "busy")])
    for name in NAMES:
        await clients.start(name)
    return clients


# -- a shard moves


def measure_move(hosts: Hosts, arguments: argparse.Namespace) -> Figures:
    with Admin(port=hosts.servers[NAMES[0]].port) as admin:
        found = asyncio.run(_moves(hosts, admin, arguments))
    say("move: " + ", ".join(f"{seconds:.2f}" for seconds in found["moved"]) + " s")
    return {
        name: {"p50_s": statistics.median(waits), "max_s": max(waits), "of": len(waits)}
        for name, waits in found.items()
    }


async def _moves(hosts: Hosts, admin: Admin, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """The longest wait of a client of the shard, for each move; and while no shard moves."""
    clients = await _everywhere(hosts, arguments)
    found: dict[str, list[float]] = {"nothing moves": [], "moved": []}
    for number in range(arguments.moves):
        shard = number % arguments.shards
        since = time.monotonic()
        await asyncio.sleep(1.0)  # measures the usual wait
        found["nothing moves"].append(max(client.longest(since) for client in clients.of(shard)))
        to = NAMES[(NAMES.index(hosts.owners()[shard]) + 1 + number % 2) % len(NAMES)]
        since = time.monotonic()
        await asyncio.to_thread(admin.move_shard, shard, to)
        await asyncio.to_thread(
            wait_until, lambda shard=shard, to=to: hosts.owners()[shard] == to, "it moves", SERVED_S
        )
        await clients.until_answered([shard])
        found["moved"].append(max(client.longest(since) for client in clients.of(shard)))
        await asyncio.to_thread(admin.rebalance)
        await asyncio.to_thread(hosts.until_shared, *NAMES)
    for name in NAMES:
        await clients.stop(name)
    return found


# -- the cost of hosts


def measure_throughput(postgres: Postgres, arguments: argparse.Namespace) -> Figures:
    rounds: dict[str, list[Figures]] = {}
    for number in range(arguments.rounds):
        for hosts in (0, *arguments.hosts):
            name = f"{hosts} host{'s' * (hosts > 1)}" if hosts else "one server, no cluster"
            found = _throughput(postgres, hosts, arguments)
            rounds.setdefault(name, []).append(found)
            rates = (f"{each} {figures['jobs_per_s']:,.0f}" for each, figures in found.items())
            say(f"round {number + 1}, {name}: {', '.join(rates)} jobs/s")
    return _summed_up(rounds)


def _throughput(postgres: Postgres, hosts: int, arguments: argparse.Namespace) -> Figures:
    if not hosts:
        with running("alone", arguments.shards, postgres) as measured:
            settle(10)  # a new database keeps PostgreSQL busy; hosts take longer to start
            return _loaded([measured.server], postgres, arguments)
    with cluster(postgres, NAMES[:hosts], arguments.shards) as made:
        _until_all_run(made, arguments.shards)
        return _loaded(list(made.servers.values()), postgres, arguments)


def _until_all_run(hosts: Hosts, shards: int) -> None:
    """Wait until all processes have started, which must not count as a cost of jobs."""
    pids = [server.pid for server in hosts.servers.values()]
    wanted = shards + len(pids) * 2  # a follower and a fork server each
    wait_until(lambda: sum(len(children(pid)) for pid in pids) >= wanted, "all run", SERVED_S)
    settle(3)


def _loaded(servers: Sequence[Server], postgres: Postgres, arguments: argparse.Namespace) -> Figures:
    found = {}
    for scenario in SCENARIOS:
        settle()
        prefix = "single" if scenario == "push" else "bench"
        jobs = arguments.jobs // SINGLES if scenario == "push" else arguments.jobs
        wanted = options(servers[0], jobs, scenario, prefix=prefix, queues=4 * arguments.shards)
        before = _used(servers, postgres)
        outcome = _drive(wanted, servers)
        settle()  # followers read the last records
        used = {name: value - before[name] for name, value in _used(servers, postgres).items()}
        found[scenario] = {"jobs_per_s": jobs / outcome.seconds}
        found[scenario] |= {f"{name}_us": value / jobs * 1e6 for name, value in used.items()}
    return found


def _drive(wanted: Options, servers: Sequence[Server]) -> Outcome:
    """Each connection uses one host; the number of connections does not depend on the number of hosts."""
    outcome = Outcome()
    wanted = replace(wanted, connections=6)  # can be divided by 1, 2 and 3 hosts
    ports = [servers[number % len(servers)].port for number in range(6)]
    connections = [Connection(replace(wanted, port=port), at, outcome) for at, port in enumerate(ports)]
    begun = time.perf_counter()
    drive(connections, lambda: None)
    outcome.seconds = time.perf_counter() - begun
    for connection in connections:
        connection.socket.close()
    return outcome


def _used(servers: Sequence[Server], postgres: Postgres) -> dict[str, float]:
    """CPU time so far, in seconds."""
    found = {"router": 0.0, "shards": 0.0, "followers": 0.0, "postgres": tree_s(postgres.pids())}
    for server in servers:
        found["router"] += cpu_s(server.pid)
        for child in children(server.pid):
            found["followers" if runs(child.pid, "follower") else "shards"] += cpu_s(child.pid)
    return found


def _summed_up(rounds: dict[str, list[Figures]]) -> Figures:
    """Medians, and their ratios to one server."""
    base = next(iter(rounds.values()))
    found: Figures = {}
    for scenario in SCENARIOS:
        for name, some in rounds.items():
            rows = [each[scenario] for each in some]
            figures = {key: middle([row[key] for row in rows]) for key in rows[0]}
            pairs = zip(rows, (each[scenario] for each in base), strict=True)
            figures["of_one"] = middle([row["jobs_per_s"] / one["jobs_per_s"] for row, one in pairs])
            found[f"{scenario}: {name}"] = figures
    return found


IN_PLACE: dict[str, Callable[[Hosts, argparse.Namespace], Figures]] = {
    "dead": measure_dead,
    "move": measure_move,
}
PARTS = (*IN_PLACE, "throughput")


def measure(arguments: argparse.Namespace) -> Iterator[tuple[str, Figures]]:
    """Each requested part, and its figures."""
    with postgresql(2) as postgres:
        wanted = [name for name in IN_PLACE if name in arguments.only]
        if wanted:
            with filled(postgres, arguments) as hosts:
                for name in wanted:
                    yield name, IN_PLACE[name](hosts, arguments)
        if "throughput" in arguments.only:
            yield "throughput", measure_throughput(postgres, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--shards", type=int, default=8, help="a power of two (8)")
    parser.add_argument("--live", type=int, default=100_000, help="waiting jobs in each shard (100000)")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--moves", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="of throughput (3)")
    parser.add_argument("--jobs", type=int, default=100_000, help="for a figure of throughput (100000)")
    parser.add_argument("--hosts", type=int, nargs="*", default=[1, 2, 3], choices=[1, 2, 3])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = dict(measure(arguments))
    for name, figures in found.items():
        show(name, figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
