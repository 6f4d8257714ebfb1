"""Live events over HTTP: filtered, resumed, and bounded for those who do not read."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import time
from contextlib import aclosing
from typing import Any

import pytest
from support.procfs import resident
from support.server import Server, StartServer, quiet_port
from support.waiting import PATIENCE_S, wait_until
from support.web import client, events, fresh_queue
from support.wire import Wire

from bunqueue.gateway.events.entries import Filter
from bunqueue.gateway.events.feed import Feed
from bunqueue.gateway.events.log_reader import LogReader, Page


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


async def test_who_heard_nothing_before_the_break_misses_nothing(web_server: Server) -> None:
    queue = fresh_queue(1)
    async with client(web_server) as web:
        async with events(web, params={"queue": queue}) as stream:
            async with asyncio.timeout(PATIENCE_S):
                assert (await anext(stream._lines)).startswith("id: ")
                place = (await anext(stream._lines)) or "nothing else"
        assert place == "nothing else"
        async with events(web, params={"queue": queue}) as stream:
            line = await anext(stream._lines)
        job = (await web.post(f"/queues/{queue}/jobs", json={})).json()["id"]
        headers = {"Last-Event-ID": line.removeprefix("id: ")}
        async with events(web, params={"queue": queue}, headers=headers) as stream:
            assert (await stream.next())["jobId"] == job


@pytest.mark.parametrize("place", ["1", "1-2-3", "x-5", "900000000-1"])
async def test_places_that_the_logs_do_not_know(web_server: Server, place: str) -> None:
    """Of another data folder, or of before a change of the number of shards."""
    queue = fresh_queue(0)
    async with client(web_server) as web:
        async with events(web, params={"queue": queue}, headers={"Last-Event-ID": place}) as stream:
            first = await stream.next()
            assert (first["eventType"], first["count"]) == ("lost", None)
            await web.post(f"/queues/{queue}/jobs", json={})
            assert (await stream.next())["eventType"] == "pushed"


async def test_ids_never_go_back(web_server: Server) -> None:
    """Not even when what is kept joins on to what was read again."""
    queues = [fresh_queue(0), fresh_queue(1)]
    async with client(web_server) as web, await Wire.open(web_server.address) as wire:
        async with (
            events(web, params={"queue": queues}) as kept,
            events(web, params={"queue": queues}) as early,
        ):
            for queue in (*queues, *queues):
                await wire.ok("PUSHB", queue=queue, jobs=[{"data": n} for n in range(100)])
            await kept.take(400)
            await early.take(3)
            place = early.last_id
            async with events(web, params={"queue": queues}, headers={"Last-Event-ID": place}) as again:
                places = [place]
                for _ in range(397):
                    await again.next()
                    places.append(again.last_id)
        numbers = [[int(part) for part in each.split("-")] for each in places]
        assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in itertools.pairwise(numbers))


async def test_a_sign_of_life_while_only_others_are_told_something() -> None:
    """Something happens all the time, and the listener wants none of it."""

    class Log(LogReader):
        def __init__(self) -> None:
            self.seq = 0

        async def read(self, after: Any, limit: int, *args: Any, **more: Any) -> Page:
            self.seq += 1
            event = {
                "shard": 0,
                "seq": self.seq,
                "eventType": "pushed",
                "queue": "q",
                "jobId": "",
                "timestamp": 0,
            }
            return Page(
                [event] if limit else [], [{"shard": 0, "after": self.seq, "last": self.seq, "missed": 0}]
            )

    feed = Feed(Log(), 1)
    async with aclosing(feed.listen(Filter(queues=frozenset({"other"})), quiet_s=0.3)) as heard:
        async with asyncio.timeout(PATIENCE_S):
            places = [int((await anext(heard)).place) for _ in range(3)]
    assert places[0] < places[1] < places[2]


async def test_a_shard_that_is_away_is_told_as_lost_and_asked_in_peace() -> None:
    class Log(LogReader):
        def __init__(self) -> None:
            self.away = True
            self.asked = 0

        async def read(self, after: Any, limit: int, *args: Any, **more: Any) -> Page:
            self.asked += 1
            places = [{"shard": 0, "after": 5, "last": 5, "missed": 0}]
            return Page([], places if self.away else [*places, {**places[0], "shard": 1}])

    log = Log()
    feed = Feed(log, 2)
    async with aclosing(feed.listen(Filter(), quiet_s=30)) as heard:
        assert (await anext(heard)).place == "5-x"
        log.away = False
        async with asyncio.timeout(PATIENCE_S):
            (entry,) = (await anext(heard)).entries
        assert (entry.kind, entry.places) == ("lost", "5-5")
        log.away = True
        asked = log.asked
        async with aclosing(feed.listen(Filter(), [3, 3])) as late:
            await anext(late)
            catching_up = asyncio.ensure_future(anext(late))
            begun = time.monotonic()
            await asyncio.sleep(1)  # for as long as anybody would ask in vain
            assert log.asked - asked < 30 * (time.monotonic() - begun)
            catching_up.cancel()
            await asyncio.wait((catching_up,))


async def test_who_knows_the_place_of_a_shard_that_is_away_loses_nothing() -> None:
    """A listener of another gateway resumes here, while nobody owns a shard."""

    class Log(LogReader):
        def __init__(self) -> None:
            self.ends = {0: 5}

        async def read(self, after: Any, limit: int, *args: Any, **more: Any) -> Page:
            found, places = [], []
            for shard, end in self.ends.items():
                begin = after[shard] if after[shard] >= 0 else end
                seqs = range(begin + 1, end + 1)[:limit]
                found += [event_of(shard, seq) for seq in seqs]
                places.append(
                    {"shard": shard, "after": seqs[-1] if seqs else begin, "last": end, "missed": 0}
                )
            return Page(found, places)

    def event_of(shard: int, seq: int) -> dict[str, Any]:
        job = f"{shard}/{seq}"
        return {"shard": shard, "seq": seq, "eventType": "pushed", "queue": "q", "jobId": job, "timestamp": 0}

    log = Log()
    feed = Feed(log, 2)
    heard: list[str] = []
    async with asyncio.timeout(PATIENCE_S), aclosing(feed.listen(Filter(), [4, 6], quiet_s=30)) as listener:
        assert (await anext(listener)).place == "4-6"
        found = await anext(listener)
        assert ([entry.job_id for entry in found.entries], found.place) == (["0/5"], "5-6"), "of shard 0"
        log.ends = {0: 7, 1: 8}
        while found.place != "7-8":
            found = await anext(listener)
            heard += [entry.job_id or entry.kind for entry in found.entries]
        assert sorted(heard) == ["0/6", "0/7", "1/7", "1/8"]
        log.ends = {0: 8, 1: 8}
        assert [entry.job_id for entry in (await anext(listener)).entries] == ["0/8"]


async def test_slow_ones_that_come_back_hold_up_nobody(web_server: Server) -> None:
    queue = fresh_queue(0)
    async with client(web_server) as web, await Wire.open(web_server.address) as wire:
        async with events(web, params={"queue": queue}) as stream:
            place = (await anext(stream._lines)).removeprefix("id: ")
        for _ in range(6):
            await wire.ok("PUSHB", queue=queue, jobs=[{"data": n} for n in range(5000)])
        request = f"GET /events HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {place}\r\n\r\n"
        slow = [socket.create_connection((web_server.host, web_server.http_port)) for _ in range(8)]
        for sock in slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(request.encode())
            assert sock.recv(15) == b"HTTP/1.1 200 OK"
        headers = {"Last-Event-ID": place}
        async with events(web, params={"queue": queue}, headers=headers) as again:
            assert len(await again.take(10_000)) == 10_000
    for sock in slow:
        sock.close()


async def test_what_is_no_place_is_refused(web_server: Server) -> None:
    async with client(web_server) as web:
        for wrong in ("a-b", "1--2", "99999999999999999999-1"):
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
            gateway.kill(signal.SIGSTOP)  # so that some are left out, however slow the pushes are
            for number in range(20):
                await wire.ok("PUSHB", queue="many", jobs=[{"data": n} for n in range(5000)])
                if number == 2:
                    gateway.kill(signal.SIGCONT)
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
