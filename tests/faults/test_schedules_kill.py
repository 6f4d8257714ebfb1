"""Schedules in real processes: shards are killed around their instants, workers register and leave."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from support.naming import queue_on
from support.server import Server, StartServer
from support.wire import ConnectionEnded, Wire

EVERY = 250  # ms
KILLS = 6
COMES_BACK_S = 30.0


async def ask(server: Server, cmd: str, **fields: Any) -> dict[str, Any]:
    """An answer that is ok, however long the shards need to come back."""
    async with asyncio.timeout(COMES_BACK_S):
        while True:
            try:
                async with await Wire.open(server.address) as wire:
                    reply = await wire.call(cmd, **fields)
            except (ConnectionEnded, ConnectionError):
                reply = {"ok": False}
            if reply["ok"]:
                return reply
            await asyncio.sleep(0.05)


async def test_one_job_an_instant_though_shards_are_killed(make_server: StartServer) -> None:
    server = make_server()
    server.start()
    queues = [queue_on(0), queue_on(1)]
    first = {}
    for queue in queues:
        fields = {"name": queue, "queue": queue, "repeatEvery": EVERY, "preventOverlap": False}
        first[queue] = (await ask(server, "Cron", **fields))["cron"]["nextRun"]
    rng = random.Random(7)
    for _ in range(KILLS):
        await asyncio.sleep(rng.uniform(0.3, 0.8))
        server.kill_shards(rng.randrange(2))
        await ask(server, "CronList")  # both are back
    await asyncio.sleep(3 * EVERY / 1000)
    for queue in queues:
        before = (await ask(server, "CronGet", name=queue))["cron"]
        await ask(server, "CronDelete", name=queue)
        jobs = (await ask(server, "GetJobs", queue=queue, limit=1000))["jobs"]
        instants = Counter((job["createdAt"] - first[queue]) // EVERY for job in jobs)
        assert max(instants.values()) == 1, "one job an instant"
        assert len(jobs) > KILLS
        assert before["executions"] <= len(jobs) <= before["executions"] + 2, "one job a run"
        assert (before["nextRun"] - first[queue]) % EVERY == 0, "the grid is kept"
    server.stop()


async def test_a_registered_worker_is_known_to_the_shard_even_a_new_one(make_server: StartServer) -> None:
    server = make_server()
    server.start()
    queue = queue_on(1)
    fields = {"queue": queue, "repeatEvery": 100, "preventOverlap": False, "skipIfNoWorker": True}
    await ask(server, "Cron", name="c", **fields)

    async def runs_within(seconds: float) -> int:
        before = (await ask(server, "CronGet", name="c"))["cron"]["executions"]
        await asyncio.sleep(seconds)
        return int((await ask(server, "CronGet", name="c"))["cron"]["executions"]) - before

    assert await runs_within(0.3) == 0
    async with await Wire.open(server.address) as worker:
        await worker.ok("RegisterWorker", name="w", queues=[queue])
        assert await runs_within(0.5) > 0
        server.kill_shards(1)
        assert await runs_within(0.5) > 0
        await worker.ok("RegisterWorker", name="w", queues=["other"], workerId="second")
    await asyncio.sleep(0.2)
    assert await runs_within(0.4) == 0
    server.stop()
