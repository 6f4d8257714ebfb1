"""Kills of everything that a store consists of, under load, and every single job accounted for.

Shards, the router, all of the server, backends of PostgreSQL and all of its leader are killed; connections to
it are cut in mid-append; waits for a standby are cancelled, which PostgreSQL calls a success; at last the
leader is lost for good, and a standby takes its place.  `support.budget` says how often, and
``KILL_SEED=...`` repeats the choices of a run (not its timing).
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
from replication.conftest import SHARDS, StoredServer
from support.actors import Actor, Pusher, Watcher, Worker
from support.aftermath import drain, read_all
from support.budget import a_seed, budget
from support.killer import Killer
from support.ledger import Ledger
from support.naming import queue_on
from support.postgres import Postgres
from support.proxy import Proxy
from support.server import Server, quiet_port
from support.waiting import eventually
from support.wire import Address, Wire

from bunqueue.store.setup import init
from shardproc.store_commands.progress import Progress
from shardproc.store_commands.verify import verify

KILLS = budget(2, 100)
LOAD = (20, 120)  # acknowledgements between two kills
QUEUES = [queue_on(number % SHARDS, f"q{number}", SHARDS) for number in range(4)]
DOOMED = [queue_on(0, "doomed", SHARDS)]


class StoreKiller(Killer):
    """Kills what is on both sides of the connection to the store, and the connection."""

    kinds: ClassVar = ("shard", "router", "all", "backends", "PostgreSQL", "cut", "reset", "cancelled")
    weights: ClassVar = (3, 1, 1, 4, 1, 3, 3, 4)

    def __init__(self, server: Server, ledger: Ledger, seed: str, postgres: Postgres, proxy: Proxy) -> None:
        super().__init__(server, ledger, seed, load=LOAD, rests=False)
        self._postgres, self._proxy = postgres, proxy

    async def _kill(self, kind: str) -> None:
        if kind == "backends":
            await asyncio.to_thread(self._ask_of_backends, "pg_terminate_backend")
        elif kind == "cancelled":
            await asyncio.to_thread(self._cancel)
        elif kind == "PostgreSQL":
            await asyncio.to_thread(self._postgres.leader.kill)
            await asyncio.to_thread(self._postgres.leader.start)
        elif kind == "cut":
            self._proxy.cut()
        elif kind == "reset":
            self._proxy.reset()
        else:
            await super()._kill(kind)

    def _ask_of_backends(self, what: str) -> None:
        query = f"select {what}(pid) from pg_stat_activity where application_name = 'bunqueue'"
        self._postgres.leader.ask(query)

    def _cancel(self) -> None:
        """Appends wait, as no standby answers, and these waits are cancelled."""
        for standby in self._postgres.standbys:
            standby.pause()
        try:
            self._ask_of_backends("pg_cancel_backend")
        finally:
            for standby in self._postgres.standbys:
                standby.resume()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A leader and two standbys, any one of which has to acknowledge."""
    with Postgres(standbys=2) as running:
        yield running


def cast(address: Address, ledger: Ledger, seed: str) -> list[Actor]:
    def worker(name: str, **how: Any) -> Actor:
        return Worker(name, address, ledger, seed, how.pop("queues", QUEUES), **how)

    return [
        Pusher("pusher", address, ledger, seed, [*QUEUES, *DOOMED], batch=0),
        Pusher("batch-pusher", address, ledger, seed, QUEUES, batch=20),
        worker("acker"),
        worker("batch-acker", batch_ack=True, count=30),
        worker("holder", hold_s=1.0, count=20),
        worker("failer", queues=DOOMED, fails=0.9, count=4),
        worker("beater", beats=True, ttl_ms=2000),
        worker("unlocked", owner=False),
        Watcher("watcher", address, ledger, seed),
    ]


async def under_load(server: Server, killer: Killer, harm: Any) -> list[dict[str, Any]]:
    """Do harm while clients are at work, have them finish, and look at their books; all jobs in the end."""
    ledger, actors = killer.ledger, cast(server.address, killer.ledger, str(killer.rng.random()))
    async with asyncio.TaskGroup() as tasks:
        for actor in actors:
            tasks.create_task(actor.run(), name=actor.name)
        await harm
        await drain(server.address, actors, [*QUEUES, *DOOMED])
    async with await Wire.open(server.address) as wire:
        found = await read_all(wire, [*QUEUES, *DOOMED])
    problems = ledger.problems(found)
    assert not problems, "\n".join([*killer.diary, *problems[:30]])
    states = Counter(job["state"] for job in found)
    print(f"{dict(killer.kills)}; {len(ledger.acked)} acks; {dict(ledger.events)}; in the end {dict(states)}")
    return found


def check_log(url: str, folder: Path) -> None:
    """No gap, epochs ascend, and the files are what the log makes."""
    for shard in range(SHARDS):
        with psycopg.connect(url) as connection:
            query = "select seq, epoch from bunqueue.log where shard = %s order by seq"
            records = connection.execute(query, (shard,)).fetchall()
        assert all(one[0] + 1 == other[0] and one[1] <= other[1] for one, other in pairwise(records)), records
    assert [found.problems for found in verify(url, folder, None, Progress())] == [[]] * SHARDS


async def test_no_kill_loses_or_repeats_a_job(
    postgres: Postgres, stored_server: StoredServer, tmp_path: Path
) -> None:
    seed = a_seed()
    url = await asyncio.to_thread(postgres.new_database)
    await asyncio.to_thread(init, url, SHARDS)
    proxy = Proxy(postgres.leader.port)
    await proxy.start()
    through = url.replace(str(postgres.leader.port), str(proxy.port))
    server = stored_server(through, "--log-level", "error", port=quiet_port())
    killer = StoreKiller(server, Ledger(), seed, postgres, proxy)
    try:
        await asyncio.to_thread(server.start)
        found = await under_load(server, killer, killer.run(KILLS))
        assert len(found) > 10 * KILLS, "there was hardly any load"
        assert await asyncio.to_thread(server.stop) == 0
        await asyncio.to_thread(check_log, url, tmp_path / "data")
        shutil.rmtree(tmp_path / "data")
        await asyncio.to_thread(server.restart)
        async with await Wire.open(server.address) as wire:
            assert await read_all(wire, [*QUEUES, *DOOMED]) == found, "without its folder it has other jobs"
        await asyncio.to_thread(server.stop)
    except BaseException:
        print(f"KILL_SEED={seed}", *killer.diary, sep="\n")
        raise
    finally:
        await proxy.stop()


async def test_a_standby_takes_over(postgres: Postgres, stored_server: StoredServer, tmp_path: Path) -> None:
    """The leader is gone for good.  One of the standbys has all that was acknowledged, and is promoted."""
    url = await asyncio.to_thread(postgres.new_database)
    await asyncio.to_thread(init, url, SHARDS)
    nodes = [postgres.leader, *postgres.standbys]
    places = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    anywhere = url.replace(f"127.0.0.1:{postgres.leader.port}", places)
    server = stored_server(anywhere, "--log-level", "error", port=quiet_port())
    await asyncio.to_thread(server.start)
    killer = Killer(server, Ledger(), "failover", load=LOAD, rests=False)

    async def fail_over() -> None:
        await killer.until_load_runs(200)
        await asyncio.to_thread(postgres.fail_over)
        await eventually(killer.all_back, "the shards are back")
        await killer.until_load_runs(200)

    await under_load(server, killer, fail_over())
    assert await asyncio.to_thread(server.stop) == 0
    moved = url.replace(str(nodes[0].port), str(postgres.leader.port))
    assert postgres.leader is not nodes[0]
    await asyncio.to_thread(check_log, moved, tmp_path / "data")
