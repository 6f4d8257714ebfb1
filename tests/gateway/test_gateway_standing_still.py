"""The gateway alone stands still: TCP clients do not notice, and nothing is lost over HTTP."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import httpx2
import pytest
from support.procfs import Process
from support.server import Server, StartServer, quiet_port
from support.waiting import eventually
from support.web import Events, client, events, fresh_queue
from support.wire import Wire

from router.gateway import PING_S, SILENT_PINGS

KILLED_S = (SILENT_PINGS + 1) * PING_S  # by then the router has killed a gateway that does not answer
LOST = (EOFError, httpx2.TransportError)


@contextmanager
def standing_still(process: Process) -> Iterator[None]:
    """While this lasts, a process does nothing; it may have been killed by the end."""
    assert process.kill(signal.SIGSTOP)
    try:
        yield
    finally:
        process.kill(signal.SIGCONT)


@pytest.fixture
def web_server(make_server: StartServer) -> Server:
    """One of the test's own: each is to begin with a gateway that has not stood still before."""
    server = make_server(http_port=quiet_port())
    server.start()
    return server


class Listener:
    """Reads a stream of events, and comes back with its place when the stream breaks, as browsers do."""

    def __init__(self, server: Server, queue: str) -> None:
        self._server, self._queue = server, queue
        self.seen: list[str] = []  # data of pushed jobs, in order
        self.breaks = 0

    async def read(self, stream: Events) -> None:
        """For ever."""
        while True:
            try:
                while True:
                    event = await stream.next()
                    if event["eventType"] == "pushed":
                        self.seen.append(event["jobId"])
            except (*LOST, TimeoutError):
                self.breaks += 1
            stream = await self._again(stream.last_id)

    async def _again(self, last: str) -> Events:
        while True:
            with suppress(httpx2.TransportError):
                web = client(self._server)
                response = await web.send(
                    web.build_request(
                        "GET", "/events", params={"queue": self._queue}, headers={"Last-Event-ID": last}
                    ),
                    stream=True,
                )
                if response.status_code == 200:
                    return Events(response)
            await asyncio.sleep(0.1)  # between two attempts, as browsers wait


@asynccontextmanager
async def listening(server: Server, queue: str) -> AsyncIterator[Listener]:
    """A listener at work."""
    listener = Listener(server, queue)
    async with client(server) as web, events(web, params={"queue": queue}) as stream:
        reading = asyncio.create_task(listener.read(stream))
        try:
            yield listener
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading


async def work_over_tcp(wire: Wire, queue: str, seconds: float) -> list[str]:
    """Push, pull and acknowledge until the time is over; the ids of the jobs."""
    end = asyncio.get_running_loop().time() + seconds
    done: list[str] = []
    while asyncio.get_running_loop().time() < end:
        job_id = (await wire.ok("PUSH", queue=queue, data=len(done)))["id"]
        pulled = await wire.ok("PULL", queue=queue, owner="w")
        assert pulled["job"]["id"] == job_id
        await wire.ok("ACK", id=job_id, token=pulled["token"])
        assert (await wire.ok("StorageStatus"))["data"]["error"] is None
        done.append(job_id)
        await asyncio.sleep(0.05)  # the pace of the load
    return done


async def push_once(server: Server, queue: str, key: str) -> str:
    """Over HTTP, again until there is an answer, as a client with an idempotency key may."""
    async with client(server) as web:
        while True:
            with suppress(httpx2.TransportError):
                reply = await web.post(f"/queues/{queue}/jobs", json={"data": key, "idempotencyKey": key})
                if reply.status_code == 200:
                    answer: dict[str, Any] = reply.json()
                    return str(answer["id"])
            await asyncio.sleep(0.1)  # between two attempts


async def stand_still(server: Server, seconds: float, *, replaced: bool) -> None:
    queue, held = fresh_queue(0), fresh_queue(1)
    gateway = server.gateway()
    async with client(server) as web, await Wire.open(server.address) as wire:
        kept = (await web.post(f"/queues/{held}/jobs", json={"data": 1})).json()["id"]
        pulled = (await web.post(f"/queues/{held}/jobs/pull", json={"owner": "me"})).json()
        async with listening(server, queue) as listener:
            with standing_still(gateway):
                health = asyncio.create_task(web.get("/healthz"))
                pushes = [asyncio.create_task(push_once(server, queue, f"k{n}")) for n in range(20)]
                done = await work_over_tcp(wire, fresh_queue(0), seconds)
                if replaced:
                    await eventually(lambda: server.gateway() != gateway, "there is a new gateway")
            assert done, "TCP clients were held up"
            with suppress(httpx2.TransportError):  # that of a gateway that was killed breaks
                assert (await health).status_code == 200
            ids = await asyncio.gather(*pushes)
            await eventually(lambda: set(listener.seen) >= set(ids), "all events were heard")
            assert sorted(listener.seen) == sorted(ids), "an event came twice, or a job was pushed twice"
            assert bool(listener.breaks) == replaced
        async with client(server) as again:
            assert (await again.get("/healthz")).status_code == 200
            acked = await again.post(f"/jobs/{kept}/ack", json={"token": pulled["token"]})
            assert acked.status_code == 200, acked.text
        assert (await wire.ok("GetState", id=kept))["state"] == "completed"
    assert (server.gateway() != gateway) == replaced
    assert ("the HTTP gateway does not answer and is killed" in server.log()) == replaced
    assert server.stop() == 0
    assert "Traceback" not in server.whole_log()


@pytest.mark.parametrize("seconds", [1.0, 5.0])
async def test_a_gateway_that_stands_still_for_seconds_goes_on(web_server: Server, seconds: float) -> None:
    await stand_still(web_server, seconds, replaced=False)


@pytest.mark.nightly
async def test_a_gateway_that_stands_still_for_long_is_replaced(web_server: Server) -> None:
    await stand_still(web_server, KILLED_S + 2, replaced=True)
