"""How long jobs say that they are kept, on a server that is killed in between, and over HTTP."""

from __future__ import annotations

from support.naming import queue_on
from support.server import Server
from support.waiting import eventually
from support.web import client, fresh_queue
from support.wire import Wire

HOUR_MS = 3_600_000
SOON_MS = 2_000


async def end(wire: Wire, queue: str, fails: bool = False) -> None:
    pulled = await wire.ok("PULL", queue=queue, owner="w")
    outcome = {"id": pulled["job"]["id"], "token": pulled["token"]}
    if fails:
        await wire.ok("FAIL", **outcome, error="no", unrecoverable=True)
    else:
        await wire.ok("ACK", **outcome, result=1)


async def test_after_a_kill_jobs_go_when_they_said_so(server: Server) -> None:
    """On each shard one that has ended, one that is at work, and one that waits, when all are killed."""
    queues = [queue_on(number, server.shards) for number in range(server.shards)]
    short: list[str] = []
    long: list[str] = []
    async with await Wire.open(server.address) as wire:
        for queue in queues:
            for fails in (False, True):
                for ids, age in ((short, SOON_MS), (long, HOUR_MS)):
                    kept = {"keepFailed" if fails else "keepCompleted": age}
                    ids.append((await wire.ok("PUSH", queue=queue, **kept))["id"])
                    await end(wire, queue, fails)
            for ids, age in ((short, SOON_MS), (long, HOUR_MS)):
                ids.append((await wire.ok("PUSH", queue=queue, keepCompleted=age))["id"])
    server.kill_all()
    server.restart()
    async with await Wire.open(server.address) as wire:
        for queue in queues:
            await end(wire, queue)
            await end(wire, queue)

        async def states(ids: list[str]) -> set[str]:
            return {(await wire.ok("GetState", id=job_id))["state"] for job_id in ids}

        async def are_gone() -> bool:
            return await states(short) == {"unknown"}

        await eventually(are_gone, "those that were to be kept for seconds are gone")
        assert await states(long) == {"completed", "failed"}
        for queue in queues:
            counts = (await wire.ok("GetJobCounts", queue=queue))["counts"]
            assert (counts["completed"], counts["failed"]) == (2, 1)


async def test_over_http(web_server: Server) -> None:
    queue = fresh_queue()
    async with client(web_server) as web:
        fields = {"data": {}, "keepCompleted": HOUR_MS, "keepFailed": 5}
        added = (await web.post(f"/queues/{queue}/jobs", json=fields)).json()
        job = (await web.get(f"/jobs/{added['id']}")).json()["job"]
        assert (job["keepCompleted"], job["keepFailed"]) == (HOUR_MS, 5)
        refused = await web.post(f"/queues/{queue}/jobs", json={"data": {}, "keepFailed": 0})
        assert (refused.status_code, refused.json()["field"]) == (422, "keepFailed")
