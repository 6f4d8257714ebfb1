"""Dozens of SIGKILLs under continuous load, and every single job accounted for.

What is acknowledged must be there in the end, once, and as it was acknowledged; what a worker holds
must stay its own.  The books are in `support.ledger`, the clients in `support.actors`.

``KILL_SEED=... pytest tests/faults/test_kill.py`` repeats the choices of a run (not its timing), and
`support.budget` says how often.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from support.actors import Actor, Pusher, Watcher, Worker
from support.aftermath import PAGE, check_files, drain, read_all
from support.budget import a_seed, budget
from support.killer import Killer
from support.ledger import Ledger
from support.naming import queues_on
from support.server import StartServer, quiet_port
from support.wire import Address, Wire


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


async def test_no_kill_loses_or_repeats_a_job(make_server: StartServer, tmp_path: Path) -> None:
    kills = budget(2, 200)
    seed = a_seed()
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
            await drain(server.address, actors, queues)
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
