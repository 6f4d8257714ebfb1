"""The fixed loads of `bench_check.py`, in the process that is measured: a router, a shard or a client.

    python scripts/bench_loads.py shard|router|client --how bytecodes|instructions [--port PORT] [--features]

A router and a shard run here without their peers: this program is the client, or the router, at the other end
of real sockets, and lets them work one turn at a time. Time is simulated and randomness is seeded, so a load
is the same in each run. A client works with a real server at PORT, one command after another.

Prints one line for each load: its name, the number of jobs, and how many bytecodes were executed (0 under
callgrind, which writes the instructions of a load into a file of its own whenever `mark` is called).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, cast

import msgpack
import uvloop

ROOT = Path(__file__).resolve().parent.parent
OURS = tuple(f"{ROOT}/{package}/" for package in ("bunqueue", "router", "shardproc"))
TURNS, DEPTH, BATCH = 12, 50, 100
WARM = 4  # turns before it is counted: by then Python has specialised its bytecodes
STEP_MS = 3  # of the simulated time, for each turn
DATA = {"to": "user@example.com", "template": "welcome", "blob": "x" * 32}
FEATURES: Mapping[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "without options": ({}, None),
    "a priority": ({"priority": 5}, None),
    "more attempts": ({"maxAttempts": 5}, None),
    "a timeout": ({"timeout": 60_000}, None),
    "a time to live": ({"ttl": 3_600_000}, None),
    "tags": ({"tags": ["mail", "eu"]}, None),
    "headers": (
        {"headers": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}},
        None,
    ),
    "its own id": ({"jobId": "{}"}, None),
    "a unique key": ({"uniqueKey": "{}"}, None),
    "an idempotency key": ({"idempotencyKey": "{}"}, None),
    "a group": ({"groupId": "tenant-1"}, None),
    "retention of its own": ({"keepCompleted": 86_400_000}, None),
    "removed when complete": ({"removeOnComplete": True}, None),
    "a bounded queue": ({}, {"cmd": "SetBounds", "queue": "q", "config": {"maxWaiting": 100_000}}),
    "a rate limit": ({}, {"cmd": "RateLimit", "queue": "q", "limit": 1_000_000, "duration": 1}),
    "a concurrency limit": ({}, {"cmd": "SetConcurrency", "queue": "q", "limit": 100_000}),
    "a circuit breaker": ({}, {"cmd": "SetBreaker", "queue": "q", "config": {"failures": 5}}),
    "somebody subscribed": ({}, {"cmd": "SubscribeEvents", "queue": "q"}),
}
"""What a job may have: fields of its PUSH ("{}" is its number), and a command that is sent before."""


# -- counting


class Bytecodes:
    """Counts the bytecodes of our code that this thread executes, function by function. Those of Python's own
    library differ between its patch releases."""

    def __init__(self) -> None:
        self.by_code: dict[CodeType, int] = {}

    def start(self) -> None:
        sys.settrace(self._enter)

    def stop(self) -> int:
        sys.settrace(None)
        return sum(self.by_code.values())

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._count

    def _count(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            self.by_code[frame.f_code] = self.by_code.get(frame.f_code, 0) + 1
        return self._count


class Meter:
    """Measures loads in one of two ways, and prints the results."""

    def __init__(self, how: str, top: int = 0) -> None:
        self._bytecodes, self._top = how == "bytecodes", top
        self._instrumented = False

    @contextmanager
    def load(self, name: str, jobs: int) -> Iterator[None]:
        """The block is the load."""
        gc.collect()
        gc.disable()
        count, counter = 0, Bytecodes()
        try:
            if self._bytecodes:
                counter.start()
                yield
                count = counter.stop()
            else:
                self._instrument()
                mark()
                yield
                mark()
        finally:
            gc.enable()
        print(name, jobs, count, sep="\t", flush=True)
        most = self._top if jobs else 0
        for code, executed in sorted(counter.by_code.items(), key=lambda item: -item[1])[:most]:
            where = f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
            print(f"    {executed / jobs:8.1f}  {where}", file=sys.stderr)

    def _instrument(self) -> None:
        """Have callgrind begin to count: what was before, mostly imports, would take it a minute."""
        if not self._instrumented:
            self._instrumented = True
            command = ["vgdb", f"--pid={os.getpid()}", "instrumentation", "on"]
            asked = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while asked.poll() is None:
                time.sleep(0.01)


def mark() -> None:
    """A call that nothing else makes, before which callgrind writes its counts and begins with 0."""
    os.getloadavg()


class StoppedTime:
    """The module `time`, for modules whose decisions must not depend on how fast this machine is."""

    monotonic = staticmethod(itertools.repeat(1.0).__next__)
    thread_time = monotonic
    monotonic_ns = staticmethod(itertools.repeat(10**9).__next__)


# -- frames


def frame(message: Mapping[str, Any]) -> bytes:
    payload: bytes = msgpack.packb(message)
    return len(payload).to_bytes(4, "big") + payload


def messages(body: bytes) -> list[dict[str, Any]]:
    found, start = [], 0
    while start < len(body):
        end = start + 4 + int.from_bytes(body[start : start + 4], "big")
        found.append(msgpack.unpackb(body[start + 4 : end], strict_map_key=False))
        start = end
    return found


PUSH = {"cmd": "PUSH", "queue": "q", "name": "send", "data": DATA, "reqId": 1}
PUSHB = {"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "send", "data": DATA}] * BATCH, "reqId": 1}
PULL = {"cmd": "PULL", "queue": "q", "owner": "w", "lockTtl": 60_000, "reqId": 1}
PULLB = {**PULL, "cmd": "PULLB", "count": BATCH}


def ack(pulled: Mapping[str, Any]) -> dict[str, Any]:
    return {"cmd": "ACK", "id": pulled["job"]["id"], "token": pulled["token"], "result": 1, "reqId": 1}


def ack_batch(pulled: Mapping[str, Any]) -> dict[str, Any]:
    ids = [job["id"] for job in pulled["jobs"]]
    return {"cmd": "ACKB", "ids": ids, "tokens": pulled["tokens"], "results": [1] * len(ids), "reqId": 1}


def renewal(pulled: Mapping[str, Any]) -> dict[str, Any]:
    return {"cmd": "JobHeartbeat", "id": pulled["job"]["id"], "token": pulled["token"], "reqId": 1}


# -- a shard


class OneShard:
    """A shard with its file and its loop, and the router's end of its socket."""

    def __init__(self, folder: str) -> None:
        from bunqueue.server.links import shard_protocol as link
        from shardproc import server
        from shardproc.clock import Clock
        from shardproc.resilient import ResilientShard

        outer = self
        self.now = 1_700_000_000_000

        class Stepping(Clock):
            def now_ms(self) -> int:
                return outer.now

            def check_jump(self) -> int:
                return 0

        self._link = link
        path = os.path.join(tempfile.mkdtemp(dir=folder), "shard-00.db")
        self.shard = ResilientShard(path, full_sync=False, clock=Stepping())
        self.shard.recover(self.now, "epoch", lambda loaded, total: None)
        self._router, inner = socket.socketpair(socket.AF_UNIX)
        for end in (self._router, inner):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
        self._server = server.Server(self.shard, inner)

    def turn(self, body: bytes, kind: int | None = None) -> bytes:
        """The client of connection 1 sends some commands; returns what the shard sends to the router."""
        kind = self._link.COMMANDS_V3 if kind is None else kind
        self.now += STEP_MS
        self._router.sendall(self._link.envelope(1, kind, body))
        assert self._server._turn()
        return self._router.recv(1 << 22)

    def ask(self, *commands: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The replies to commands that are sent in one turn."""
        found = self.replies(self.turn(b"".join(map(frame, commands))))
        if len(found) != len(commands) or not all(reply["ok"] for reply in found):
            raise SystemExit(f"the shard answers {found[:3]}")
        return found

    def replies(self, data: bytes) -> list[dict[str, Any]]:
        """The replies in what the shard has sent."""
        found, start, link = [], 0, self._link
        while start < len(data):
            size, _, kind, _, _ = link.TO_ROUTER.unpack_from(data, start)
            start += link.TO_ROUTER.size
            if kind == link.REPLIES:
                found += messages(data[start : start + size])
            start += size
        return found

    def close(self) -> None:
        self.shard.close()


def stop_time() -> None:
    """Nothing that this process decides may depend on real time."""
    import shardproc.resilient
    import shardproc.server
    from bunqueue.server.host import pace
    from shardproc import rounds

    for module in (shardproc.resilient, shardproc.server):
        vars(module)["time"] = StoppedTime
    pace.monotonic = pace.thread_time = rounds.monotonic = StoppedTime.monotonic  # type: ignore[attr-defined]


def shard_loads(meter: Meter, folder: str) -> None:
    from bunqueue.server.links.shard_protocol import PING

    def measure(name: str, bodies: list[bytes], jobs: int, prepare: Callable[[OneShard], object]) -> None:
        """Each of the bodies in a turn; the first ones are not counted. `jobs`: of each."""
        one = OneShard(folder)
        prepare(one)
        for body in bodies[:WARM]:
            one.turn(body)
        with meter.load(name, jobs * (len(bodies) - WARM)):
            for body in bodies[WARM:]:
                one.turn(body)
        one.close()

    turns = TURNS + WARM
    many = [b"".join([frame(PUSH)] * DEPTH)] * turns
    measure("PUSH, 50 at once", many, DEPTH, lambda one: None)
    measure("PUSH, one at a time", [frame(PUSH)] * (10 * turns), 1, lambda one: None)
    measure("PUSHB of 100", [frame(PUSHB)] * turns, BATCH, lambda one: None)

    def pulled(one: OneShard, each: Mapping[str, Any], times: int) -> list[list[dict[str, Any]]]:
        for _ in range(turns * (BATCH if each is PULLB else DEPTH) // BATCH):
            one.ask(PUSHB)
        return [one.ask(*[each] * times) for _ in range(turns)]

    def fill(one: OneShard) -> None:
        for _ in range(turns):
            one.ask(PUSHB)

    measure("PULL, 50 at once", [b"".join([frame(PULL)] * DEPTH)] * turns, DEPTH, fill)
    measure("PULL, one at a time", [frame(PULL)] * (10 * turns), 1, fill)
    measure("PULLB of 100", [frame(PULLB)] * turns, BATCH, fill)
    finishing: list[tuple[str, Mapping[str, Any], int, Callable[[Mapping[str, Any]], Mapping[str, Any]]]] = [
        ("ACK, 50 at once", PULL, DEPTH, ack),
        ("ACK, one at a time", PULL, 1, ack),
        ("ACKB of 100", PULLB, 1, ack_batch),
        ("lock renewal, 50 at once", PULL, DEPTH, renewal),
    ]
    for name, each, times, command in finishing:
        one = OneShard(folder)
        bodies = [b"".join(frame(command(reply)) for reply in got) for got in pulled(one, each, times)]
        for body in bodies[:WARM]:
            one.turn(body)
        with meter.load(name, TURNS * (BATCH if each is PULLB else times)):
            for body in bodies[WARM:]:
                one.turn(body)
        one.close()
    one = OneShard(folder)
    for _ in range(WARM):
        one.turn(b"", PING)
    with meter.load("a turn without commands", 10 * TURNS):
        for _ in range(10 * TURNS):
            one.turn(b"", PING)
    one.close()


def feature_loads(meter: Meter, folder: str) -> None:
    """A job from its PUSH to its ACK, with each of FEATURES: three rows for each."""
    for name, (fields, before) in FEATURES.items():
        one, numbers = OneShard(folder), itertools.count()
        if before is not None:
            one.ask({**before, "reqId": 1})
        for counted in (False, False, True, True):
            pushes = b"".join(frame(_push_with(fields, str(next(numbers)))) for _ in range(DEPTH))
            with meter.load(name, DEPTH) if counted else nullcontext():
                one.turn(pushes)
            pulls = b"".join([frame(PULL)] * DEPTH)
            with meter.load(name, 0) if counted else nullcontext():
                data = one.turn(pulls)
            pulled = [reply for reply in one.replies(data) if reply.get("job")]
            if len(pulled) != DEPTH:
                raise SystemExit(f"{name}: {len(pulled)} jobs of {DEPTH} were pulled")
            acks = b"".join(frame(ack(reply)) for reply in pulled)
            with meter.load(name, 0) if counted else nullcontext():
                one.turn(acks)
        one.close()


def _push_with(fields: Mapping[str, Any], number: str) -> dict[str, Any]:
    return {**PUSH, **{key: number if value == "{}" else value for key, value in fields.items()}}


# -- a router


class NoOwner:
    """For a link to a shard that nobody has started."""

    def lost(self, link: object) -> None:
        """The load has ended."""


class OneRouter:
    """The router's part of one client and one shard, and the other ends of their sockets."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()  # as in a router
        asyncio.set_event_loop(self._loop)
        self._shard, inner = socket.socketpair(socket.AF_UNIX)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._client = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for end in (self._shard, inner):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
        self._loop.run_until_complete(self._connect(accepted, inner))
        self._shard.setblocking(False)
        self._client.setblocking(False)

    async def _connect(self, client: socket.socket, shard: socket.socket) -> None:
        from bunqueue.server.settings.settings import Settings
        from router.clients.connection import ClientConnection
        from router.clients.hub import Hub
        from router.shards.link import Owner, ShardLink

        hub, owner = Hub(Settings(shards=1, busy_poll=0)), cast(Owner, NoOwner())
        _, link = await self._loop.create_connection(lambda: ShardLink(hub, owner), sock=shard)
        link.dialled(0, 0)
        hub.shards.serve_here(link)
        await self._loop.create_connection(lambda: ClientConnection(hub), sock=client)

    def exchange(self, sent: bytes, answered: bytes, replies: int, turns: int) -> None:
        """The client sends something so many times, and waits each time for what the shard answers. The
        router's loop runs all the time, as in a server."""
        from bunqueue.server.links import shard_protocol as link

        got, left, unread = b"", turns, len(answered)

        def at_shard() -> None:
            nonlocal got
            got += self._shard.recv(1 << 22)
            if len(got) == link.TO_SHARD.size + len(sent):
                _, conn, _ = link.TO_SHARD.unpack_from(got)
                self._shard.sendall(link.answer(conn, link.REPLIES, answered, replies))
                got = b""

        def at_client() -> None:
            nonlocal left, unread
            unread -= len(self._client.recv(1 << 22))
            if not unread:
                left, unread = left - 1, len(answered)
                if left:
                    self._client.sendall(sent)
                else:
                    self._loop.stop()

        self._loop.add_reader(self._shard, at_shard)
        self._loop.add_reader(self._client, at_client)
        self._client.sendall(sent)
        self._loop.run_forever()
        if left:
            raise SystemExit("the router passes nothing on")

    def close(self) -> None:
        self._shard.close()
        self._client.close()
        self._loop.close()


IDENTIFIER = "0190a5e4-aaaa-7000-8000-000000000001"
OF_JOB = {"id": IDENTIFIER, "token": IDENTIFIER, "reqId": 1}
JOB = {"id": IDENTIFIER, **{f"field{number}": None for number in range(40)}}
ROUTED: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "PUSH": (PUSH, {"ok": True, "id": IDENTIFIER, "reqId": 1}),
    "PULL": (PULL, {"ok": True, "job": JOB, "token": IDENTIFIER, "reqId": 1}),
    "ACK": ({"cmd": "ACK", "result": 1, **OF_JOB}, {"ok": True, "reqId": 1}),
    "lock renewal": ({"cmd": "JobHeartbeat", **OF_JOB}, {"ok": True, "reqId": 1}),
}
"""Commands, and the replies of the shard."""


def router_loads(meter: Meter) -> None:
    for name, (command, reply) in ROUTED.items():
        route(meter, f"{name}, 50 at once", frame(command) * DEPTH, frame(reply) * DEPTH, DEPTH, TURNS)
        route(meter, f"{name}, one at a time", frame(command), frame(reply), 1, 10 * TURNS)
    ids = {"ok": True, "ids": [IDENTIFIER] * BATCH, "reqId": 1}
    route(meter, "PUSHB of 100", frame(PUSHB), frame(ids), BATCH, 10 * TURNS)


def route(meter: Meter, name: str, sent: bytes, answered: bytes, jobs: int, turns: int) -> None:
    """In each turn commands about so many jobs go to the shard, and its replies to the client."""
    one = OneRouter()
    replies = len(messages(answered))
    one.exchange(sent, answered, replies, WARM)
    with meter.load(name, jobs * turns):
        one.exchange(sent, answered, replies, turns)
    one.close()


# -- a client


def client_loads(meter: Meter, port: int) -> None:
    from bunqueue import AsyncQueue, Queue

    times = 10 * TURNS
    with Queue("q", port=port) as queue:
        for _ in range(10 * WARM):
            queue.add("send", DATA)
        with meter.load("add", times):
            for _ in range(times):
                queue.add("send", DATA)
        many = [("send", DATA)] * BATCH
        for _ in range(WARM):
            queue.add_bulk(many)
        with meter.load("add_bulk of 100", TURNS * BATCH):
            for _ in range(TURNS):
                queue.add_bulk(many)

    async def adding() -> None:
        async with AsyncQueue("q", port=port) as queue:
            for _ in range(10 * WARM):
                await queue.add("send", DATA)
            await measured(queue.add)

    async def measured(add: Callable[[str, object], Awaitable[object]]) -> None:
        with meter.load("add, async", times):
            for _ in range(times):
                await add("send", DATA)

    asyncio.run(adding())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("process", choices=("shard", "router", "client", "features"))
    parser.add_argument("--how", choices=("bytecodes", "instructions"), default="bytecodes")
    parser.add_argument("--port", type=int, default=6789, help="of the server that the client uses")
    parser.add_argument("--top", type=int, default=0, help="print the functions with the most bytecodes")
    options = parser.parse_args()
    random.seed(1)
    secrets.randbits = random.getrandbits  # type: ignore[assignment]  # the same, with another name
    meter = Meter(options.how, options.top)
    if options.process == "client":
        client_loads(meter, options.port)
        return
    stop_time()
    if options.process == "router":
        router_loads(meter)
        return
    from shardproc.storage.one_thread import without_locks

    without_locks()  # as a shard does
    with tempfile.TemporaryDirectory() as folder:
        (shard_loads if options.process == "shard" else feature_loads)(meter, folder)


if __name__ == "__main__":
    main()
