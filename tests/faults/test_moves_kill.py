"""Real processes, killed while jobs go from a queue to another one on another shard: each is there once.

Jobs leave shard 1 for shard 2; the ids of some point to shard 3.  `make nightly` tries each step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count, product

import pytest
from support.budget import NIGHTLY
from support.crashes import CrashingServer, Step
from support.server import dispose, quiet_port
from support.several_shards import SeveralShards
from support.waiting import eventually

SHARDS = 4
LETTERS = ("MoveIn", "MovedIn", "Rehome", "MoveEnded")
MOMENTS = ("before commit", "after commit", "sent")
_numbers = count()

STEPS = [
    Step("MoveIn", "sends", "before commit"),
    Step("MoveIn", "receives", "before commit"),
    Step("MoveIn", "receives", "after commit"),
    Step("MovedIn", "receives", "before commit"),
    Step("Rehome", "receives", "after commit"),
    Step("MoveEnded", "receives", "before commit"),
    Step("MovedIn", "sends", "after commit", "server"),
    Step("MoveIn", "sends", "after commit", "router"),
]
if NIGHTLY:
    STEPS = [Step(*each) for each in product(LETTERS, ("sends", "receives"), MOMENTS)]
    STEPS += [
        Step(message, "receives", "sent", victim) for message in LETTERS for victim in ("router", "server")
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashingServer]:
    found = CrashingServer(tmp_path_factory.mktemp("moves") / "data", shards=SHARDS, port=quiet_port())
    found.start()
    yield found
    dispose(found)


@pytest.mark.parametrize("step", STEPS, ids=str)
async def test_jobs_that_are_moved_are_there_once(server: CrashingServer, step: Step) -> None:
    if not server.running:
        server.restart()
    world = SeveralShards(server.address, f"m{next(_numbers)}", SHARDS)
    source, target = world.queue(1), world.queue(2)
    ids = [world.id(3, f"own{n}") for n in range(3)]
    for own in ids:
        await world.ok("PUSH", queue=source, data=own, jobId=own, uniqueKey=own)
    dead, token = await world.pull(source)
    await world.ok("AddLog", id=dead, message="tried")
    await world.ok("FAIL", id=dead, token=token, error="no", unrecoverable=True)
    ids += [(await world.ok("PUSH", queue=source, data=n, priority=n))["id"] for n in range(3)]
    move = {"queue": source, "action": "move", "to": target}
    server.arm(step)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.crash())
        moved = tasks.create_task(world.once("ChangeJobs", **move))
    reply = moved.result()
    assert reply is None or reply["data"] == {
        "changed": 6,
        "skipped": {},
        "examples": reply["data"]["examples"],
    }

    async def all_there() -> bool:
        return (await world.census()).keys() == set(ids)

    await eventually(all_there, "all jobs are in a queue")
    queues = {job["queue"] for job in (await world.census()).values()}
    assert queues == {target} if reply is not None else len(queues) == 1, "they were moved together"
    await world.ok("ChangeJobs", **move)
    jobs = await world.census()
    assert {job["queue"] for job in jobs.values()} == {target}
    assert (await world.ok("GetLogs", id=dead))["data"]["logs"][0]["message"] == "tried"
    assert len((await world.ok("GetAttempts", id=dead))["data"]["attempts"]) == 1
    for own in ids[:3]:
        assert (await world.ok("GetJob", id=own))["job"]["queue"] == target
        again = await world.ok("PUSH", queue=target, data="other", uniqueKey=own)
        assert again["id"] == own, "it has its key there"
    await world.work_off()
    assert world.delivered == dict.fromkeys(ids, 1)
    await world.ids_are_free(ids[:3])
