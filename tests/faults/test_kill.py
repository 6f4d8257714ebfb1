"""Dozens of SIGKILLs under continuous load, and every single job accounted for.

What is acknowledged must be there in the end, once, and as it was acknowledged; what a worker holds
must stay its own.  The books are in `support.ledger`, the clients in `support.actors`.

``KILL_SEED=... pytest tests/faults/test_kill.py`` repeats the choices of a run (not its timing).
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.actors import Actor, Pusher, Watcher, Worker
from support.ledger import Ledger
from support.naming import queues_on
from support.server import Server, StartServer, quiet_port
from support.waiting import eventually
from support.wire import Address, Wire

PAGE = 2000
COMES_BACK_S = 30.0  # a shard waits up to 5 s before it is started once more
DRAIN_S = 120.0
REST_S = 7.0  # once in the middle: a shard looks for expired locks only when it has run for 5 s
KINDS = ("shard", "router", "all", "every shard", "router, then a shard that starts")
WEIGHTS = (12, 4, 3, 2, 2)


class Killer:
    """Kills, starts again what no router starts again, and remembers what it did."""

    def __init__(self, server: Server, ledger: Ledger, seed: str) -> None:
        self.server = server
        self.ledger = ledger
        self.rng = random.Random(f"{seed}/killer")
        self.kills: Counter[str] = Counter()
        self.diary: list[str] = []

    async def run(self, kills: int) -> None:
        """Kill that often.  Each kind comes at least once; most kills wait until the load runs again."""
        rng = self.rng
        kinds = list(KINDS) + rng.choices(KINDS, WEIGHTS, k=max(0, kills - len(KINDS)))
        rng.shuffle(kinds)
        for number, kind in enumerate(kinds):
            if number == kills // 2:
                await asyncio.sleep(REST_S)
            if rng.random() < 0.8:
                await self.until_load_runs(rng.randrange(200, 2500))
            else:
                await asyncio.sleep(rng.random() * 0.5)  # while something still recovers
            self.kills[kind] += 1
            self.diary.append(f"{time.time() * 1000:.0f} {kind}")
            await self._kill(kind)
        await eventually(self._all_back, "all shards are back", COMES_BACK_S, step_s=0.1)
        await self.until_load_runs(500)

    async def _all_back(self) -> bool:
        async with await Wire.open(self.server.address) as wire:
            return bool((await wire.call("Stats"))["ok"])

    async def until_load_runs(self, more: int) -> None:
        """Wait until the clients have achieved ``more`` than now."""
        goal = self.ledger.progress + more
        await eventually(
            lambda: self.ledger.progress >= goal, f"{more} more acknowledgements", COMES_BACK_S + more / 50
        )

    async def _kill(self, kind: str) -> None:
        server = self.server
        if kind == "shard":
            await asyncio.to_thread(self._kill_one_shard)
        elif kind == "every shard":
            await asyncio.to_thread(server.kill_shards)
        elif kind == "all":
            await asyncio.to_thread(server.kill_all)
            await asyncio.to_thread(server.restart)
        else:
            await asyncio.to_thread(server.kill_router)
            starting = asyncio.create_task(asyncio.to_thread(server.restart))
            if kind != "router":
                await asyncio.sleep(self.rng.random())
                await asyncio.to_thread(self._kill_one_shard)
            await starting

    def _kill_one_shard(self) -> None:
        with suppress(AssertionError):  # the router may be between two starts
            if alive := self.server.shard_processes():
                self.rng.choice(alive).kill()


def cast(
    address: Address, ledger: Ledger, seed: str, queues: Sequence[str], doomed: Sequence[str]
) -> list[Actor]:
    """All clients.  Queues stand alternately on one shard and on the other; few jobs survive the doomed."""

    def pusher(name: str, batch: int = 0) -> Actor:
        return Pusher(name, address, ledger, seed, [*queues, *queues, *queues, *doomed], batch=batch)

    def worker(name: str, queues: Sequence[str] = queues, **how: Any) -> Actor:
        return Worker(name, address, ledger, seed, queues, **how)

    return [
        pusher("pusher-1"),
        pusher("pusher-2"),
        pusher("batch-pusher", 40),
        worker("acker-1"),
        worker("acker-2", queues[:1], count=5),
        worker("single", queues[1:2], count=1, hold_s=0.002),
        worker("batch-acker-1", batch_ack=True, count=30),
        worker("batch-acker-2", batch_ack=True, count=30),
        worker("batch-acker-3", batch_ack=True, count=100, poll_ms=0),
        worker("holder", hold_s=1.0, count=20),
        worker("quiet-holder", hold_s=1.0, count=20, poll_ms=0),
        worker("slow-1", queues[:2], hold_s=5.0, count=20),
        worker("slow-2", queues[2:], hold_s=5.0, count=20),
        worker("poller-1", idle=on_both_shards("idle", 2), hold_s=1.0),
        worker("poller-2", idle=on_both_shards("idle", 2), hold_s=1.0, poll_ms=0, count=30),
        worker("unlocked-poller", idle=on_both_shards("idle", 2), owner=False),
        worker("beater", beats=True, ttl_ms=2000),
        worker("failer-1", [*queues, *doomed], fails=0.5),
        worker("failer-2", doomed, fails=0.9, count=4),
        worker("quiet-failer", doomed, fails=0.9, poll_ms=0),
        worker("leaver", leaves=0.3),
        worker("dawdler", dawdles=0.5, ttl_ms=1500, count=4),
        worker("unlocked", owner=False),
        worker("quiet-unlocked", owner=False, poll_ms=0, hold_s=0.7, count=20),
        Watcher("watcher", address, ledger, seed),
    ]


def on_both_shards(prefix: str, count: int) -> list[str]:
    """Queue names, every other on the same shard."""
    pairs = zip(queues_on(0, prefix), queues_on(1, prefix), strict=False)
    return [name for pair in islice(pairs, count // 2) for name in pair]


async def read_all(wire: Wire, queues: Sequence[str]) -> list[dict[str, Any]]:
    """Every job that the server has, page by page."""
    found: list[dict[str, Any]] = []
    for queue in queues:
        offset = 0
        while True:
            page = (await wire.ok("GetJobs", queue=queue, limit=PAGE, offset=offset))["jobs"]
            found += page
            offset += PAGE
            if len(page) < PAGE:
                break
    return found


async def no_live_jobs(wire: Wire, queues: Sequence[str]) -> bool:
    """Whether all jobs are finished."""
    for queue in queues:
        counts = (await wire.ok("GetJobCounts", queue=queue))["counts"]
        if counts["waiting"] or counts["delayed"] or counts["active"]:
            return False
    return True


async def check_one_by_one(wire: Wire, ledger: Ledger, found: list[dict[str, Any]]) -> list[str]:
    """What GetState and GetResult say of every job, beside what the listing has said."""
    problems = []
    for start in range(0, len(found), PAGE):
        jobs = found[start : start + PAGE]
        states = wire.send_many({"cmd": "GetState", "id": job["id"]} for job in jobs)
        results = wire.send_many({"cmd": "GetResult", "id": job["id"]} for job in jobs)
        for job, state, result in zip(jobs, states, results, strict=True):
            shown = (await state)["state"]
            if shown != job["state"]:
                problems.append(f"{job['id']} is listed as {job['state']} and asked for as {shown}")
            kept = (await result).get("result")
            if kept != job.get("returnvalue"):
                problems.append(f"{job['id']} is listed with {job.get('returnvalue')!r}, has {kept!r}")
    return problems


async def drain(address: Address, ledger: Ledger, actors: list[Actor], queues: Sequence[str]) -> None:
    """Let pushers stop, and workers go on until there is no job left."""
    for actor in actors:
        if isinstance(actor, Pusher):
            actor.stopping.set()
        elif isinstance(actor, Worker):
            actor.careful = True
    async with await Wire.open(address) as wire:
        await eventually(lambda: no_live_jobs(wire, queues), "all jobs are finished", DRAIN_S, step_s=0.2)
    for actor in actors:
        actor.stopping.set()


def check_files(folder: Path) -> None:
    """The files are whole; read when no server has them open."""
    files = sorted(folder.glob("shard-*.db"))
    assert files
    for file in files:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("kills", [8, pytest.param(30, marks=pytest.mark.slow)])
async def test_no_kill_loses_or_repeats_a_job(kills: int, make_server: StartServer, tmp_path: Path) -> None:
    seed = os.environ.get("KILL_SEED") or secrets.token_hex(4)
    queues, doomed = on_both_shards("q", 4), on_both_shards("doomed", 2)
    server = make_server("--log-level", "warning", port=quiet_port())
    await asyncio.to_thread(server.start)
    ledger = Ledger()
    killer = Killer(server, ledger, seed)
    actors = cast(server.address, ledger, seed, queues, doomed)
    queues += doomed
    begun = time.monotonic()
    try:
        async with asyncio.TaskGroup() as tasks:
            for actor in actors:
                tasks.create_task(actor.run(), name=actor.name)
            await killer.run(kills)
            killed = time.monotonic()
            await drain(server.address, ledger, actors, queues)
        drained = time.monotonic()

        async with await Wire.open(server.address) as wire:
            found = await read_all(wire, queues)
            problems = ledger.problems(found) + await check_one_by_one(wire, ledger, found)
        assert await asyncio.to_thread(server.stop) == 0
        check_files(tmp_path / "data")
        await asyncio.to_thread(server.restart)
        async with await Wire.open(server.address) as wire:
            if await read_all(wire, queues) != found:
                problems.append("after an orderly restart the jobs differ")
    except BaseException:
        print(f"KILL_SEED={seed}", *killer.diary, *ledger.broken[:20], sep="\n")
        raise

    outcomes = Counter(ledger.pushes.values())
    states = Counter(job["state"] for job in found)
    print(
        f"seed {seed}: {killer.kills.total()} kills {dict(killer.kills)}; pushes {dict(outcomes)};"
        f" {len(ledger.acked)} acks, {ledger.fails_acked.total()} fails acknowledged; {dict(ledger.events)};"
        f" in the end {dict(states)}; {killed - begun:.0f} s of kills, {drained - killed:.0f} s to drain"
    )
    shown = "\n".join([f"KILL_SEED={seed}", *killer.diary, *problems[:30]])
    assert not problems, f"{len(problems)} broken promises\n{shown}"
    assert len(ledger.acked) > 20 * kills, "there was hardly any load"
    assert states["failed"], "no job became a dead letter"
    assert ledger.events["connections cut"] >= kills, "the kills were hardly noticed"
