"""Schedules in real processes: shards are killed around their instants, workers register and leave."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

from support.budget import budget
from support.naming import queue_on
from support.server import Server, StartServer, quiet_port
from support.waiting import PATIENCE_S, eventually
from support.wire import ConnectionEnded, Wire

EVERY = 250  # ms
KILLS = budget(3, 30)


async def ask(server: Server, cmd: str, **fields: Any) -> dict[str, Any]:
    """An answer that is ok, however long the shards need to come back."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with await Wire.open(server.address) as wire:
                    reply = await wire.call(cmd, **fields)
            except (ConnectionEnded, ConnectionError):
                reply = {"ok": False}
            if reply["ok"]:
                return reply
            await asyncio.sleep(0.05)  # between two tries


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
        await asyncio.sleep(rng.uniform(0.3, 0.8))  # a shard dies at any moment
        server.kill_shards(rng.randrange(2))
        await ask(server, "CronList")  # both are back
    await asyncio.sleep(3 * EVERY / 1000)  # a few instants without a kill
    for queue in queues:
        await ask(server, "CronPause", name=queue)
        before = (await ask(server, "CronGet", name=queue))["cron"]
        jobs = (await ask(server, "GetJobs", queue=queue, limit=1000))["jobs"]
        instants = Counter((job["createdAt"] - first[queue]) // EVERY for job in jobs)
        assert max(instants.values()) == 1, "one job an instant"
        assert {(job["scheduledFor"] - first[queue]) % EVERY for job in jobs} == {0}
        assert len({job["scheduledFor"] for job in jobs}) == len(jobs), "each knows its own"
        assert len(jobs) > KILLS
        assert len(jobs) == before["executions"], "one job a run"
        assert (before["nextRun"] - first[queue]) % EVERY == 0, "the grid is kept"
    server.stop()


async def test_runs_that_wait_are_neither_lost_nor_doubled_though_everything_is_killed(
    make_server: StartServer,
) -> None:
    """Shards and the whole server die, also between the end of a job and the next one's beginning."""
    server = make_server(port=quiet_port())
    server.start()
    queue = queue_on(0)
    fields = {"repeatEvery": EVERY, "overlap": "queue", "onMissed": "all", "maxBacklog": 1000}
    first = (await ask(server, "Cron", name="c", queue=queue, **fields))["cron"]["nextRun"]
    stopping = asyncio.Event()
    worked: list[str] = []

    async def work() -> None:
        while not stopping.is_set():
            with suppress(ConnectionEnded, ConnectionError):
                async with await Wire.open(server.address) as wire:
                    while not stopping.is_set():
                        reply = await wire.call("PULL", queue=queue, owner="w", timeout=200, lockTtl=2000)
                        if reply["ok"] and reply.get("job") is not None:
                            job = reply["job"]["id"]
                            done = await wire.call("ACK", id=job, token=reply["token"])
                            worked.extend([job] if done["ok"] else [])
            await asyncio.sleep(0.05)  # between two tries

    working = asyncio.create_task(work())
    rng = random.Random(11)
    for number in range(KILLS):
        await asyncio.sleep(rng.uniform(0.3, 0.9))  # it dies at any moment
        if number % 2:
            await asyncio.to_thread(server.kill_all)
            await asyncio.to_thread(server.restart)
        else:
            server.kill_shards(0)
        await ask(server, "CronList")

    async def is_done() -> bool:
        cron = (await ask(server, "CronGet", name="c"))["cron"]
        return "backlog" not in cron and cron["lastRun"].get("outcome") == "completed"

    cron = (await ask(server, "CronGet", name="c"))["cron"]
    await eventually(is_done, "nothing waits any more")
    stopping.set()
    await working
    after: dict[str, Any] = {}
    while after.get("executions") != (now := (await ask(server, "CronGet", name="c"))["cron"])["executions"]:
        after, jobs = now, (await ask(server, "GetJobs", queue=queue, limit=1000))["jobs"]
    assert after["executions"] >= cron["executions"] > KILLS
    assert len(jobs) + after.get("backlog", 0) == after["executions"], "one job a run"
    assert after["executions"] == (after["nextRun"] - first) // EVERY, "one run a time"
    times = sorted(job["scheduledFor"] for job in jobs)
    assert times == [first + EVERY * number for number in range(len(jobs))], "each knows its own time"
    assert len(worked) == len(set(worked)), "each ended once"
    server.stop()


async def test_a_registered_worker_is_known_to_the_shard_even_a_new_one(make_server: StartServer) -> None:
    server = make_server()
    server.start()
    queue = queue_on(1)
    fields = {"queue": queue, "repeatEvery": 100, "preventOverlap": False, "skipIfNoWorker": True}
    await ask(server, "Cron", name="c", **fields)

    async def executions() -> int:
        return int((await ask(server, "CronGet", name="c"))["cron"]["executions"])

    async def runs() -> bool:
        before = await executions()
        await asyncio.sleep(0.4)  # in which it would run
        return await executions() > before

    async def rests() -> bool:
        return not await runs()

    assert await rests()
    async with await Wire.open(server.address) as worker:
        await worker.ok("RegisterWorker", name="w", queues=[queue])
        await eventually(runs, "it runs where a worker is")
        server.kill_shards(1)
        await eventually(runs, "it goes on after the restart")
        await worker.ok("RegisterWorker", name="w", queues=["other"], workerId="second")
    await eventually(rests, "it stops when its worker serves another queue")
    server.stop()


async def test_a_name_that_two_queues_want_at_once_goes_to_one(make_server: StartServer) -> None:
    server = make_server()
    server.start()
    queues = [queue_on(0), queue_on(1), queue_on(0, "second")]
    wanted = [(f"name-{number}", queue) for number in range(50) for queue in queues]
    async with await Wire.open(server.address) as one, await Wire.open(server.address) as other:
        wires = [one, other]
        asked = [
            wires[place % 2].call("Cron", name=name, queue=queue, repeatEvery=3_600_000, move=False)
            for place, (name, queue) in enumerate(wanted)
        ]
        replies = await asyncio.gather(*asked)
        refused = [reply for reply in replies if not reply["ok"]]
        assert len(refused) == 100
        assert {reply["code"] for reply in refused} == {"SCHEDULE_CONFLICT"}
        winners = {reply["cron"]["name"]: reply["cron"]["queue"] for reply in replies if reply["ok"]}
        crons = (await one.ok("CronList"))["crons"]
        assert [cron["name"] for cron in crons] == sorted(winners)
        assert {cron["name"]: cron["queue"] for cron in crons} == winners
        moved = await one.ok("Cron", name="name-0", queue=queues[1], repeatEvery=1000)  # as the reference
        assert moved["cron"]["queue"] == queues[1]
        assert len((await one.ok("CronList"))["crons"]) == 50
    server.stop()


async def test_what_became_of_a_run_is_known_however_the_server_ends(make_server: StartServer) -> None:
    server = make_server()
    server.start()
    queue = queue_on(1)
    await ask(server, "Cron", name="c", queue=queue, repeatEvery=1000, immediately=True)
    async with await Wire.open(server.address) as worker:
        pulled = await worker.ok("PULL", queue=queue, owner="w", timeout=60_000)
        job = pulled["job"]
        server.kill_shards(1)
        await ask(server, "CronPause", name="c")
        last = (await ask(server, "CronGet", name="c"))["cron"]["lastRun"]
        assert (last["jobId"], last.get("outcome")) == (job["id"], None)
        await worker.ok("ACK", id=job["id"], token=pulled["token"])
        server.kill_all()
    server.start()
    last = (await ask(server, "CronGet", name="c"))["cron"]["lastRun"]
    assert (last["jobId"], last["outcome"]) == (job["id"], "completed")
    server.stop()


async def test_runs_that_are_missed_are_in_the_log_the_metric_and_the_list(make_server: StartServer) -> None:
    server = make_server()
    server.start()
    await ask(server, "Cron", name="sought", queue=queue_on(1), repeatEvery=200)
    server.kill_all()
    await asyncio.sleep(0.5)  # times pass while nothing runs
    server.start()
    missed = 0
    async with asyncio.timeout(PATIENCE_S):
        while not missed:
            missed = (await ask(server, "CronGet", name="sought"))["cron"].get("missed", 0)
    assert missed >= 2
    assert "a schedule missed runs while the server was down shard=1 schedule=sought" in server.whole_log()
    metrics = (await ask(server, "Prometheus"))["data"]["metrics"]
    (line,) = [
        each for each in metrics.splitlines() if each.startswith('bunqueue_cron_runs_missed_total{shard="1"')
    ]
    assert float(line.split()[-1]) >= 2
    server.stop()
