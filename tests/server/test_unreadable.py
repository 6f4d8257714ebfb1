"""Payloads that no reader can show: refused where they come in; stored ones spoil nothing beside them."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import msgpack
import pytest
import pytest_asyncio
from support.cli import Cli
from support.server import Server, dispose, quiet_port
from support.waiting import eventually
from support.web import client, fresh_queue
from support.wire import Wire, frame

from bunqueue import AsyncQueue, BunqueueError, ResultError, Worker

NO_TEXT = b"\xa1\xff"
HOSTILE = {
    "text": (b"\x81\xa2to" + NO_TEXT, "text that is not UTF-8 (byte 0xff)"),
    "surrogate": (b"\x81\xa2to\xa3\xed\xa0\x80", "text that is not UTF-8 (byte 0xed)"),
    "name": (b"\x81" + NO_TEXT + b"\xc0", "text that is not UTF-8"),
    "time": (b"\x81\xa2at\xc7\x0c\xff\x00\x00\x00\x00\x7f" + b"\xff" * 7, "imestamp is out of range"),
    "time of a wrong length": (b"\x81\xa2at\xd4\xff\x00", "imestamp"),
    "map as a name": (b"\x81\xa1x\x81\x80\xc0", "map keys must be hashable"),
    "deep": (b"\x81\xa1x" + b"\x91" * 600 + b"\xc0", "nested deeper than 500 levels"),
    "deep maps": (b"\x81\xa1x" * 600 + b"\xc0", "nested deeper than 500 levels"),
}
ACCEPTED = {
    "undefined": b"\x81\xa1x\xd4\x00\x00",
    "another extension": b"\x81\xa1x\xd4\x05\x00",
    "a time": b"\x81\xa2at\xd6\xff\x00\x00\x00\x01",
    "numbers as names": b"\x81\x01\xc0",
    "bytes": b"\x81\xa1x\xc4\x01\xff",
    "many small maps": b"\x81\xa1x\xdc\x07\xd0" + b"\x81\xa1y\x90" * 2000,
    "not a number": b"\x81\xa1x\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
}
_numbers = itertools.count(1_000_000)


def text(value: str) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def packed_map(**fields: bytes) -> bytes:
    """A map of values that are encoded already."""
    assert len(fields) < 16
    return bytes([0x80 + len(fields)]) + b"".join(text(name) + value for name, value in fields.items())


async def say(wire: Wire, cmd: str, **fields: bytes) -> dict[str, Any]:
    """The reply to a command whose fields are encoded already."""
    number = next(_numbers)
    wire._transport.write(frame(packed_map(cmd=text(cmd), reqId=msgpack.packb(number), **fields)))
    while (reply := await wire.stray.get())["reqId"] != number:
        pass
    return dict(reply)


@pytest_asyncio.fixture
async def wire(shared_server: Server) -> AsyncIterator[Wire]:
    wire = await Wire.open(shared_server.address)
    yield wire
    wire.abort()


async def refused(wire: Wire, cmd: str, field: str, problem: str, **fields: bytes) -> None:
    reply = await say(wire, cmd, **fields)
    assert reply["ok"] is False, reply
    assert reply.get("code") == "INVALID_DATA", reply
    assert reply["error"].startswith(field), reply
    assert problem in reply["error"], reply


@pytest.mark.parametrize("kind", HOSTILE)
async def test_data_that_nobody_can_read_is_refused(wire: Wire, kind: str) -> None:
    (bad, problem), queue = HOSTILE[kind], fresh_queue()
    named, good = text(queue), packed_map(data=b"\x80")
    await refused(wire, "PUSH", "data", problem, queue=named, data=bad)
    await refused(wire, "PUSH", "data", problem, queue=named, data=bad, jobId=text(f"own-{queue}"))
    jobs = b"\x92" + good + packed_map(data=bad)
    await refused(wire, "PUSHB", "jobs[1]: data", problem, queue=named, jobs=jobs)
    whole = packed_map(id=text(f"f-{queue}"), queue=named, input=packed_map(data=bad))
    await refused(wire, "PUSHF", f"flow job f-{queue}: data", problem, jobs=b"\x91" + whole)
    cron = {"name": text(queue), "queue": named, "repeatEvery": b"\xcd\x75\x30"}
    await refused(wire, "Cron", "data", problem, **cron, data=bad)
    job = (await say(wire, "PUSH", queue=named, data=b"\x80"))["id"]
    await refused(wire, "Update", "data", problem, id=text(job), data=bad)
    pulled = await say(wire, "PULL", queue=named)
    await refused(wire, "ACK", "result", problem, id=text(job), result=bad)
    ids, results = b"\x91" + text(job), b"\x91" + bad
    await refused(wire, "ACKB", "results[0]", problem, ids=ids, results=results)
    assert pulled["job"]["id"] == job
    counts = (await say(wire, "GetJobCounts", queue=named))["counts"]
    assert (counts["active"], counts["waiting"]) == (1, 0)  # a mistake has changed nothing


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED.keys())
async def test_what_other_clients_send_is_taken(wire: Wire, data: bytes) -> None:
    queue = text(fresh_queue())
    job = await say(wire, "PUSH", queue=queue, data=data)
    assert job["ok"] is True, job
    await say(wire, "PULL", queue=queue)
    assert (await say(wire, "ACK", id=text(job["id"]), result=data))["ok"] is True


@pytest.mark.parametrize(
    ("cmd", "field", "fields"),
    [
        ("FAIL", "error", {"error": NO_TEXT}),
        ("FAIL", "stack", {"stack": NO_TEXT}),
        ("FAIL", "stack", {"stack": b"\x92\xa1a" + NO_TEXT}),
        ("Progress", "message", {"progress": b"\x05", "message": NO_TEXT}),
        ("AddLog", "message", {"message": NO_TEXT}),
        ("PUSH", "Job name", {"name": NO_TEXT, "queue": text("q")}),
        ("PUSH", "tags[0]", {"tags": b"\x91" + NO_TEXT, "queue": text("q")}),
        ("PUSH", "headers.a", {"headers": b"\x81\xa1a" + NO_TEXT, "queue": text("q")}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_texts_that_are_none_are_refused_by_name(
    wire: Wire, cmd: str, field: str, fields: dict[str, bytes]
) -> None:
    about = {} if cmd == "PUSH" else {"id": text("0")}
    reply = await say(wire, cmd, **about, **fields)
    assert reply["ok"] is False
    assert (reply["error"].startswith(field), reply.get("code")) == (True, "INVALID_DATA"), reply


# What an older server has stored


class Stored(NamedTuple):
    """A queue with a good job, a bad one, and a good one; and a job whose result is bad."""

    server: Server
    queue: str
    ids: list[str]
    done_queue: str
    done: str


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "data", shards=1, http_port=quiet_port())
    try:
        server.start()
        yield server
    finally:
        dispose(server)


@pytest_asyncio.fixture
async def stored(server: Server) -> Stored:
    queue, done_queue = fresh_queue(), fresh_queue()
    where = {"host": server.host, "port": server.port}
    async with AsyncQueue(queue, **where) as jobs, AsyncQueue(done_queue, **where) as ended:  # type: ignore[arg-type]
        handles = await jobs.add_bulk([("n", {"x": number}) for number in range(3)])
        done = await ended.add("n")
        async with Worker(done_queue, lambda job: {"x": "y"}, **where) as worker:  # type: ignore[arg-type]
            await eventually(lambda: worker.stats.completed == 1, "it has run")
    assert server.stop() == 0
    with closing(sqlite3.connect(Path(server.data_dir) / "shard-00.db")) as db, db:
        bad = b"\x81\xa1x" + NO_TEXT
        assert db.execute("update jobs set data = ? where id = ?", (bad, handles[1].id)).rowcount == 1
        assert db.execute("update completed set result = ?", (bad,)).rowcount == 1
    server.start()
    return Stored(server, queue, [handle.id for handle in handles], done_queue, done.id)


REASON = "data cannot be read: it has text that is not UTF-8 (byte 0xff); send bytes as bytes"


async def test_http_shows_the_others_and_says_so_of_that_one(stored: Stored) -> None:
    async with client(stored.server) as web:
        answer = await web.get(f"/queues/{stored.queue}/jobs/list")
        assert answer.status_code == 200, answer.text
        jobs = {job["id"]: job for job in answer.json()["jobs"]}
        assert [jobs[each]["data"] for each in stored.ids] == [{"x": 0}, None, {"x": 2}]
        assert [jobs[each].get("unreadable") for each in stored.ids] == [None, REASON, None]
        assert (await web.get(f"/jobs/{stored.ids[1]}")).json()["job"]["unreadable"] == REASON
        found = (await web.get(f"/jobs/{stored.done}")).json()["job"]
        assert found["unreadable"].startswith("returnvalue cannot be read: ")
        result = (await web.get(f"/jobs/{stored.done}/result")).json()
        assert (result["ok"], result["result"]) == (True, None)
        assert result["unreadable"].startswith("result cannot be read: ")


async def test_a_pull_over_http_gives_the_good_jobs_and_ends_the_bad_one(stored: Stored) -> None:
    async with client(stored.server) as web:
        path = f"/queues/{stored.queue}/jobs/pull-bulk"
        pulled = (await web.post(path, json={"count": 10, "owner": "me"})).json()
        assert [job["id"] for job in pulled["jobs"]] == [stored.ids[0], stored.ids[2]]
        assert len(pulled["tokens"]) == 2
        await _all_end(web, stored, pulled)


async def test_single_pulls_over_http_pass_over_the_bad_job(stored: Stored) -> None:
    async with client(stored.server) as web:
        pulls = [(await web.post(f"/queues/{stored.queue}/jobs/pull", json={})).json() for _ in range(3)]
        assert [pull["job"] and pull["job"]["id"] for pull in pulls] == [stored.ids[0], None, stored.ids[2]]
        assert (await web.get(f"/jobs/{stored.ids[1]}/state")).json()["state"] == "failed"


async def _all_end(web: httpx2.AsyncClient, stored: Stored, pulled: dict[str, Any]) -> None:
    for job, token in zip(pulled["jobs"], pulled["tokens"], strict=True):
        assert (await web.post(f"/jobs/{job['id']}/ack", json={"token": token})).json()["ok"] is True
    dead = (await web.get(f"/queues/{stored.queue}/dlq")).json()
    assert [job["id"] for job in dead["jobs"]] == [stored.ids[1]]
    assert dead["jobs"][0]["failedReason"] == f"the job's {REASON}"


async def test_the_python_client_shows_the_others_and_says_so_of_that_one(stored: Stored) -> None:
    where = {"host": stored.server.host, "port": stored.server.port}
    async with AsyncQueue(stored.queue, **where) as queue:  # type: ignore[arg-type]
        jobs = {job.id: job for job in await queue.get_jobs()}
        assert [jobs[each].data for each in stored.ids] == [{"x": 0}, None, {"x": 2}]
        assert [jobs[each].unreadable for each in stored.ids] == [None, REASON, None]
        seen: list[Any] = []
        async with Worker(stored.queue, lambda job: seen.append(job.data), **where) as worker:  # type: ignore[arg-type]
            await eventually(lambda: worker.stats.completed == 2 and worker.stats.failed == 1, "it is done")
        assert seen == [{"x": 0}, {"x": 2}]
        (dead,) = await queue.dlq()
        assert (dead.id, dead.attempts) == (stored.ids[1], 1)
    async with AsyncQueue(stored.done_queue, **where) as queue:  # type: ignore[arg-type]
        with pytest.raises(ResultError, match=f"the result of job {stored.done} cannot be read"):
            await queue.handle(stored.done).result()
        with pytest.raises(BunqueueError, match="result cannot be read"):
            await queue.get_result(stored.done)


def test_the_command_line_shows_the_others_and_says_so_of_that_one(stored: Stored) -> None:
    cli = Cli(stored.server)
    jobs = {job["id"]: job for job in cli.json("queue", "jobs", stored.queue)}
    assert jobs[stored.ids[1]]["unreadable"] == REASON
    assert jobs[stored.ids[2]]["data"] == {"x": 2}
    assert cli.json("job", "get", stored.ids[1])["unreadable"] == REASON
    assert cli.json("pull", stored.queue)["id"] == stored.ids[0]
    assert REASON in cli("pull", stored.queue, status=None).err
    assert cli.json("pull", stored.queue)["id"] == stored.ids[2]
    assert cli("job", "state", stored.ids[1]).value == "failed"
