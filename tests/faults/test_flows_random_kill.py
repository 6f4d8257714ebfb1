"""Flows, dependents and races for ids over four shards, under load, while processes are killed at random.

What the server has said must be so in the end: every id once, flows whole, parents after their children and
with their results, nothing waits for ever.  ``KILL_SEED=...`` repeats the choices of a run (not its timing),
and `support.budget` says how often.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import islice
from pathlib import Path

from support.actors import Actor, Watcher
from support.aftermath import check_files, drain, read_all
from support.budget import a_seed, budget
from support.flow_actors import RIVALS, FamilyWorker, FlowAuthor, Follower, Race, Racer
from support.flow_ledger import FlowLedger
from support.killer import Killer
from support.naming import queues_on
from support.server import StartServer, quiet_port
from support.waiting import eventually
from support.wire import Address, Wire

SHARDS = 4
LOAD = (20, 150)  # acknowledgements between two kills


def cast(address: Address, ledger: FlowLedger, seed: str, queues: list[str]) -> list[Actor]:
    """All clients."""
    race = Race()
    common = (address, ledger, seed, queues)
    actors: list[Actor] = [FlowAuthor(f"author-{n}", *common) for n in range(3)]
    actors += [Follower(f"follower-{n}", *common) for n in range(2)]
    actors += [Racer("racer", *common, race, leader=True)]
    actors += [Racer(f"rival-{n}", *common, race) for n in range(RIVALS)]
    for n in range(4):
        actors.append(FamilyWorker(f"worker-{n}", *common, poll_ms=50, hold_s=0.02, batch_ack=n % 2 == 0))
    actors.append(FamilyWorker("quiet", *common, poll_ms=0, hold_s=0.3, count=20))
    actors.append(FamilyWorker("single", *common, poll_ms=50, hold_s=0.0, count=1))
    return [*actors, Watcher("watcher", address, ledger, seed)]


async def test_what_belongs_together_stays_together(make_server: StartServer, tmp_path: Path) -> None:
    kills = budget(3, 200)
    seed = a_seed()
    queues = [name for shard in range(SHARDS) for name in islice(queues_on(shard, "q", SHARDS), 2)]
    server = make_server("--log-level", "warning", shards=SHARDS, port=quiet_port())
    await asyncio.to_thread(server.start)
    ledger = FlowLedger()
    killer = Killer(server, ledger, seed, load=LOAD, rests=False)
    actors = cast(server.address, ledger, seed, queues)
    try:
        async with asyncio.TaskGroup() as tasks:
            for actor in actors:
                tasks.create_task(actor.run(), name=actor.name)
            await killer.run(kills)
            for actor in actors[: -1 - 6]:
                actor.stopping.set()
            await eventually(lambda: not ledger.open, "all pushes are settled")
            await drain(server.address, actors, queues)
        async with await Wire.open(server.address) as wire:
            found = await read_all(wire, queues)
        problems = ledger.problems(found)
        assert await asyncio.to_thread(server.stop) == 0
        check_files(tmp_path / "data")
    except BaseException:
        print(f"KILL_SEED={seed}", *killer.diary, ledger.outcome(), *ledger.broken[:20], sep="\n")
        raise
    states = Counter(job["state"] for job in found)
    print(
        f"seed {seed}: {killer.kills.total()} kills {dict(killer.kills)}; {ledger.outcome()}; {dict(states)}"
    )
    shown = "\n".join([f"KILL_SEED={seed}", *killer.diary, *problems[:30]])
    assert not problems, f"{len(problems)} broken promises\n{shown}"
    assert sum(flow.promised for flow in ledger.flows) > kills, "there were hardly any flows"
    assert ledger.events["connections cut"] >= kills, "the kills were hardly noticed"
