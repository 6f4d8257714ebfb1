"""A data folder with jobs in every state on its first shard, made by a server that was stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path

from .naming import queue_on, queues_on
from .pages import settle
from .server import Server, dispose
from .wire import Wire

JOBS = 1500
FAILED = 150  # in the last batch
LIVE = 20
FILLER = "x" * 200
_ON_FIRST = queues_on(0)
QUEUE = next(_ON_FIRST)
NEIGHBOUR = next(_ON_FIRST)
"""Another queue of the same shard."""
OTHER = queue_on(1)


def make(folder: Path) -> list[str]:
    """Ids of the jobs of one queue: completed, dead, live."""
    server = Server(folder, shards=2)
    try:
        server.start()
        ids = asyncio.run(_fill(server))
        server.stop()
    finally:
        dispose(server)
    settle(folder / "shard-00.db")
    return ids


async def _fill(server: Server) -> list[str]:
    wire = await Wire.open(server.address)
    ids: list[str] = []
    for _ in range(JOBS // 150):
        jobs = [{"data": FILLER, "maxAttempts": 1}] * 150
        ids += (await wire.ok("PUSHB", queue=QUEUE, jobs=jobs))["ids"]
    for done in range(0, JOBS, 150):
        pulled = await wire.ok("PULLB", queue=QUEUE, count=150, owner="w")
        got, tokens = [job["id"] for job in pulled["jobs"]], pulled["tokens"]
        if done < JOBS - FAILED:
            await wire.ok("ACKB", ids=got, tokens=tokens, results=["done"] * 150)
        else:
            for job_id, token in zip(got, tokens, strict=True):
                await wire.ok("FAIL", id=job_id, token=token, error="no")
    ids += (await wire.ok("PUSHB", queue=QUEUE, jobs=[{"data": FILLER}] * LIVE))["ids"]
    await wire.ok("PUSHB", queue=NEIGHBOUR, jobs=[{}] * 1000)
    for _ in range(10):  # after those of the other queue, in pages of their own
        pulled = await wire.ok("PULLB", queue=NEIGHBOUR, count=100, owner="w")
        got = [job["id"] for job in pulled["jobs"]]
        await wire.ok("ACKB", ids=got, tokens=pulled["tokens"], results=[1] * 100)
    await wire.close()
    return ids
