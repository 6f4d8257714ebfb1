"""What one client may take of the gateway, and what odd requests get."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from support.procfs import open_files, resident
from support.server import Server, StartServer, quiet_port
from support.waiting import PATIENCE_S, eventually
from support.web import client, fresh_queue
from support.wire import Wire
from websockets.asyncio.client import connect

from bunqueue.gateway.app import Application
from bunqueue.gateway.events import websocket
from bunqueue.gateway.events.ws_protocol import SocketConnection
from bunqueue.gateway.http import connections
from bunqueue.gateway.http.access import NOBODY, OPEN, Known
from bunqueue.gateway.http.bodies import MemoryBudget
from bunqueue.gateway.http.commands import CommandEndpoint
from bunqueue.gateway.http.connections import Connection, Waiting
from bunqueue.gateway.http.health import Health
from bunqueue.gateway.http.problems import Problem
from bunqueue.gateway.router_client.backend import Backend
from bunqueue.server.audit.trail import Trail
from bunqueue.server.host.auth_throttle import AuthThrottle
from bunqueue.server.settings.settings import Settings


def say(server: Server, data: bytes) -> bytes:
    """What a connection answers to some bytes, until it ends or the answer is whole."""
    with socket.create_connection((server.host, server.http_port), timeout=30) as sock:
        sock.sendall(data)
        found = b""
        while b"\r\n\r\n" not in found:
            part = sock.recv(65536)
            if not part:
                break
            found += part
        return found


async def test_a_head_request_pulls_no_job(web_server: Server) -> None:
    queue = fresh_queue()
    async with client(web_server) as web:
        job = (await web.post(f"/queues/{queue}/jobs", json={})).json()["id"]
        refused = await web.head(f"/queues/{queue}/jobs")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST")
        assert (await web.head("/events")).status_code == 405  # it would never end
        assert (await web.head(f"/jobs/{job}")).status_code == 200
        assert (await web.get(f"/queues/{queue}/counts")).json()["counts"]["active"] == 0


async def test_all_methods_of_a_path_are_told(web_server: Server) -> None:
    async with client(web_server) as web:
        assert (await web.patch("/queues/q")).headers["allow"] == "DELETE, GET, HEAD"
        assert (await web.options("/jobs/a/logs")).headers["allow"] == "DELETE, GET, HEAD, POST"


async def test_ids_with_a_slash(web_server: Server) -> None:
    """What is encoded in a segment is never taken for another path, and so for another job."""
    queue = fresh_queue()
    async with client(web_server) as web, await Wire.open(web_server.address) as wire:
        for job in (f"{queue}", f"{queue}/logs", f"{queue}%2Flogs"):
            await wire.ok("PUSH", queue=queue, jobId=job, data=job)
        await wire.ok("AddLog", id=queue, message="a line")
        for job, path in ((f"{queue}/logs", "%2Flogs"), (f"{queue}%2Flogs", "%252Flogs")):
            assert (await web.get(f"/jobs/{queue}{path}")).json()["job"]["data"] == job
        assert (await web.delete(f"/jobs/{queue}%2Flogs")).json()["ok"] is True
        assert len((await web.get(f"/jobs/{queue}/logs")).json()["data"]["logs"]) == 1
        assert (await web.get(f"/jobs/{queue}%2Flogs")).status_code == 404
        assert (await web.post("/commands/Pi%6Eg", json={})).json()["ok"] is True


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"GET /stats HTTP/1.1\r\nHost: [\r\n\r\n", 403),
        (b"GET /stats HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[\r\n\r\n", 403),
        (b"GET /" + b"a" * 300 + b".js HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /assets/" + b"a" * 300 + b".js HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /assets/a%00.js HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /assets/..%2f..%2fapp.py HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /stats HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n", 431),
        (b"GET /stats HTTP/1.1\r\nHost: localhost\r\n" + b"a:b\r\n" * 300 + b"\r\n", 431),
    ],
)
def test_odd_requests_are_refused(web_server: Server, head: bytes, code: int) -> None:
    answer = say(web_server, head)
    assert answer.startswith(b"HTTP/1.1 %d " % code), answer


async def test_who_says_nothing_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the times cut short: without a request, in the middle of its head, and of a body nobody wants."""
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    monkeypatch.setattr(connections, "REST_S", 0.3)
    async with serving() as port:
        post = b"POST / HTTP/1.1\r\nContent-Length: 99\r\n\r\n{"
        for said in (b"", b"GET / HTTP/1.1\r\nHost: x\r\nX: ", post):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            async with asyncio.timeout(PATIENCE_S):
                answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 200") is said.startswith(b"POST"), said
            writer.close()


async def test_requests_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelined, with bodies, and in small pieces: the bounds are those of each head alone."""
    monkeypatch.setattr(connections, "MAX_HEAD", 1000)
    request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for begin in range(0, len(request * 5), 700):
            writer.write((request * 5)[begin : begin + 700])
            await writer.drain()
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(5):
                assert (await reader.readuntil(b"\r\n\r\nfine")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_head_that_comes_at_once_has_the_same_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_HEAD", 1000)
    async with serving() as port:
        for size, code in ((800, 200), (1200, 431)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * size + b"\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                assert (await reader.readline()).startswith(b"HTTP/1.1 %d " % code)
            writer.close()


async def test_the_log_is_not_filled_with_what_is_no_http(make_server: StartServer) -> None:
    server = make_server(http_port=quiet_port())
    server.start()
    for _ in range(10):
        leave_in_the_middle(server)
    for _ in range(50):
        assert say(server, b"NONSENSE\r\n\r\n").startswith(b"HTTP/1.1 400")
    await eventually(lambda: "requests that are not HTTP" in server.log(), "it is said")
    assert server.log().count("not HTTP") + server.log().count("Invalid HTTP") <= 3
    assert "address=127.0.0.1" in server.log()
    assert "a request failed" not in server.log()


def leave_in_the_middle(server: Server) -> None:
    """Ask for much, and reset the connection as soon as something of it comes."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.connect((server.host, server.http_port))
        sock.sendall(b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n" * 40)
        assert sock.recv(1)


@pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel does not end stuck connections"
)
async def test_who_takes_nothing_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the answer is complete for the application: its bytes are kept as long as the connection."""
    monkeypatch.setattr(connections, "STUCK_MS", 500)
    gone = asyncio.Event()

    class Watched(Connection):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            gone.set()

    async with serving(b"x" * (8 << 20), Watched) as port:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", port))
            deaf.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                await gone.wait()


@pytest.mark.parametrize(("known", "stays"), [(NOBODY, False), (OPEN, True)])
async def test_who_takes_nothing_and_has_no_token_gives_way(known: Known, stays: bool) -> None:
    """Nor does the kernel take much of an answer that nobody reads."""
    waiting, paused, left = Waiting(), asyncio.Event(), 0

    class Watched(Connection):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more, waiting=waiting)

        def on_headers_complete(self) -> None:
            self.scope["state"]["known"] = known
            super().on_headers_complete()

        def pause_writing(self) -> None:
            nonlocal left
            super().pause_writing()
            left = self.transport.get_write_buffer_size()
            paused.set()

    async with serving(b"x" * (8 << 20), Watched) as port:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", port))
            deaf.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
            async with asyncio.timeout(PATIENCE_S):
                await paused.wait()
            assert waiting.give_way() is not stays
            assert left > 7 << 20


@contextlib.asynccontextmanager
async def serving(answer: bytes = b"fine", kind: type[Connection] = Connection) -> AsyncIterator[int]:
    """The port of connections as the gateway has them, over the simplest application."""
    headers = [(b"content-length", b"%d" % len(answer))]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async with running(uvicorn.Config(app, http=kind, lifespan="off", log_config=None)) as port:
        yield port


@contextlib.asynccontextmanager
async def running(config: uvicorn.Config) -> AsyncIterator[int]:
    """The port of a server in this process."""
    server = Quiet(config)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        connections.end_stuck_ones([sock])
        task = asyncio.create_task(server.serve([sock]))
        await eventually(lambda: server.started, "it listens")
        yield sock.getsockname()[1]
        server.should_exit = True
        await task


class Quiet(uvicorn.Server):
    """Leaves signals to others."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def test_there_is_room_for_so_much_and_it_is_given_back() -> None:
    room = MemoryBudget(10)
    with room.share() as take:
        take(6)
        with room.share() as other, pytest.raises(Problem):
            other(5)
        take(4)
    with room.share() as take:
        take(10)


async def test_messages_count_like_requests(make_server: StartServer) -> None:
    server = make_server("--rate-limit", "5", http_port=quiet_port())
    server.start()
    async with connect(f"ws://{server.host}:{server.http_port}/ws", proxy=None) as ws:
        answers = []
        for number in range(6):
            await ws.send(json.dumps({"cmd": "Ping", "reqId": number}))
            answers.append(json.loads(await ws.recv()))
    assert [each["ok"] for each in answers] == [True] * 4 + [False] * 2
    assert answers[-1] == {"ok": False, "error": "Rate limit exceeded", "code": "RATE_LIMITED", "reqId": 5}


async def test_subscriptions_one_upon_the_other(web_server: Server) -> None:
    """Sent at once: the last one counts, and nothing is told twice."""
    queue = fresh_queue(0)
    async with connect(f"ws://{web_server.host}:{web_server.http_port}/ws", proxy=None) as ws:
        for number in range(10):
            await ws.send(json.dumps({"cmd": "Subscribe", "queues": [queue], "reqId": number}))
        await ws.send(json.dumps({"cmd": "PUSH", "queue": queue, "reqId": 10}))
        seen: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while "paused" not in seen:
                message = json.loads(await ws.recv())
                if message.get("reqId") == 10:
                    await ws.send(json.dumps({"cmd": "Pause", "queue": queue, "reqId": 11}))
                seen += [event["eventType"] for event in message.get("events", [])]
        assert seen == ["pushed", "paused"]
        await ws.send(json.dumps({"cmd": "Subscribe", "queues": [queue], "reqId": 12}))
        await ws.send(json.dumps({"cmd": "Unsubscribe", "reqId": 13}))
        await ws.send(json.dumps({"cmd": "Resume", "queue": queue, "reqId": 14}))
        said = [json.loads(await ws.recv()) for _ in range(3)]
        assert sorted(each["reqId"] for each in said) == [12, 13, 14]
        assert said[0]["id"]
        with pytest.raises(TimeoutError):  # several looks at the logs
            await asyncio.wait_for(ws.recv(), 1.5)


async def test_neither_waiting_nor_deaf_clients_hold_up_the_end(make_server: StartServer) -> None:
    server = make_server(http_port=quiet_port())
    server.start()
    async with client(server) as web, await Wire.open(server.address) as wire:
        deaf = await connect(f"ws://{server.host}:{server.http_port}/ws", proxy=None, max_queue=1)
        await deaf.send('{"cmd": "Subscribe"}')
        await deaf.recv()
        deaf.transport.pause_reading()
        for _ in range(20):
            await wire.ok("PUSHB", queue="many", jobs=[{"data": n} for n in range(2000)])
            await asyncio.sleep(0.1)  # so that the feed does not leave them out
        waiting = asyncio.create_task(web.get("/queues/none/jobs", params={"timeout": 60_000}))
        await asyncio.sleep(0.2)  # it mostly waits by now
        assert await asyncio.to_thread(server.stop) == 0
        answer = await waiting
        assert (answer.status_code, "stopping" in answer.json()["error"]) == (503, True)
        deaf.transport.abort()
    assert "did not stop in time" not in server.log()


def test_requests_that_wait_for_others_take_little_memory(web_server: Server) -> None:
    """One connection, no token: what comes after a request waits as bytes, and is read no further.  What is
    not given up is answered, in order."""
    slow = f"GET /queues/{fresh_queue()}/jobs?timeout=1500 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    quick = b"GET /healthz HTTP/1.1\r\n\r\n"
    last = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    pid = web_server.gateway().pid
    address = (web_server.host, web_server.http_port)
    with socket.create_connection(address, timeout=30) as flood, socket.create_connection(address) as sock:
        before = resident(pid)
        flood.sendall(slow + quick * 20_000)
        sock.sendall(slow + quick * 500 + last)
        answers = b""
        while part := sock.recv(65536):
            answers += part
        assert resident(pid) - before < 8 * 1024 * 1024
    assert re.findall(rb"HTTP/1.1 (\d+) ", answers) == [b"200"] * 501 + [b"404"]


@pytest.mark.parametrize("endless", [b"a:b\r\n" * 40_000, b"x: " + b"a" * 200_000, b"1;" + b"a" * 200_000])
def test_what_comes_beside_a_body_is_not_kept(web_server: Server, endless: bytes) -> None:
    """Headers after it, which may be sent without end, and extensions of chunks."""
    head = b"POST /commands/Ping HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection((web_server.host, web_server.http_port), timeout=30) as sock:
        sock.sendall(head + (b"" if endless.startswith(b"1;") else b"0\r\n"))
        with pytest.raises(ConnectionError):
            sock.sendall(endless * 100)


async def test_sockets_without_a_token_give_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MAX_LISTENERS", 2)
    application = Application(Settings(auth_token=("writes",)), "/nowhere")
    config = uvicorn.Config(
        application.asgi, http=Connection, ws=SocketConnection, lifespan="off", log_config=None
    )
    token = {"Authorization": "Bearer writes"}
    async with running(config) as port, asyncio.timeout(PATIENCE_S):
        url = f"ws://127.0.0.1:{port}/ws"
        async with connect(url, proxy=None) as stranger, connect(url, proxy=None, additional_headers=token):
            async with connect(url, proxy=None, additional_headers=token) as known:
                await stranger.wait_closed()
                assert stranger.close_code == 4401
                async with connect(url, proxy=None, additional_headers=token) as late:
                    await late.wait_closed()
                    assert late.close_code == 1013
                await known.send('{"cmd": "Unsubscribe"}')
                assert json.loads(await known.recv()) == {"ok": True}
        await application.stop()


async def test_the_files_of_the_dashboard_are_not_held_open(web_server: Server) -> None:
    """By clients that do not read them: nobody needs a token for them."""
    pid = web_server.gateway().pid
    with contextlib.ExitStack() as open_ones:
        for _ in range(20):
            deaf = open_ones.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect((web_server.host, web_server.http_port))
            deaf.sendall(b"GET /assets/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 250)
            assert deaf.recv(1)
        async with client(web_server) as web:
            style = await web.get("/assets/style.css")
            assert style.headers["content-type"].startswith("text/css")
            same = await web.get("/assets/style.css", headers={"If-None-Match": style.headers["etag"]})
            assert (same.status_code, same.content) == (304, b"")
        assert not [name for name in open_files(pid) if "dashboard" in name]


class Counting(CommandEndpoint):
    """In front of shards that are well."""

    asked = 0

    async def carry_out(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.asked += 1
        await asyncio.sleep(0)
        return {"ok": True, "data": {"error": None}}


@pytest.mark.parametrize(("known", "asked"), [(NOBODY, 1), (OPEN, 50)])
async def test_whether_it_is_ready_is_asked_once_for_all_without_a_token(known: Known, asked: int) -> None:
    carrier = Counting(Backend("/nowhere"), Trail(Settings(data_dir=":memory:"), "gateway"))
    health = Health(carrier, "1", AuthThrottle(), "")
    request = Request({"type": "http", "method": "GET", "headers": [], "state": {"known": known}})
    answers = await asyncio.gather(*(health.ready(request) for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert carrier.asked == asked


async def test_of_many_small_parts_some_are_parsed_in_a_turn() -> None:
    """Others have theirs before the next ones; all are parsed in the end."""
    left: list[int] = []

    class Chunks(Connection):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            left.append(len(self._ahead))

    class Frames(SocketConnection):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            left.append(len(self._unparsed))

    application = Application(Settings(), "/nowhere")
    config = uvicorn.Config(application.asgi, http=Chunks, ws=Frames, lifespan="off", log_config=None)
    async with running(config) as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        last = b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        writer.write(head + b"1\r\na\r\n" * 50_000 + last)
        answers = await reader.read()
        assert re.findall(rb"HTTP/1.1 (\d+) ", answers) == [b"404", b"200"]
        assert max(left) > 0
        left.clear()
        writer.close()
        async with connect(f"ws://127.0.0.1:{port}/ws", proxy=None) as ws:
            await ws.send(["{"] + [" "] * 20_000 + ['"cmd": "Unsubscribe"}'])
            assert json.loads(await ws.recv()) == {"ok": True}
        assert max(left) > 0
        await application.stop()
