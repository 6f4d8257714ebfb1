"""One bad client harms itself only.

Whatever is sent, and however: another connection goes on, nothing of others' changes, memory stays
bounded, and the processes are the same ones in the end.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import statistics
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import budget
from support.naming import queue_on
from support.procfs import Process, open_files, peak_resident, process, resident
from support.server import Server, dispose
from support.waiting import PATIENCE_S, eventually
from support.wire import LENGTH, Reply, Wire, frame, pack

MIB = 1024 * 1024
MAX_FRAME = 64 * MIB
TOO_LARGE = f"Frame too large: {{}} bytes (max {MAX_FRAME})"
MEMORY_CAP = 6 * 1024 * MIB  # address space of each process: a runaway one dies instead of the machine
LONG_MS = 60_000
NOTICED_S = 1.0  # by which a median time may be longer, as the machine itself is busier meanwhile
QUEUES = (queue_on(0, "witness"), queue_on(1, "witness"))
INVALID = ("Invalid command", "a command must have at most", "cmd is malformed")  # how refusals begin


class Witness:
    """Another client, with jobs of its own, that must not notice anything."""

    def __init__(self, server: Server, wire: Wire) -> None:
        self.server = server
        self.wire = wire
        self.jobs: list[dict[str, Any]] = []
        self.processes = processes(server)

    async def settle(self) -> None:
        """Have one job of each state on each shard."""
        for queue in QUEUES:
            if not (await self.wire.ok("GetJobs", queue=queue))["jobs"]:
                await self._fill(queue)
        self.jobs = await self._look()

    async def _fill(self, queue: str) -> None:
        wire = self.wire
        await wire.ok("PUSHB", queue=queue, jobs=[{"data": f"job {n}", "maxAttempts": 1} for n in range(4)])
        await wire.ok("PUSH", queue=queue, data="delayed", delay=3_600_000)
        reply = await wire.ok("PULLB", queue=queue, count=3, owner="witness", lockTtl=3_600_000)
        ids, tokens = [job["id"] for job in reply["jobs"]], reply["tokens"]
        await wire.ok("ACK", id=ids[0], token=tokens[0], result={"kept": True})
        await wire.ok("FAIL", id=ids[1], token=tokens[1], error="on purpose")
        await wire.ok("JobHeartbeat", id=ids[2], token=tokens[2])  # so that it outlives this connection

    async def _look(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for queue in QUEUES:
            found += (await self.wire.ok("GetJobs", queue=queue))["jobs"]
        return [job | {"lastHeartbeat": 0} for job in found]  # the server may move it for all

    async def check(self) -> None:
        """Everything is as it was, and everything still works."""
        await self.wire.ok("Ping")
        for before, after in zip(self.jobs, await self._look(), strict=True):
            assert after == before
        states = [job["state"] for job in self.jobs]
        assert sorted(states) == sorted(["waiting", "delayed", "active", "completed", "failed"] * 2)
        assert processes(self.server) == self.processes, "a process died"
        async with await Wire.open(self.server.address) as wire:
            for number in range(2):
                queue = queue_on(number, "works")
                job_id = (await wire.ok("PUSH", queue=queue, data=1, removeOnComplete=True))["id"]
                reply = await wire.ok("PULL", queue=queue, owner="w")
                assert reply["job"]["id"] == job_id
                await wire.ok("ACK", id=job_id, token=reply["token"])

    async def ping_s(self, count: int = 50) -> float:
        """The median time of a Ping."""
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            await self.wire.ok("Ping")
            times.append(time.perf_counter() - begun)
            await asyncio.sleep(0.002)  # the pace of a polite client
        return statistics.median(times)


def processes(server: Server) -> list[Process]:
    router = process(server.pid)
    assert router is not None
    return [router, *server.shard_processes()]


def cap(server: Server) -> Server:
    """The server, with a bound to what each of its processes may take."""
    for one in processes(server):
        resource.prlimit(one.pid, resource.RLIMIT_AS, (MEMORY_CAP, MEMORY_CAP))
    return server


@pytest.fixture(scope="module")
def capped_server(shared_server: Server) -> Server:
    return cap(shared_server)


@asynccontextmanager
async def watched(server: Server) -> AsyncIterator[Witness]:
    """A witness, who in the end checks that nothing has changed."""
    async with await Wire.open(server.address) as wire:
        witness = Witness(server, wire)
        await witness.settle()
        yield witness
        await witness.check()


@pytest.fixture
async def witness(capped_server: Server) -> AsyncIterator[Witness]:
    async with watched(capped_server) as witness:
        yield witness


class Rough:
    """A server for what might kill it: another one follows where it did."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[Server] = []
        self._alive: list[Process] = []

    def server(self) -> Server:
        """The one of the last test, if all its processes are still the same."""
        if not self._made or not self._made[-1].running or processes(self._made[-1]) != self._alive:
            server = Server(self._folder / str(len(self._made)))
            self._made.append(server)
            server.start()
            self._alive = processes(cap(server))
        return self._made[-1]

    def dispose(self) -> None:
        for server in self._made:
            dispose(server)


@pytest.fixture(scope="module")
def rough(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rough]:
    rough = Rough(tmp_path_factory.mktemp("rough"))
    yield rough
    rough.dispose()


@pytest.fixture
async def rough_witness(rough: Rough) -> AsyncIterator[Witness]:
    """The witness of a server that only such tests share; each uses queues of its own."""
    async with watched(rough.server()) as witness:
        yield witness


@pytest.fixture
async def rogue(capped_server: Server) -> AsyncIterator[Wire]:
    """The bad client."""
    async with await Wire.open(capped_server.address) as wire:
        yield wire


class Memory:
    """How much the server's processes have grown since this was made, in MiB."""

    def __init__(self, server: Server) -> None:
        self._pids = [one.pid for one in processes(server)]
        for pid in self._pids:  # so that the peak starts anew
            with suppress(OSError), open(f"/proc/{pid}/clear_refs", "w") as file:
                file.write("5")
        self._before = [resident(pid) for pid in self._pids]

    def peaks(self) -> list[float]:
        """By process, the router first."""
        pairs = zip(self._pids, self._before, strict=True)
        return [(peak_resident(pid) - before) / MIB for pid, before in pairs]


# Malformed payloads


def text(payload: bytes) -> bytes:
    """Bytes as a MessagePack string, valid UTF-8 or not."""
    return b"\xdb" + len(payload).to_bytes(4, "big") + payload


def command(cmd: str, /, **fields: bytes) -> bytes:
    """A command whose fields are given as they stand on the wire."""
    pairs = {"cmd": msgpack.packb(cmd), **fields}
    return bytes([0x80 | len(pairs)]) + b"".join(msgpack.packb(key) + value for key, value in pairs.items())


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


NO_COMMANDS = {
    "empty": b"",
    "never-used-type": b"\xc1",
    "nil": b"\xc0",
    "true": b"\xc3",
    "number": b"\x07",
    "text": msgpack.packb("PUSH"),
    "list": msgpack.packb(["cmd", "Ping"]),
    "empty-map": b"\x80",
    "map-without-cmd": msgpack.packb({"queue": "q"}),
    "cmd-null": msgpack.packb({"cmd": None}),
    "cmd-number": msgpack.packb({"cmd": 1}),
    "cmd-empty": msgpack.packb({"cmd": ""}),
    "cmd-list": msgpack.packb({"cmd": ["Ping"]}),
    "cmd-bytes": msgpack.packb({"cmd": b"Ping"}),
    "map-of-numbers": msgpack.packb({1: 2}),
    "map-of-nil": b"\x81\xc0\xc0",
    "truncated-map": msgpack.packb({"cmd": "Ping"})[:-1],
    "truncated-header": b"\xdf\x00",
    "map-of-4-billion": b"\xdf\xff\xff\xff\xff",
    "list-of-4-billion": b"\xdd\xff\xff\xff\xff" + b"\x00" * 100,
    "text-of-4-billion": b"\xdb\xff\xff\xff\xff",
    "bytes-of-4-billion": b"\xc6\xff\xff\xff\xff",
    "extension": b"\xd4\x05\x00",
    "extension-of-4-billion": b"\xc9\xff\xff\xff\xff\x05",
    "bad-utf-8-key": b"\x81" + text(b"\xff\xfe") + b"\xc0",
    "bad-utf-8-cmd": command("x")[:5] + text(b"\xff\xfe"),
    "nested-lists": nested(100_000),
    "nested-maps": b"\x81\xa1a" * 100_000 + b"\xc0",
    "zeros": bytes(1000),
    "ones": b"\xff" * 1000,
    "json": b'{"cmd":"Ping"}',
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}

REFUSED = {
    "unknown": command("NoSuchCommand"),
    "lower-case": command("ping\x00"),
    "long-name": command("x" * 1_000_000),
    "push-without-queue": command("PUSH"),
    "queue-null": command("PUSH", queue=b"\xc0"),
    "queue-number": command("PUSH", queue=b"\x05"),
    "queue-list": command("PUSH", queue=b"\x91\xa1q"),
    "queue-empty": command("PUSH", queue=b"\xa0", data=b"\x01"),
    "queue-too-long": command("PUSH", queue=text(b"q" * 257), data=b"\x01"),
    "queue-huge": command("PUSH", queue=text(b"q" * 5_000_000), data=b"\x01"),
    "queue-bad-characters": command("PUSH", queue=text(b"a b"), data=b"\x01"),
    "queue-with-nul": command("PUSH", queue=text(b"a\x00"), data=b"\x01"),
    "queue-not-ascii": command("PUSH", queue=text("ü".encode()), data=b"\x01"),
    "queue-bad-utf-8": command("PUSH", queue=text(b"\xff"), data=b"\x01"),
    "pull-bad-utf-8-queue": command("PULL", queue=text(b"\xff"), timeout=b"\x7f"),
    "pull-bad-utf-8-owner": command("PULL", queue=text(b"rogue"), owner=text(b"\xff"), timeout=b"\x7f"),
    "key-bad-utf-8": command("PUSH", queue=text(b"rogue"), uniqueKey=text(b"\xff"), data=b"\x01"),
    "name-bad-utf-8": command("PUSH", queue=text(b"rogue"), name=text(b"\xff"), data=b"\x01"),
    "tags-bad-utf-8": command("PUSH", queue=text(b"rogue"), tags=b"\x91" + text(b"\xff"), data=b"\x01"),
    "id-bad-utf-8": command("GetJob", id=text(b"\xff")),
    "ids-bad-utf-8": command("ACKB", ids=b"\x92\xa1a" + text(b"\xff")),
    "token-bad-utf-8": command("ACK", id=text(b"x"), token=text(b"\xff")),
    "error-bad-utf-8": command("FAIL", id=text(b"x"), error=text(b"\xff")),
    "stack-bad-utf-8": command("FAIL", id=text(b"x"), stack=b"\x91" + text(b"\xff")),
    "id-surrogate": command("GetJob", id=text(b"\xed\xa0\x80")),
    "id-list": command("GetJob", id=b"\x90"),
    "id-huge": command("GetJob", id=text(b"7" * 5_000_000)),
    "ids-text": command("ACKB", ids=text(b"a")),
    "ids-of-numbers": command("ACKB", ids=b"\x92\x01\x02"),
    "ids-nested": command("ACKB", ids=nested(5000)),
    "priority-text": command("PUSH", queue=text(b"rogue"), priority=text(b"1")),
    "priority-nan": command("PUSH", queue=text(b"rogue"), priority=struct.pack(">Bd", 0xCB, float("nan"))),
    "priority-infinite": command(
        "PUSH", queue=text(b"rogue"), priority=struct.pack(">Bd", 0xCB, float("inf"))
    ),
    "priority-2^64-1": command("PUSH", queue=text(b"rogue"), priority=b"\xcf" + b"\xff" * 8),
    "delay-nan": command("PUSH", queue=text(b"rogue"), delay=struct.pack(">Bd", 0xCB, float("nan"))),
    "delay-infinite": command("PUSH", queue=text(b"rogue"), delay=struct.pack(">Bd", 0xCB, float("inf"))),
    "delay-negative": command("PUSH", queue=text(b"rogue"), delay=b"\xff"),
    "timeout-nan": command("PULL", queue=text(b"rogue"), timeout=struct.pack(">Bd", 0xCB, float("nan"))),
    "timeout-infinite": command("PULL", queue=text(b"rogue"), timeout=struct.pack(">Bd", 0xCB, float("inf"))),
    "count-0": command("PULLB", queue=text(b"rogue"), count=b"\x00"),
    "count-huge": command("PULLB", queue=text(b"rogue"), count=b"\xce\xff\xff\xff\xff"),
    "limit-huge": command("GetJobs", queue=text(b"rogue"), limit=b"\xcf" + b"\xff" * 8),
    "offset-negative": command("GetJobs", queue=text(b"rogue"), offset=b"\xff"),
    "progress-text": command("Progress", id=text(b"x"), progress=text(b"1")),
    "progress-nan-of-nothing": command(
        "Progress", id=text(b"x"), progress=struct.pack(">Bd", 0xCB, float("nan"))
    ),
    "jobs-null": command("PUSHB", queue=text(b"rogue"), jobs=b"\xc0"),
    "jobs-of-numbers": command("PUSHB", queue=text(b"rogue"), jobs=b"\x92\x01\x02"),
    "jobs-second-is-bad": command("PUSHB", queue=text(b"rogue"), jobs=b"\x92\x80\x81\xa5delay\xff"),
    "backoff-of-a-strange-type": command("PUSH", queue=text(b"rogue"), backoff=b"\x81\xa4type\xa1x"),
    "hello-text": command("Hello", protocolVersion=text(b"3")),
    "auth-number": command("Auth", token=b"\x01"),
    "auth-surrogate": command("Auth", token=text(b"\xed\xa0\x80")),
}


async def no_trace(wire: Wire) -> None:
    """The bad client's queue does not exist."""
    assert "rogue" not in [queue["name"] for queue in (await wire.ok("ListQueues"))["queues"]]


@pytest.mark.parametrize("payload", NO_COMMANDS.values(), ids=NO_COMMANDS.keys())
async def test_what_is_no_command_is_answered_and_that_is_all(
    witness: Witness, rogue: Wire, payload: bytes
) -> None:
    ping = rogue.send("Ping")
    rogue.write(frame(payload))
    behind = rogue.send("Ping")
    reply = await rogue.next_stray()
    assert reply["ok"] is False
    assert reply["error"].startswith(INVALID)
    assert (await ping)["ok"]
    assert (await behind)["ok"]
    assert rogue.received == 3


@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED.keys())
async def test_what_is_refused_changes_nothing(witness: Witness, rogue: Wire, payload: bytes) -> None:
    rogue.write(frame(payload))
    reply = await rogue.next_stray()
    assert reply["ok"] is False, reply
    assert isinstance(reply["error"], str)
    assert len(reply["error"]) < len(payload) + 200
    await rogue.ok("Ping")
    assert rogue.received == 2
    await no_trace(rogue)


@pytest.mark.parametrize("cmd", ["PUSH", "PUSHB", "ACK", "PULL", "GetJob", "Ping", "Stats", "ACKB", "Hello"])
async def test_nesting_of_every_depth(witness: Witness, rogue: Wire, cmd: str) -> None:
    """The router and the shards decode on stacks of their own; none may overflow."""
    depths = [*range(1, 1024, 7), *range(940, 1060), 5000, 1_000_000]
    for depth in depths:
        deep = nested(depth)
        fields = {
            "PUSH": {"queue": text(b"deep"), "data": deep, "removeOnComplete": b"\xc3"},
            "PUSHB": {
                "queue": text(b"deep"),
                "jobs": b"\x91\x82\xa4data" + deep + b"\xb0removeOnComplete\xc3",
            },
            "ACK": {"id": text(b"x"), "result": deep},
            "PULL": {"queue": deep},
            "GetJob": {"id": text(b"x"), "more": deep},
            "ACKB": {"ids": b"\x92\xa1a\xa1b", "results": b"\x92" + deep + b"\xc0"},
        }.get(cmd, {"more": deep})
        rogue.write(frame(command(cmd, **fields)))
        if depth % 50 == 0:
            await rogue.ok("Ping")
    for _ in depths:
        reply = await rogue.next_stray()
        assert reply["ok"] in (True, False)
    await rogue.ok("Ping")
    while (reply := await rogue.ok("PULLB", queue="deep", count=50))["jobs"]:
        await rogue.ok("ACKB", ids=[job["id"] for job in reply["jobs"]])


async def test_every_cut_of_a_command(witness: Witness, rogue: Wire) -> None:
    """Whole frames around the beginnings of a payload."""
    payload = msgpack.packb(
        {"cmd": "PUSH", "queue": "rogue", "data": {"a": [1, "b"]}, "delay": 5, "reqId": "r"}
    )
    for cut in range(len(payload)):
        rogue.write(frame(payload[:cut]))
    for _ in range(len(payload)):
        reply = await rogue.next_stray()
        assert reply["ok"] is False
    await rogue.ok("Ping")
    await no_trace(rogue)


# Frames


@pytest.mark.parametrize("length", [MAX_FRAME + 1, 2**31, 2**32 - 1, 0x47455420])
async def test_a_frame_above_the_limit_ends_its_connection(
    witness: Witness, rogue: Wire, length: int
) -> None:
    before = rogue.send("Ping")
    rogue.write(LENGTH.pack(length))  # told as soon as the length is read
    assert (await before)["ok"]
    reply = await rogue.next_stray()
    assert (reply["error"], reply["code"]) == (TOO_LARGE.format(length), "FRAME_TOO_LARGE")
    rogue.write(b"x" * 100_000)
    await rogue.until_ended()


async def test_what_follows_a_frame_above_the_limit_is_not_carried_out(witness: Witness, rogue: Wire) -> None:
    rogue.write(LENGTH.pack(MAX_FRAME + 1) + pack({"cmd": "PUSH", "queue": "rogue", "data": 1}) * 10)
    assert "Frame too large" in (await rogue.next_stray())["error"]
    await rogue.until_ended()
    await no_trace(witness.wire)


async def test_a_client_that_only_sends_too_much(witness: Witness, rogue: Wire) -> None:
    """It neither reads nor stops: the connection ends all the same, and nothing is kept of it."""
    memory = Memory(witness.server)
    rogue.write(LENGTH.pack(2**32 - 1))
    for _ in range(200):
        if not rogue.alive:
            break
        rogue.write(b"x" * MIB)
        await rogue.written()
    await eventually(lambda: not rogue.alive or rogue.send("Ping").done(), "it is cut off")
    assert max(memory.peaks()) < 50


async def test_the_largest_frame_is_taken(witness: Witness, rogue: Wire) -> None:
    payload = msgpack.packb({"cmd": "Ping", "reqId": "large", "filler": ""})
    filler = MAX_FRAME - len(payload) - 4
    message = msgpack.packb({"cmd": "Ping", "reqId": "large", "filler": "x" * filler})
    assert len(message) == MAX_FRAME
    rogue.write(frame(message))
    reply = await rogue.next_stray()
    assert (reply["ok"], reply["reqId"]) == (True, "large")


async def test_a_job_of_60_megabytes_is_refused(witness: Witness, rogue: Wire) -> None:
    for queue in (queue_on(0, "rogue"), queue_on(1, "rogue")):
        assert (
            await rogue.error("PUSH", queue=queue, data="x" * 60_000_000) == "Job data too large (max 10MB)"
        )
        jobs = [{"data": 1}, {"data": "x" * 60_000_000}]
        assert "Job data too large (max 10MB)" in await rogue.error("PUSHB", queue=queue, jobs=jobs)
    await no_trace(witness.wire)


async def test_60_megabytes_of_jobs_come_out_in_frames_that_fit(witness: Witness, rogue: Wire) -> None:
    queue = queue_on(1, "big")
    size, count = 9_000_000, 7
    jobs = [{"data": str(number) * size, "removeOnComplete": True} for number in range(count)]
    for part in (jobs[:6], jobs[6:]):
        await rogue.ok("PUSHB", queue=queue, jobs=part)
    page = await rogue.ok("GetJobs", queue=queue)
    assert 0 < len(page["jobs"]) < count
    assert page["more"]
    rest = await rogue.ok("GetJobs", queue=queue, cursor=page["cursor"])
    assert len(page["jobs"]) + len(rest["jobs"]) == count
    seen = []
    while (reply := await rogue.ok("PULLB", queue=queue, count=1000))["jobs"]:
        assert all(job["data"] == job["data"][0] * size for job in reply["jobs"])
        seen += [job["data"][0] for job in reply["jobs"]]
        ids = [job["id"] for job in reply["jobs"]]
        await rogue.ok("ACKB", ids=ids, results=["r" * size] * len(ids))
    assert seen == [str(number) for number in range(count)]
    assert rogue.largest <= MAX_FRAME


async def test_others_are_served_while_a_large_frame_comes(witness: Witness, rogue: Wire) -> None:
    before = await witness.ping_s()
    big = rogue.send("PUSH", queue=queue_on(0, "rogue"), data="x" * 60_000_000)
    during = await witness.ping_s()
    assert during < before + NOTICED_S
    assert (await big)["ok"] is False


async def test_results_too_large_for_one_page_come_in_two(rough_witness: Witness) -> None:
    wire, queue = rough_witness.wire, queue_on(0, "listed")
    jobs = [{"data": 1} for _ in range(3)]
    ids = (await wire.ok("PUSHB", queue=queue, jobs=jobs))["ids"]
    await wire.ok("PULLB", queue=queue, count=3)
    for job_id in ids:
        await wire.ok("ACK", id=job_id, result="r" * 30_000_000)
    page = await wire.ok("GetJobs", queue=queue)
    assert len(page["jobs"]) == 2
    rest = await wire.ok("GetJobs", queue=queue, cursor=page["cursor"])
    assert len(rest["jobs"]) == 1
    assert len((await wire.ok("GetJob", id=ids[0]))["job"]["returnvalue"]) == 30_000_000


@pytest.mark.nightly
async def test_huge_results_do_not_slow_others_down(rough_witness: Witness) -> None:
    """What one queue keeps must not be read when another's jobs are completed or looked at."""
    wire, queue = rough_witness.wire, queue_on(0, "results")

    async def complete_s(name: str) -> float:
        """The median time to complete a job and to see that it is."""
        ids = (await wire.ok("PUSHB", queue=name, jobs=[{"data": 1}] * 21))["ids"]
        await wire.ok("PULLB", queue=name, count=21)
        times = []
        for job_id in ids:
            begun = time.perf_counter()
            await wire.ok("ACK", id=job_id)
            await wire.ok("GetState", id=job_id)
            times.append(time.perf_counter() - begun)
        return statistics.median(times)

    before = [await complete_s(name) for name in (queue_on(0, "sooner"), queue_on(0, "later"))]
    for _ in range(8):
        job_id = (await wire.ok("PUSH", queue=queue, data=1))["id"]
        await wire.ok("PULL", queue=queue)
        await wire.ok("ACK", id=job_id, result="r" * 60_000_000)
    after = [await complete_s(name) for name in (queue_on(0, "sooner"), queue_on(0, "later"))]
    assert max(after) < max(before) + 0.03


PARTS = 60_000_000


def many(part: bytes, length: int = PARTS) -> bytes:
    """A list of so many bytes, all made of the same small part."""
    return b"\xdd" + (length // len(part)).to_bytes(4, "big") + part * (length // len(part))


QUEUE = msgpack.packb(queue_on(0, "rogue"))
DETAILED: dict[str, Callable[[], bytes]] = {
    "data-of-numbers": lambda: command("PUSH", queue=QUEUE, data=many(b"\x00")),
    "data-of-lists": lambda: command("PUSH", queue=QUEUE, data=many(b"\x90")),
    "data-of-floats": lambda: command(
        "PUSH", queue=QUEUE, data=many(b"\xcb\x01\x01\x01\x01\x01\x01\x01\x01")
    ),
    "data-of-maps-in-a-batch": lambda: command(
        "PUSHB", queue=QUEUE, jobs=b"\x91\x81\xa4data" + many(b"\x80")
    ),
    "jobs": lambda: command("PUSHB", queue=QUEUE, jobs=many(b"\x80")),
    "refused-jobs": lambda: command("PUSHB", queue=QUEUE, jobs=many(b"\x00")),
    "tags": lambda: command("PUSH", queue=QUEUE, tags=many(b"\xa0")),
    "states": lambda: command("GetJobs", queue=QUEUE, state=many(b"\xa0")),
    "stack": lambda: command("FAIL", id=text(b"x"), stack=many(b"\xa0")),
    "ids": lambda: command("ACKB", ids=many(b"\xa1x")),
    "ids-of-one-shard": lambda: command("ACKB", ids=many(b"\xd9\x2401a1fa07-db24-7000-b65c-000000000001")),
    "tokens": lambda: command("ACKB", ids=b"\x92\xa1a\xa1b", tokens=many(b"\xc0")),
    "heartbeats": lambda: command("JobHeartbeatB", ids=many(b"\xd9\x2401a1fa07-db24-7000-b65c-000000000001")),
    "capabilities": lambda: command("Hello", capabilities=many(b"\xa0")),
    "fields": lambda: b"\xdf" + (PARTS // 2).to_bytes(4, "big") + b"\xa0\xc0" * (PARTS // 2),
}


DUE = budget(list(DETAILED)[::3], list(DETAILED))


@pytest.mark.parametrize("make", [DETAILED[name] for name in DUE], ids=DUE)
async def test_a_large_frame_of_small_parts_keeps_nobody_waiting(
    rough_witness: Witness, make: Callable[[], bytes]
) -> None:
    """What is cheap to send must not be dear to look at: neither in time nor in memory."""
    witness = rough_witness
    payload = make()
    memory = Memory(witness.server)
    async with await Wire.open(witness.server.address) as rogue:
        reply = asyncio.ensure_future(rogue.stray.get())
        rogue.write(frame(payload))
        slowest = 0.0
        while not reply.done() and rogue.alive:
            begun = time.perf_counter()
            await witness.wire.ok("Ping")
            await witness.wire.ok("GetJobCounts", queue=QUEUES[0])
            slowest = max(slowest, time.perf_counter() - begun)
            await asyncio.sleep(0.005)  # the pace of a polite client
        peak = max(memory.peaks())
        reply.cancel()
    assert slowest < 20, f"somebody else waited {slowest:.1f} s"
    assert peak < 1024, f"{peak:.0f} MiB for a frame of 57"


@pytest.mark.parametrize("field", ["name", "uniqueKey", "tags", "message", "result"])
async def test_no_reply_is_larger_than_a_frame(rough_witness: Witness, field: str) -> None:
    """Jobs may be refused for the size of any of their fields, but not make a queue unreadable."""
    wire, queue = rough_witness.wire, queue_on(0, f"rogue-{field}")
    huge = "x" * 30_000_000
    for number in range(3):
        options: dict[str, Any] = {}
        if field in ("name", "uniqueKey"):
            options = {field: f"{number}{huge}"}
        elif field == "tags":
            options = {"tags": [huge]}
        reply = await wire.call("PUSH", queue=queue, data=1, **options)
        if not reply["ok"]:
            continue
        if field == "message":
            await wire.ok("PULL", queue=queue)
            await wire.call("Progress", id=reply["id"], progress=1, message=huge)
        elif field == "result":
            await wire.ok("PULL", queue=queue)
            await wire.call("ACK", id=reply["id"], result=huge)
    for cmd, more in (("GetJobs", {}), ("PULLB", {"count": 10, "owner": "w"}), ("GetJobs", {"limit": 1})):
        reply = await wire.call(cmd, queue=queue, **more)
        assert reply["ok"] or "too large" in reply["error"]
    assert wire.largest <= MAX_FRAME, f"a reply of {wire.largest} bytes"


# Pieces of frames


async def test_one_byte_at_a_time(witness: Witness, rogue: Wire) -> None:
    queue = queue_on(0, "slowly")
    message = pack({"cmd": "PUSH", "queue": queue, "data": "é" * 50, "reqId": "r", "removeOnComplete": True})
    message += pack({"cmd": "PULL", "queue": queue, "reqId": "s"})
    for byte in message:
        rogue.write(bytes([byte]))
        await asyncio.sleep(0)
    assert (await rogue.next_stray())["reqId"] == "r"
    job = (await rogue.next_stray())["job"]
    assert job["data"] == "é" * 50
    await rogue.ok("ACK", id=job["id"])


async def test_half_a_command_and_then_the_end(witness: Witness) -> None:
    message = pack({"cmd": "PUSH", "queue": "rogue", "data": {"n": 1}})
    for cut in range(len(message)):
        async with await Wire.open(witness.server.address) as wire:
            wire.write(message[:cut])
            if cut % 3 == 0:
                wire.end_writing()
                await wire.until_ended()
            elif cut % 3 == 1:
                await wire.close()
    await no_trace(witness.wire)


async def test_a_half_closed_connection_ends(witness: Witness, rogue: Wire) -> None:
    reply = rogue.send("PULL", queue="nothing", timeout=LONG_MS)
    rogue.end_writing()
    await rogue.until_ended()
    assert reply.done()


async def test_many_half_frames_wait_in_peace(witness: Witness) -> None:
    message = pack({"cmd": "GetJobCounts", "queue": QUEUES[0], "reqId": "late"})
    wires = [await Wire.open(witness.server.address) for _ in range(300)]
    for number, wire in enumerate(wires):
        wire.write(message[: 1 + number % (len(message) - 1)])
    await witness.check()
    for number, wire in enumerate(wires):
        wire.write(message[1 + number % (len(message) - 1) :])
    for wire in wires:
        assert (await wire.next_stray())["reqId"] == "late"
        wire.abort()


async def test_many_announcements_of_large_frames(witness: Witness) -> None:
    """A length promises memory that must not be taken before the bytes are there."""
    memory = Memory(witness.server)
    wires = [await Wire.open(witness.server.address) for _ in range(200)]
    for wire in wires:
        wire.write(LENGTH.pack(MAX_FRAME) + b"\x82\xa3cmd\xa4Ping\xa1x\xdb\x03\xff\xff\x00")
    await witness.check()
    for wire in wires:
        wire.write(b"x" * 1000)
    await witness.check()
    for wire in wires:
        assert wire.alive
        wire.abort()
    assert max(memory.peaks()) < 100


async def test_half_a_frame_and_then_silence(witness: Witness, rogue: Wire) -> None:
    """It is cut off after a minute; an idle connection between two frames is not."""
    rogue.write(b"\x00\x00\x00\x10half")
    async with await Wire.open(witness.server.address) as idle:
        await eventually(lambda: not rogue.alive, "the silent client is cut off", 60 + PATIENCE_S)
        await idle.ok("Ping")


# Many connections


def descriptors(server: Server) -> int:
    return len(open_files(server.pid))


async def test_thousands_of_connections_come_and_go(witness: Witness) -> None:
    server = witness.server
    async with await Wire.open(server.address):
        before = descriptors(server)
    memory = Memory(server)
    for turn in range(30):
        wires = await asyncio.gather(*(Wire.open(server.address) for _ in range(100)))
        for number, wire in enumerate(wires):
            if number % 5 == 1:
                wire.write(b"\x00\x00")
            elif number % 5 == 2:
                wire.send("PULL", queue=f"rogue-{number % 7}", timeout=LONG_MS)
            elif number % 5 == 3:
                wire.send_many({"cmd": "GetJobs", "queue": queue} for queue in QUEUES)
            elif number % 5 == 4:
                wire.send("Stats")
        await asyncio.gather(*(wire.close() if turn % 2 else _reset(wire) for wire in wires))
    await eventually(lambda: descriptors(server) <= before + 5, "the sockets are closed")
    assert max(memory.peaks()) < 100
    await no_trace(witness.wire)


async def _reset(wire: Wire) -> None:
    wire.abort()
    await wire.until_ended()


@pytest.mark.parametrize("count", [2000, pytest.param(9900, marks=pytest.mark.nightly)])
async def test_idle_connections_cost_others_nothing(witness: Witness, count: int) -> None:
    server = witness.server
    before = await witness.ping_s()
    wires: list[Wire] = []
    memory = Memory(server)
    try:
        while len(wires) < count:
            wires += await asyncio.gather(*(Wire.open(server.address) for _ in range(100)))
        assert await witness.ping_s() < before + NOTICED_S
        await witness.check()
        for wire in wires[:: count // 100]:
            await wire.ok("Ping")
        assert max(memory.peaks()) < 20 + count * 0.03
    finally:
        for wire in wires:
            wire.abort()
        for wire in wires:
            await wire.until_ended()
    await eventually(lambda: descriptors(server) < 200, "the sockets are closed")


async def test_many_parked_polls_cost_others_nothing(witness: Witness) -> None:
    before = await witness.ping_s()
    wires = [await Wire.open(witness.server.address) for _ in range(200)]
    polls = [
        poll
        for wire in wires
        for poll in wire.send_many(
            {"cmd": "PULL", "queue": f"nothing-{number}", "timeout": LONG_MS} for number in range(50)
        )
    ]
    for wire in wires:
        wire.send("Ping")
    assert await witness.ping_s() < before + NOTICED_S
    await witness.check()
    assert all(poll.result()["ok"] for poll in polls if poll.done()), "one was refused"
    for wire in wires:
        wire.abort()


# Clients that do not read

Flood = Callable[[int], bytes]


def _pull_batch(number: int) -> bytes:
    return pack({"cmd": "PULLB", "queue": queue_on(number % 2, "flood"), "count": 1000, "reqId": number})


FLOODS: dict[str, Flood] = {
    "GetJobs": lambda n: pack({"cmd": "GetJobs", "queue": queue_on(0, "flood"), "limit": 1000, "reqId": n}),
    "GetJobs-of-large-jobs": lambda n: pack({"cmd": "GetJobs", "queue": queue_on(1, "large"), "reqId": n}),
    "PULLB": _pull_batch,
    "Ping": lambda n: pack({"cmd": "Ping", "reqId": n}),
    "long-reqId": lambda n: pack({"cmd": "Ping", "reqId": "x" * 10_000}),
    "rubbish": lambda n: frame(b"\xc1"),
    "Stats": lambda n: pack({"cmd": "Stats", "reqId": n}),
    "ListQueues": lambda n: pack({"cmd": "ListQueues", "reqId": n}),
    "PULL-poll": lambda n: pack({"cmd": "PULL", "queue": "nothing", "timeout": LONG_MS, "reqId": n}),
}


async def test_polls_that_nobody_reads(witness: Witness) -> None:
    """Jobs that were given to a client which never read them come back when it is gone."""
    queue = queue_on(0, "unread")
    async with await Wire.open(witness.server.address) as wire:
        ids = (await wire.ok("PUSHB", queue=queue, jobs=[{"data": "x" * 1000} for _ in range(1000)]))["ids"]
        async with await Wire.open(witness.server.address, deaf=True) as deaf:
            deaf.send_many({"cmd": "PULL", "queue": queue, "timeout": 1000} for _ in range(2000))

            async def taken() -> bool:
                return bool((await wire.ok("GetJobCounts", queue=queue))["counts"]["active"] >= 50)

            await eventually(taken, "it is given jobs")
        seen: list[str] = []
        while len(seen) < 1000:
            jobs = (await wire.ok("PULLB", queue=queue, count=1000, timeout=LONG_MS))["jobs"]
            assert jobs, "jobs stayed with a client that is gone"
            seen += [job["id"] for job in jobs]
        assert sorted(seen) == ids
        await wire.ok("ACKB", ids=ids)


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
async def test_a_client_that_asks_and_never_reads(rough_witness: Witness, flood: Flood) -> None:
    witness, server = rough_witness, rough_witness.server
    for queue in (queue_on(0, "flood"), queue_on(1, "flood")):
        missing = 1000 - (await witness.wire.ok("Count", queue=queue))["count"]
        if missing:
            await witness.wire.ok("PUSHB", queue=queue, jobs=[{"data": "x" * 1000}] * missing)
    if not (await witness.wire.ok("Count", queue=queue_on(1, "large")))["count"]:
        await witness.wire.ok("PUSH", queue=queue_on(1, "large"), data="x" * 9_000_000)
    before = await witness.ping_s()
    memory = Memory(server)
    async with await Wire.open(server.address, deaf=True) as deaf:
        sent, deadline = 0, time.monotonic() + 4
        while sent < 100_000 and time.monotonic() < deadline and deaf.alive:
            deaf.write(b"".join(flood(number) for number in range(sent, sent + 1000)))
            sent += 1000
            with suppress(TimeoutError):
                await asyncio.wait_for(deaf.written(), 2)
        assert await witness.ping_s() < before + NOTICED_S
        for number in range(2):  # and both shards are there for others
            async with asyncio.timeout(PATIENCE_S):
                await witness.wire.ok("GetJobCounts", queue=queue_on(number, "witness"))
        router, *shards = memory.peaks()
    assert router < 300, f"{router:.0f} MiB in the router"  # it may keep 128 MiB before it drops the client
    assert max(shards) < 300, f"{max(shards):.0f} MiB in a shard"


async def test_a_client_that_reads_slowly_gets_everything(witness: Witness) -> None:
    """Slow is not dead: what is asked for at a human pace arrives whole and in order."""
    queue = queue_on(0, "slow-reader")
    await witness.wire.ok("PUSHB", queue=queue, jobs=[{"data": "x" * 1000}] * 1000)
    async with await Wire.open(witness.server.address) as slow:
        replies = slow.send_many({"cmd": "GetJobs", "queue": queue, "limit": 1000} for _ in range(30))
        for _ in range(20):
            slow.pause_reading()
            await asyncio.sleep(0.02)  # a reader that is slow, the very thing that is tried
            slow.resume_reading()
            await asyncio.sleep(0.01)  # a reader that is slow, the very thing that is tried
            await witness.wire.ok("Ping")
        for reply in replies:
            assert len((await reply)["jobs"]) == 1000


# Fuzz


@pytest.fixture(scope="module")
def fuzzed(capped_server: Server) -> Iterator[Server]:
    """The server; in the end its processes are the same."""
    before = processes(capped_server)
    yield capped_server
    assert processes(capped_server) == before


def _ask(sock: socket.socket, message: dict[str, Any]) -> Reply:
    """A command and its reply, blocking."""
    sock.sendall(pack(message))
    header = _read(sock, 4)
    reply: Reply = msgpack.unpackb(_read(sock, LENGTH.unpack(header)[0]), strict_map_key=False)
    return reply


def _read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        assert part, "the connection was closed"
        data += part
    return data


def _connect(server: Server) -> socket.socket:
    sock = socket.create_connection(server.address, 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _until_closed(sock: socket.socket) -> bytes:
    """All that the server sends before it closes."""
    data = b""
    with suppress(ConnectionError):
        while part := sock.recv(65_536):
            data += part
    return data


def _replies(data: bytes) -> list[Any]:
    out = []
    while data:
        length = LENGTH.unpack_from(data)[0]
        assert len(data) >= 4 + length, "half a reply"
        out.append(msgpack.unpackb(data[4 : 4 + length], strict_map_key=False))
        data = data[4 + length :]
    return out


def _snapshot(sock: socket.socket) -> list[Any]:
    return [_ask(sock, {"cmd": "GetJobs", "queue": queue})["jobs"] for queue in QUEUES]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=10,
)
names = st.sampled_from(
    "PUSH PUSHB PULL PULLB ACK ACKB FAIL JobHeartbeat JobHeartbeatB GetJob GetState GetResult GetJobs"
    " GetJobCounts Count Progress GetProgress Dlq RetryDlq Hello Ping Stats ListQueues Auth Cancel x".split()
)
fields = st.sampled_from(
    "id ids data jobs token tokens result results count limit offset state priority delay maxAttempts backoff"
    " ttl uniqueKey tags lifo owner lockTtl durable progress message error stack protocolVersion asc"
    " dependsOn jobId".split()
)


@st.composite
def commands(draw: st.DrawFn) -> dict[str, Any]:
    """A command with fields of its own and of others, of right and of wrong types; it never parks."""
    message: dict[str, Any] = {"cmd": draw(names), "queue": draw(st.just("fuzzed") | values)}
    if message["queue"] in QUEUES:
        message["queue"] = "fuzzed"
    message |= draw(st.dictionaries(fields, values, max_size=5))
    if draw(st.booleans()):
        message["jobs"] = draw(st.lists(st.dictionaries(fields, values, max_size=3), max_size=3))
    if draw(st.booleans()):
        message["ids"] = draw(st.lists(st.text(max_size=40), max_size=4))
    return message


@settings(max_examples=budget(25, 1000))
@given(data=st.binary(max_size=2000), cut=st.integers(1, 2000))
def test_random_bytes(fuzzed: Server, data: bytes, cut: int) -> None:
    """As a stream: the first four are a length, mostly one that is too large."""
    with _connect(fuzzed) as witness, _connect(fuzzed) as sock:
        before = _snapshot(witness)
        with suppress(ConnectionError):
            sock.sendall(data[:cut])
            sock.sendall(data[cut:])
            sock.shutdown(socket.SHUT_WR)
        for reply in _replies(_until_closed(sock)):
            assert reply["ok"] is False
        assert _snapshot(witness) == before


@settings(max_examples=budget(25, 1000))
@given(payloads=st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_random_frames(fuzzed: Server, payloads: list[bytes]) -> None:
    """Each gets one error, and the connection goes on."""
    with _connect(fuzzed) as witness, _connect(fuzzed) as sock:
        before = _snapshot(witness)
        sock.sendall(b"".join(map(frame, payloads)))
        for _ in payloads:
            length = LENGTH.unpack(_read(sock, 4))[0]
            reply = msgpack.unpackb(_read(sock, length), strict_map_key=False)
            assert reply["ok"] is False
            assert reply["error"].startswith(INVALID)
        assert _ask(sock, {"cmd": "Ping"})["ok"]
        assert _snapshot(witness) == before


@settings(max_examples=budget(40, 1500))
@given(messages=st.lists(commands(), min_size=1, max_size=10), flip=st.none() | st.integers(0, 10_000))
def test_random_commands(fuzzed: Server, messages: list[dict[str, Any]], flip: int | None) -> None:
    """Commands as they should not be, one with a bit flipped: each gets one reply, and no shard dies."""
    payloads = [msgpack.packb(message | {"reqId": number}) for number, message in enumerate(messages)]
    if flip is not None:
        last = bytearray(payloads[-1])
        last[flip % len(last)] ^= 1 << flip % 8
        payloads[-1] = bytes(last)
    with _connect(fuzzed) as witness, _connect(fuzzed) as sock:
        before = _snapshot(witness)
        sock.sendall(b"".join(map(frame, payloads)))
        numbers = []
        for _ in payloads:
            length = LENGTH.unpack(_read(sock, 4))[0]
            reply = msgpack.unpackb(_read(sock, length), strict_map_key=False)
            assert reply["ok"] in (True, False)
            numbers.append(reply.get("reqId"))
        if flip is None:
            assert sorted(numbers) == list(range(len(payloads)))
        assert _ask(sock, {"cmd": "Ping"})["ok"]
        assert _snapshot(witness) == before
