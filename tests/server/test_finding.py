"""Finding jobs on a whole server: over shards that come and go, over HTTP, and after a kill."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from support.naming import queue_on
from support.server import Server
from support.waiting import PATIENCE_S, eventually
from support.web import client, fresh_queue
from support.wire import ConnectionEnded, Wire


@pytest_asyncio.fixture
async def web(web_server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    async with client(web_server) as found:
        yield found


async def pages(wire: Wire, **wanted: Any) -> list[dict[str, Any]]:
    """All jobs of a search, page by page."""
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        page = await wire.ok("FindJobs", **wanted, **more)
        assert page.keys() == {"ok", "reqId", "jobs", "cursor", "plan", "progress"}
        found += page["jobs"]
        cursor = page["cursor"]
        if cursor is None:
            return found


async def test_after_a_kill_searches_find_what_is_there(server: Server) -> None:
    """While jobs are pushed and done everything is killed; what was acknowledged is found by its name, and
    what is found by all names is all there is."""
    acknowledged: list[str] = []
    queues = [queue_on(0), queue_on(1)]

    async def load(wire: Wire, queue: str) -> None:
        for number in itertools.count():
            names = ["rare" if number % 7 == 3 and place == 5 else "usual" for place in range(300)]
            jobs = [{"name": name, "data": number, "tags": [f"t{number % 3}"]} for name in names]
            ids = (await wire.ok("PUSHB", queue=queue, jobs=jobs))["ids"]
            acknowledged.extend(job_id for job_id, name in zip(ids, names, strict=True) if name == "rare")
            taken = await wire.ok("PULLB", queue=queue, count=150, owner="w")
            await wire.ok("ACKB", ids=[job["id"] for job in taken["jobs"]], tokens=taken["tokens"])

    wires = [await Wire.open(server.address) for _ in queues]
    loads = [asyncio.create_task(load(wire, queue)) for wire, queue in zip(wires, queues, strict=True)]
    await eventually(lambda: len(acknowledged) >= 4, "some rare jobs are there")
    server.kill_all()
    for task in loads:
        with pytest.raises(ConnectionEnded):
            await task
    server.restart()
    async with await Wire.open(server.address) as wire:
        rare = [job["id"] for job in await pages(wire, name="rare", limit=1000)]
        everything = await pages(wire, limit=1000)
        by_name = {job["id"] for job in everything if job["name"] == "rare"}
        assert set(acknowledged) <= set(rare)
        assert len(rare) == len(set(rare))
        assert set(rare) == by_name
        for tag in ("t0", "t1", "t2"):
            counted = await wire.ok("FindJobs", tag=tag, limit=0, scan=10_000_000)
            assert counted["progress"]["found"] == sum(tag in job["tags"] for job in everything)
        done = await wire.ok("FindJobs", finishedAfter=0, limit=0, scan=10_000_000)
        assert done["progress"]["found"] == sum(job["state"] == "completed" for job in everything)


async def test_a_shard_that_is_away_is_missed_by_who_needs_it(server: Server) -> None:
    here, away = queue_on(0), queue_on(1)
    async with await Wire.open(server.address) as wire:
        for queue in (here, away):
            await wire.ok("PUSH", queue=queue, data=1)
        server.kill_shards(1)
        found = await wire.ok("FindJobs", queue=here)
        assert len(found["jobs"]) == 1
        reply: dict[str, Any] = {"ok": False}
        async with asyncio.timeout(PATIENCE_S):
            while not reply["ok"]:  # refused as unavailable, until the shard is back; never half an answer
                reply = await wire.call("FindJobs")
                assert reply["ok"] or reply["code"] == "SHARD_UNAVAILABLE"
                await asyncio.sleep(0.02)  # the shard restarts meanwhile
        assert len(reply["jobs"]) == 2


async def test_jobs_are_found_over_http(web: httpx2.AsyncClient) -> None:
    queue, tag = fresh_queue(0), fresh_queue()
    for number in range(5):
        job = {"name": "7" if number % 2 else "even", "data": {"order": {"id": number}}, "tags": [tag]}
        await web.post(f"/queues/{queue}/jobs", json=job)
    other = fresh_queue(1)
    await web.post(f"/queues/{other}/jobs", json={"data": {"order": {"id": 3}}, "tags": [tag]})

    async def found(path: str, **query: Any) -> list[tuple[str, int]]:
        answer = await web.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return [(job["queue"], job["data"]["order"]["id"]) for job in answer.json()["jobs"]]

    assert await found("/jobs", tag=tag, where="data.order.id = 3") == [(other, 3), (queue, 3)]
    assert await found("/jobs", queue=queue, name="7") == [(queue, 3), (queue, 1)]
    assert await found(f"/queues/{queue}/jobs/find", name=["7", "even"], limit="2") == [
        (queue, 4),
        (queue, 3),
    ]
    assert await found("/jobs", tag=tag, data='{"order.id": 4}') == [(queue, 4)]
    page = (await web.get("/jobs", params={"tag": tag, "limit": 4, "state": "waiting"})).json()
    rest = await web.get(
        "/jobs", params={"tag": tag, "limit": 4, "state": "waiting", "cursor": page["cursor"]}
    )
    assert len(page["jobs"] + rest.json()["jobs"]) == 6
    for query, words in (({"tags": tag}, "tags is unknown"), ({"where": "colour = red"}, "no field")):
        refused = await web.get("/jobs", params=query)
        assert (refused.status_code, words in refused.text) == (422, True), refused.text


async def test_what_is_found_is_changed_over_http(web: httpx2.AsyncClient) -> None:
    queue, other, tag = fresh_queue(0), fresh_queue(1), fresh_queue()
    for number in range(5):
        await web.post(f"/queues/{queue}/jobs", json={"data": {"n": number}, "tags": [tag]})

    async def change(path: str, **fields: Any) -> list[str]:
        """The ids of all that were changed: a shard answers, and the cursor leads to the next one."""
        changed: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            answer = await web.post(path, json={**fields, **cursor})
            assert answer.status_code == 200, answer.text
            reply = answer.json()
            assert reply["data"]["changed"] == len(reply["data"]["examples"])
            changed += reply["data"]["examples"]
            if reply["cursor"] is None:
                return changed
            cursor = {"cursor": reply["cursor"]}

    wanted = {"tag": [tag], "where": "data.n >= 2"}
    dry = await change("/jobs/change", action="move", to=other, dryRun=True, **wanted)
    done = await change(f"/queues/{queue}/jobs/change", action="move", to=other, **wanted)
    assert (len(dry), done) == (3, dry)
    found = (await web.get("/jobs", params={"tag": tag, "queue": other})).json()["jobs"]
    assert sorted(job["data"]["n"] for job in found) == [2, 3, 4]
    assert (await web.get(f"/jobs/{found[0]['id']}")).json()["job"]["queue"] == other
    for fields, words in (
        ({"action": "explode", "tag": [tag]}, "action"),
        ({"action": "retry"}, "at least one condition"),
        ({"action": "move", "tag": [tag]}, "to is required"),
        ({"action": "retry", "tag": [tag], "priority": 3}, "priority is only for the action priority"),
    ):
        refused = await web.post("/jobs/change", json=fields)
        assert (refused.status_code, words in refused.text) == (422, True), refused.text
    assert len(await change("/jobs/change", action="remove", tag=[tag])) == 5
