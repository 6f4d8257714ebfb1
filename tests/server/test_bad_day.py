"""A bad day: everything in a queue fails, for three reasons.

The cause is found, the worst kind is put right and retried, and every job is accounted for.
"""

from __future__ import annotations

import asyncio

import httpx2 as httpx
from support.cli import Cli
from support.server import Server
from support.waiting import eventually

from bunqueue import AsyncQueue, Bunqueue

QUEUE = "bad-day"
KEPT = 40  # of 55 dead letters


class CardDeclined(Exception):
    """Known to need no other attempt."""


async def test_the_cause_is_found_and_every_job_accounted_for(web_server: Server) -> None:
    cli, url = Cli(web_server), f"{web_server.url}/queues/{QUEUE}"
    app, mended = Bunqueue(QUEUE, port=web_server.port), asyncio.Event()

    @app.job(max_attempts=1)
    async def charge(order: int) -> str:
        if mended.is_set():
            return "charged"
        raise ConnectionError(f"no answer from 10.0.3.{order} to order {order} of 'customer {order}'")

    @app.job(max_attempts=1)
    async def ship(order: int) -> str:
        return {"known": "shipped"}[f"order-{order}"]

    @app.job(max_attempts=3, unrecoverable=[CardDeclined])
    async def invoice(order: int) -> str:
        if order % 2:
            return "sent"
        raise CardDeclined(f"card ending {order:04d} declined")

    cli("dlq", "config", QUEUE, "--max-entries", str(KEPT))
    async with AsyncQueue(QUEUE, port=web_server.port) as queue, app:
        kinds = [(charge, 30), (ship, 20), (invoice, 10)]
        await app.add_bulk_async([task.job(order) for task, count in kinds for order in range(count)])

        async def settled(completed: int) -> bool:
            counts = await queue.counts()
            return (counts.completed, counts.waiting, counts.active) == (completed, 0, 0)

        await eventually(lambda: settled(5), "all jobs have ended")

        # How many, and of what, is exact, though some of the dead letters are gone already; that is told.
        listed = await asyncio.to_thread(cli, "errors", "list", QUEUE)
        assert "15 more dead letters of bad-day were dropped" in listed.err
        assert f"bunqueue dlq config {QUEUE} --max-entries 0 keeps all from now on" in listed.err
        groups = (await asyncio.to_thread(httpx.get, f"{url}/errors")).json()["data"]["groups"]
        assert {group["pattern"]: group["dead"] for group in groups} == {
            "ConnectionError: no answer from #.#.#.# to order # of #": 30,
            "KeyError: #": 20,
            "CardDeclined: card ending # declined": 5,
        }
        assert sum(group["kept"] for group in groups) == KEPT
        worst = max(groups, key=lambda group: group["dead"])
        shown = await asyncio.to_thread(cli, "errors", "show", QUEUE, worst["id"])
        assert "in charge" in shown.err
        assert "bunqueue dlq retry" in shown.err

        mended.set()
        answer = await asyncio.to_thread(
            httpx.post, f"{url}/dlq/retry", json={"filter": {"errorGroup": worst["id"]}}
        )
        assert answer.json()["count"] == worst["kept"]
        await eventually(lambda: settled(5 + worst["kept"]), "what was retried has completed")
        counts, stats = await queue.counts(), await queue.dlq_stats()
        assert counts.failed == KEPT - worst["kept"]
        assert counts.completed + stats.total + stats.dropped.count == 60
        assert (await queue.error_group(worst["id"])).resolved is not None
