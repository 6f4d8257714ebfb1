"""Commands and events over a WebSocket."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from support.server import Server, StartServer, quiet_port
from support.waiting import eventually
from support.web import client, fresh_queue
from support.websocket import socket
from websockets.exceptions import ConnectionClosed, InvalidStatus


async def test_commands(web_server: Server) -> None:
    queue = fresh_queue(1)
    async with socket(web_server) as ws:
        pushed = await ws.call("PUSH", queue=queue, data={"n": 1})
        pulled = await ws.call("PULL", queue=queue, timeout=60_000)
        assert pulled["job"]["id"] == pushed["id"]
        assert await ws.call("ACK", id=pushed["id"], result=5) == {"ok": True, "reqId": 3}
        refused = await ws.call("GetJob", id="none")
        said = {"ok": False, "error": "Job not found", "code": "JOB_NOT_FOUND"}
        assert refused == {**said, "field": "id", "value": "none", "reqId": 4}
        assert (await ws.call("Hello"))["error"] == "Unknown command: Hello"
        await ws.connection.send("nonsense")
        assert json.loads(await ws.connection.recv())["ok"] is False


async def test_events_by_queue_type_and_job(web_server: Server) -> None:
    queue, other = fresh_queue(0), fresh_queue(1)
    async with socket(web_server) as ws:
        assert (await ws.call("Subscribe", queues=[queue], types=["pushed", "removed"]))["ok"]
        jobs = [(await ws.call("PUSH", queue=name, data=1))["id"] for name in (queue, other, queue)]
        await ws.call("RemoveJob", id=jobs[0])
        found = [(event["eventType"], event["jobId"]) for event in await ws.until(3)]
        assert found == [("pushed", jobs[0]), ("pushed", jobs[2]), ("removed", jobs[0])]
        assert (await ws.call("Subscribe", jobId=jobs[1]))["ok"]
        await ws.call("RemoveJob", id=jobs[2])
        await ws.call("RemoveJob", id=jobs[1])
        assert (await ws.until(4))[3]["jobId"] == jobs[1]
        assert (await ws.call("Unsubscribe"))["ok"]
        place = ws.last_id
    async with socket(web_server) as ws:
        await ws.call("PUSH", queue=queue, data=2)
        assert (await ws.call("Subscribe", queues=[queue], after=place))["ok"]
        assert (await ws.until(1))[0]["eventType"] == "pushed"
        for wrong in ({"after": "x-y-z"}, {"types": ["nothing"]}, {"queues": "q"}, {"jobId": 5}):
            assert (await ws.call("Subscribe", **wrong))["ok"] is False


async def test_tokens(make_server: StartServer) -> None:
    server = make_server("--auth-token", "writes", "--read-only-token", "reads", http_port=quiet_port())
    server.start()
    async with socket(server) as ws:
        assert (await ws.call("Ping"))["error"] == "Not authenticated"
        with pytest.raises(ConnectionClosed):
            await ws.connection.recv()
        assert ws.connection.close_code == 4401
    async with socket(server) as ws:
        assert (await ws.call("Auth", token="reads"))["ok"]
        assert (await ws.call("Stats"))["ok"]
        assert "may only read" in (await ws.call("PUSH", queue="q"))["error"]
    async with socket(server, additional_headers={"Authorization": "Bearer writes"}) as ws:
        assert (await ws.call("PUSH", queue="q"))["ok"]


async def test_before_a_token_there_is_one_short_message(make_server: StartServer) -> None:
    server = make_server("--auth-token", "writes", http_port=quiet_port())
    server.start()
    large = json.dumps({"cmd": "PUSH", "queue": "q", "data": "x" * 200_000, "reqId": 9})
    for sent in (large, ["{", '"cmd": "Auth"}'], ["x"] * 3):
        async with socket(server) as ws:
            with suppress(ConnectionClosed):
                await ws.connection.send(sent)
            with pytest.raises(ConnectionClosed):
                await ws.connection.recv()
            assert ws.connection.close_code == 1006, "no closing handshake"
    async with socket(server) as ws:
        assert (await ws.call("Auth", token="writes"))["ok"]
        await ws.connection.send(large)
        assert json.loads(await ws.connection.recv())["ok"]
        await ws.connection.send([large[:100], large[100:]])
        assert json.loads(await ws.connection.recv())["ok"]


async def test_wrong_tokens_are_logged_and_counted(make_server: StartServer) -> None:
    server = make_server("--auth-token", "writes", http_port=quiet_port())
    server.start()
    async with client(server, "guess") as web:
        assert (await web.get("/stats")).status_code == 401
    async with socket(server) as ws:
        assert (await ws.call("Auth", token="another"))["error"] == "Invalid token"
    await eventually(lambda: "wrong tokens over HTTP wrong=" in server.log(), "it is said")
    assert "address=127.0.0.1" in server.log()
    assert "guess" not in server.log()
    async with client(server, "writes") as web:
        assert 'bunqueue_wrong_tokens_total{transport="tcp"} 0.0\n' in (await web.get("/prometheus")).text

        async def counted() -> bool:
            return (
                'bunqueue_wrong_tokens_total{transport="http"} 2.0\n' in (await web.get("/prometheus")).text
            )

        await eventually(counted, "both are counted")


async def test_pages_of_other_sites(web_server: Server) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with socket(web_server, origin="https://evil.example"):
            pass
    assert caught.value.response.status_code == 403


async def test_who_leaves_while_waiting_gets_no_job(web_server: Server) -> None:
    queue = fresh_queue(0)
    async with socket(web_server) as ws:
        await ws.connection.send(json.dumps({"cmd": "PULL", "queue": queue, "timeout": 60_000}))
        await ws.call("Ping")
    async with socket(web_server) as ws:
        for _ in range(100):
            await ws.call("PUSH", queue=queue)
            if (await ws.call("PULL", queue=queue, timeout=100))["job"] is not None:
                return
    pytest.fail("the pull was not given up")


async def test_sockets_end_with_the_server(make_server: StartServer) -> None:
    server = make_server(http_port=quiet_port())
    server.start()
    async with socket(server) as ws:
        await ws.call("Subscribe")
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        with pytest.raises(ConnectionClosed):
            await ws.until(1)
        assert await stopping == 0
