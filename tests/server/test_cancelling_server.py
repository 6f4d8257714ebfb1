"""Cancelling a running job through a whole server: the notice finds its connection, also after a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.naming import queue_on
from support.server import Server
from support.waiting import eventually
from support.wire import Wire

LONG_MS = 60_000  # a timeout that is never reached


async def pulled(worker: Wire, queue: str, **fields: Any) -> tuple[str, str]:
    """A job that the worker holds: its id and token."""
    await worker.ok("PUSH", queue=queue, data=1, **fields)
    reply = await worker.ok("PULLB", queue=queue, count=1, owner="w", signals=True)
    return reply["jobs"][0]["id"], reply["tokens"][0]


async def test_the_notice_comes_to_the_connection_that_pulled_the_job(shared_server: Server) -> None:
    """Jobs of both shards; some have ids of their own, which may point to the other shard."""
    queues = [queue_on(number % 2, f"notice-{number}") for number in range(8)]
    async with (
        await Wire.open(shared_server.address) as worker,
        await Wire.open(shared_server.address) as boss,
    ):
        for number, queue in enumerate(queues):
            own = {"jobId": f"{queue}-own"} if number > 1 else {}
            job_id, token = await pulled(worker, queue, **own)
            assert (await boss.ok("Cancel", id=job_id, running=True, reason="stop", grace=LONG_MS))["running"]
            notice = await worker.next_stray()
            assert notice == {
                "type": "cancel",
                "cancel": {"id": job_id, "token": token, "reason": "stop", "grace": LONG_MS},
            }
            waiting = boss.send("WaitJob", id=job_id, timeout=LONG_MS)
            reply = await worker.ok("FAIL", id=job_id, token=token, error="stopped")
            assert reply["data"] == {"applied": False, "reason": "cancelled"}
            assert (await waiting)["state"] == "cancelled"
        assert boss.stray.empty()


async def test_a_parked_pull_that_listens(shared_server: Server) -> None:
    queue = "parked"
    async with (
        await Wire.open(shared_server.address) as worker,
        await Wire.open(shared_server.address) as boss,
    ):
        poll = worker.send("PULL", queue=queue, timeout=LONG_MS, owner="w", signals=True)
        job_id = (await boss.ok("PUSH", queue=queue, data=1))["id"]
        assert (await poll)["job"]["id"] == job_id
        await boss.ok("Cancel", id=job_id, running=True, grace=0)
        assert (await worker.next_stray())["cancel"]["grace"] == 0
        assert (await boss.ok("GetState", id=job_id))["state"] == "cancelled"


@pytest.mark.parametrize("what", ["kill_shards", "kill_all"])
async def test_after_a_restart_the_heartbeat_tells(server: Server, what: str) -> None:
    queues = [
        queue_on(number // 2, f"{number}") for number in range(4)
    ]  # jobs of both shards, so that the answer is put together
    async with await Wire.open(server.address) as worker, await Wire.open(server.address) as boss:
        jobs = [await pulled(worker, queue) for queue in queues]
        ids, tokens = [job_id for job_id, _ in jobs], [token for _, token in jobs]
        await worker.ok("JobHeartbeatB", ids=ids, tokens=tokens)
        await asyncio.gather(*[boss.ok("Cancel", id=job_id, running=True, grace=600_000) for job_id in ids])
    getattr(server, what)()
    if what == "kill_all":
        server.restart()
    async with await Wire.open(server.address) as again:

        async def told() -> bool:
            reply = await again.call("JobHeartbeatB", ids=ids, tokens=tokens)
            return sorted(n["id"] for n in reply.get("data", {}).get("cancelled", ())) == sorted(ids)

        await eventually(told, "all shards tell what is to stop")
        for job_id, token in jobs:
            reply = await again.ok("ACK", id=job_id, token=token, result=1)
            assert reply["data"]["reason"] == "cancelled"
            assert (await again.ok("GetState", id=job_id))["state"] == "cancelled"
