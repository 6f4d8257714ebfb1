"""Live events over HTTP: filtered, resumed, and bounded for those who do not read."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from support.procfs import resident
from support.server import Server, StartServer, quiet_port
from support.waiting import wait_until
from support.web import client, events, fresh_queue
from support.wire import Wire


def kinds(found: list[dict[str, Any]]) -> list[str]:
    return [event["eventType"] for event in found]


async def test_everything_that_happens_to_a_job(web_server: Server) -> None:
    queue = fresh_queue(1)
    async with client(web_server) as web, events(web, params={"queue": queue}) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        job = (await web.post(f"/queues/{queue}/jobs", json={"data": 1})).json()["id"]
        await web.get(f"/queues/{queue}/jobs")
        await web.put(f"/jobs/{job}/progress", json={"progress": 40, "message": "on it"})
        await web.post(f"/jobs/{job}/fail", json={"error": "no luck"})
        found = await stream.take(5)
        assert kinds(found)[:4] == ["pushed", "pulled", "progress", "failed"]
        assert {event["queue"] for event in found} == {queue}
        assert {event["jobId"] for event in found} == {job}
        assert (found[2]["progress"], found[2]["message"], found[3]["error"]) == (40, "on it", "no luck")
        assert all(isinstance(event["timestamp"], int) for event in found)


async def test_only_what_was_asked_for(web_server: Server) -> None:
    mine, other = fresh_queue(0), fresh_queue(1)
    async with client(web_server) as web:
        params = {"queue": [mine, other], "event": ["completed", "paused"]}
        async with events(web, params=params) as stream:
            job = (await web.post(f"/queues/{mine}/jobs", json={})).json()["id"]
            await web.get(f"/queues/{mine}/jobs")
            await web.post(f"/jobs/{job}/ack")
            await web.post(f"/queues/{other}/pause")
            found = await stream.take(2)
        assert sorted(kinds(found)) == ["completed", "paused"]
        job = (await web.post(f"/queues/{mine}/jobs", json={})).json()["id"]
        async with events(web, params={"job": job}) as stream:
            await web.post(f"/queues/{mine}/jobs", json={})
            await web.delete(f"/jobs/{job}")
            assert (await stream.next())["eventType"] == "removed"


async def test_who_comes_back_has_missed_nothing(web_server: Server) -> None:
    queues = [fresh_queue(0), fresh_queue(1)]
    async with client(web_server) as web, await Wire.open(web_server.address) as wire:
        async with events(web, params={"queue": queues}) as stream:
            await wire.ok("PUSH", queue=queues[0], data=0)
            await wire.ok("PUSH", queue=queues[1], data=0)
            await stream.take(2)
            last = stream.last_id
        for queue in queues:
            await wire.ok("PUSHB", queue=queue, jobs=[{"data": n} for n in range(3000)])
        headers = {"Last-Event-ID": last}
        async with (
            client(web_server) as again,
            events(again, params={"queue": queues}, headers=headers) as stream,
        ):
            await wire.ok("PUSH", queue=queues[0], data="last")
            found = await stream.take(6001)
            assert kinds(found) == ["pushed"] * 6001
            assert len({event["jobId"] for event in found}) == 6001
            for shard in (0, 1):
                numbers = [event["seq"] for event in found if event["shard"] == shard]
                assert numbers == sorted(numbers)


async def test_a_place_of_another_server_is_refused(web_server: Server) -> None:
    async with client(web_server) as web:
        for wrong in ("1", "1-2-3", "a-b", "1--2", "99999999999999999999-1"):
            answer = await web.get("/events", headers={"Last-Event-ID": wrong})
            assert (answer.status_code, answer.json()["ok"]) == (400, False)
        answer = await web.get("/events", params={"event": "no-such-event"})
        assert answer.status_code == 422
        assert "no-such-event" in answer.json()["error"]


async def test_those_who_do_not_read_cost_little_and_are_told(make_server: StartServer) -> None:
    server = make_server(http_port=quiet_port())
    server.start()
    gateway = server.gateway()
    deaf = [socket.create_connection((server.host, server.http_port)) for _ in range(40)]
    for sock in deaf:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with client(server) as web, await Wire.open(server.address) as wire:
        async with events(web, params={"event": "paused"}) as stream:
            before = resident(gateway.pid)
            for _ in range(20):
                await wire.ok("PUSHB", queue="many", jobs=[{"data": n} for n in range(5000)])
            await wire.ok("Pause", queue="many")
            found = [await stream.next()]
            while found[-1]["eventType"] != "paused":
                found.append(await stream.next())
        assert resident(gateway.pid) - before < 60 << 20
        lost = [event["count"] for event in found if event["eventType"] == "lost"]
        assert lost
        assert sum(lost) < 100_001
    for sock in deaf:
        sock.close()


async def test_streams_end_with_the_server(make_server: StartServer) -> None:
    server = make_server(http_port=quiet_port())
    server.start()
    async with client(server) as web, events(web) as stream:
        status = asyncio.create_task(asyncio.to_thread(server.stop))
        ended = [line async for line in stream._lines]
        assert not [line for line in ended if line.startswith("data")]
        assert await status == 0
    wait_until(lambda: not server.left_over(), "nothing is left")
    assert "did not stop in time" not in server.log()


async def test_streams_go_on_while_a_shard_is_away(web_server: Server) -> None:
    queue = fresh_queue(0)
    async with client(web_server) as web, events(web, params={"queue": queue}) as stream:
        web_server.kill_shards(1)
        async with await Wire.open(web_server.address) as wire:
            await wire.ok("PUSH", queue=queue, data=1)
        assert (await stream.next())["eventType"] == "pushed"
