"""Events and waits over a whole server: two shards, a router, connections that come and go."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from support.naming import queue_on
from support.server import Server, StartServer
from support.waiting import eventually
from support.wire import Wire

from shardproc.storage.event_log import read


async def next_event(wire: Wire) -> dict[str, Any]:
    message = await wire.next_stray()
    assert message["type"] == "event"
    event: dict[str, Any] = message["event"]
    return event


async def test_events_of_the_queue_that_was_asked_for_last(server: Server) -> None:
    first, second = (queue_on(shard) for shard in (0, 1))
    async with await Wire.open(server.address) as ear, await Wire.open(server.address) as wire:
        await ear.ok("SubscribeEvents", queue=first)
        pushed = (await wire.ok("PUSH", queue=first, data=1))["id"]
        event = await next_event(ear)
        assert (event["eventType"], event["queue"], event["jobId"]) == ("pushed", first, pushed)
        await ear.ok("SubscribeEvents", queue=second)
        await wire.ok("PUSH", queue=first, data=1)
        await wire.ok("PUSHB", queue=second, jobs=[{}] * 3)
        assert [(await next_event(ear))["queue"] for _ in range(3)] == [second] * 3
        await ear.ok("UnsubscribeEvents")
        await wire.ok("PUSH", queue=second, data=1)
        await ear.ok("Ping")
        assert ear.stray.empty()


async def test_the_connection_of_a_subscriber_ends_with_its_shard(server: Server) -> None:
    lost, kept = (queue_on(shard) for shard in (0, 1))
    async with await Wire.open(server.address) as ear, await Wire.open(server.address) as other:
        await ear.ok("SubscribeEvents", queue=lost)
        await other.ok("SubscribeEvents", queue=kept)
        server.kill_shards(0)
        await ear.until_ended()
        async with await Wire.open(server.address) as wire:
            await wire.ok("PUSH", queue=kept, data=1)
            assert (await next_event(other))["queue"] == kept


async def test_a_subscriber_that_does_not_read_is_told_how_much_it_missed(server: Server) -> None:
    queue = queue_on(0)
    async with await Wire.open(server.address) as ear, await Wire.open(server.address) as wire:
        await ear.ok("SubscribeEvents", queue=queue)
        ear.pause_reading()
        for _ in range(200):  # some 30 MB of events
            await wire.ok("PUSHB", queue=queue, jobs=[{}] * 1000)
        await wire.ok("Ping")  # nobody waits for it
        ear.resume_reading()
        seen, missed = 0, 0
        while not missed:
            event = await next_event(ear)
            seen += event["eventType"] == "pushed"
            missed += event["count"] if event["eventType"] == "lost" else 0
        while seen + missed < 200_000:
            event = await next_event(ear)
            seen += event["eventType"] == "pushed"
            missed += event["count"] if event["eventType"] == "lost" else 0
        assert seen + missed == 200_000
        assert missed > 1000


async def test_waiting_for_jobs_of_both_shards(server: Server) -> None:
    async with await Wire.open(server.address) as waiter, await Wire.open(server.address) as wire:
        for shard in (0, 1):
            queue = queue_on(shard)
            job_id = (await wire.ok("PUSH", queue=queue, data=1))["id"]
            waits = waiter.send_many([{"cmd": "WaitJob", "id": job_id}] * 30)
            await wire.ok("PULL", queue=queue)
            await wire.ok("ACK", id=job_id, result=shard)
            for reply in await asyncio.gather(*waits):
                assert (reply["completed"], reply["result"]) == (True, shard)


async def test_the_log_on_disk_outlives_a_kill(server: Server) -> None:
    async with await Wire.open(server.address) as wire:
        ids = [(await wire.ok("PUSH", queue=queue_on(shard), data=1))["id"] for shard in (0, 1)]
    server.kill_all()
    for shard, job_id in enumerate(ids):
        with closing(sqlite3.connect(Path(server.data_dir) / f"shard-{shard:02d}.db")) as db:
            events = read(db, 0, 10)
        assert [(event.seq, event.kind, event.job_id) for event in events] == [(1, "pushed", job_id)]


async def test_the_log_is_read_page_by_page(server: Server) -> None:
    queues = [queue_on(shard) for shard in (0, 1)]
    async with await Wire.open(server.address) as wire:
        for queue in queues:
            await wire.ok("PUSHB", queue=queue, jobs=[{}] * 30)
        between = (await wire.ok("GetEvents", limit=1))["events"][0]["timestamp"]
        job = (await wire.ok("PUSH", queue=queues[0]))["id"]
        await wire.ok("Pause", queue=queues[1])
        seen: list[tuple[int, int]] = []
        after = [0, 0]
        while True:
            page = await wire.ok("GetEvents", after=after, limit=7)
            seen += [(event["shard"], event["seq"]) for event in page["events"]]
            assert len(page["events"]) <= 14
            after = [place["after"] for place in page["places"]]
            if after == [place["last"] for place in page["places"]]:
                break
        assert sorted(seen) == [(shard, seq) for shard in (0, 1) for seq in range(1, 32)]
        for question, kinds in (
            ({"after": after}, []),
            ({"after": [-1, -1]}, []),
            ({"jobId": job}, ["pushed"]),
            ({"types": ["paused"]}, ["paused"]),
            ({"queues": ["nobody"]}, []),
            ({"queues": [queues[1]], "types": ["pushed"], "limit": 2}, ["pushed", "pushed"]),
            ({"since": time.time() * 1000 + 60_000}, []),
        ):
            page = await wire.ok("GetEvents", **question)
            assert [event["eventType"] for event in page["events"]] == kinds, question
        assert len((await wire.ok("GetEvents", since=between))["events"]) == 62
        assert (await wire.ok("GetEvents", after=[99, -1]))["places"][0]["after"] == 31


async def test_events_that_were_forgotten_are_counted(make_server: StartServer) -> None:
    server = make_server("--events-max-count", "0")
    server.start()
    queue = queue_on(0)
    async with await Wire.open(server.address) as wire:
        for _ in range(5):
            await wire.ok("PUSHB", queue=queue, jobs=[{}] * 1000)

        async def forgotten() -> int:
            found: int = (await wire.ok("GetEvents", after=[0, 0], limit=0))["places"][0]["missed"]
            return found

        await eventually(forgotten, "the oldest events are gone")
        page = await wire.ok("GetEvents", after=[0, 0], limit=1)
        assert page["events"][0]["seq"] == page["places"][0]["missed"] + 1
