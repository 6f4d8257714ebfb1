"""The client side of `load_test.py`: requests, each connection's part in a scenario, and the sockets.

One client process drives several connections with `drive`. Packs with `msgpack`, an encoder that the server
does not share. Processes, the command line and reports are in `load_test.py`.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import msgpack

REPLY_SECONDS = 30.0  # a server that is silent for this long counts as dead
PROGRESS_SECONDS = 0.25  # between two reports of progress
LOCK_MS = 120_000  # longer than any job is held here
LENGTH = struct.Struct(">I")  # before every frame
VARIANTS = 32  # variants of a request, each packed once
READ_BYTES = 1 << 18  # one read; holds thousands of small replies

Reply = dict[str, Any]


class LoadError(Exception):
    """The run cannot continue; the text says why."""


@dataclass(frozen=True)
class Options:
    """What to do. The fields are those of the command line."""

    scenario: str
    host: str
    port: int
    token: str | None
    connections: int
    depth: int
    batch: int
    payload: int
    queues: int
    jobs: int
    processes: int
    prefix: str  # of the names of this run's queues

    def queue_names(self) -> list[str]:
        return [f"{self.prefix}-{number}" for number in range(self.queues)]


def times() -> array[float]:
    return array("d")


@dataclass
class Outcome:
    """The outcome, of one client process or of all. Latencies are seconds, by command."""

    jobs: int = 0
    seconds: float = 0.0
    latencies: defaultdict[str, array[float]] = field(default_factory=lambda: defaultdict(times))

    def add(self, other: Outcome) -> None:
        """Add the outcome of another process that ran at the same time."""
        self.jobs += other.jobs
        self.seconds = max(self.seconds, other.seconds)
        for command, values in other.latencies.items():
            self.latencies[command].extend(values)


# Requests


class Request:
    """A command for a number of jobs, packed once.

    The request number is the last thing in the frame, so sending the command only appends the number.
    """

    __slots__ = ("command", "head", "jobs", "queue")

    def __init__(self, command: str, fields: dict[str, object], jobs: int = 0) -> None:
        self.command = command
        self.queue = str(fields.get("queue"))
        self.jobs = jobs
        payload: bytes = msgpack.packb({"cmd": command, **fields, "reqId": request_id(0)})
        self.head = LENGTH.pack(len(payload)) + payload[: -len(request_id(0))]

    def frame(self, number: str) -> bytes:
        return self.head + number.encode()


def request_id(number: int) -> str:
    """Request numbers on the wire: text of a fixed width."""
    return f"{number:08x}"


def data(payload: int, number: int) -> dict[str, str]:
    """The data of a job: random digits, so that a server which compresses gains nothing unusual."""
    return {"blob": Random(number).randbytes(payload).hex()[:payload]}


@cache
def push(queue: str, payload: int, variant: int) -> Request:
    return Request("PUSH", {"queue": queue, "name": "load", "data": data(payload, variant)}, jobs=1)


@cache
def push_batch(queue: str, payload: int, size: int, variant: int) -> Request:
    jobs = [{"name": "load", "data": data(payload, variant * size + number)} for number in range(size)]
    return Request("PUSHB", {"queue": queue, "jobs": jobs}, jobs=size)


@cache
def pull(queue: str, size: int) -> Request:
    return Request("PULLB", {"queue": queue, "count": size, "owner": "load-test", "lockTtl": LOCK_MS})


def acknowledge(reply: Reply) -> Request:
    """The ACKB for the jobs of a PULLB."""
    ids = [job["id"] for job in reply["jobs"]]
    tokens = reply["tokens"]
    if len(tokens) != len(ids):
        raise LoadError(f"PULLB: {len(ids)} jobs, but {len(tokens)} tokens")
    return Request("ACKB", {"ids": ids, "tokens": tokens, "results": [True] * len(ids)}, jobs=len(ids))


# What a connection sends


class Part:
    """A part of a connection's conversation: what to send next, and how to handle the replies.

    It is over when it has nothing to send and every request has its reply.
    """

    def next(self) -> Request | None:
        raise NotImplementedError

    def receive(self, request: Request, reply: Reply) -> int:
        """Handle a reply; returns how many jobs it finishes."""
        raise NotImplementedError


class Push(Part):
    """Pushes this connection's share of the jobs, to all queues in turn."""

    def __init__(self, options: Options, index: int, single: bool = False) -> None:
        self.options = options
        self.single = single
        self.left = options.jobs // options.connections + (index < options.jobs % options.connections)
        self.queues = turned(options.queue_names(), index)

    def next(self) -> Request | None:
        if not self.left:
            return None
        queue = self.queues[0]
        self.queues.rotate(-1)
        size = 1 if self.single else min(self.options.batch, self.left)
        self.left -= size
        payload, variant = self.options.payload, self.left // size % VARIANTS
        return push(queue, payload, variant) if self.single else push_batch(queue, payload, size, variant)

    def receive(self, request: Request, reply: Reply) -> int:
        ids = [reply["id"]] if self.single else reply["ids"]
        if len(ids) != request.jobs:
            raise LoadError(f"{request.command}: {request.jobs} jobs sent, {len(ids)} ids in the reply")
        return request.jobs


class Cycle(Push):
    """Pushes a batch, pulls one, acknowledges it. Connections take each other's jobs, so some may be left."""

    def __init__(self, options: Options, index: int) -> None:
        super().__init__(options, index)
        self.ready: deque[Request] = deque()

    def next(self) -> Request | None:
        return self.ready.popleft() if self.ready else super().next()

    def receive(self, request: Request, reply: Reply) -> int:
        if request.command == "ACKB":
            return request.jobs
        if request.command == "PUSHB":
            super().receive(request, reply)
            self.ready.append(pull(request.queue, self.options.batch))
        elif reply["jobs"]:
            self.ready.append(acknowledge(reply))
        return 0


class Drain(Part):
    """Pulls and acknowledges until every queue has been empty once."""

    def __init__(self, options: Options, index: int) -> None:
        self.batch = options.batch
        self.queues = turned(options.queue_names(), index)
        self.ready: deque[Request] = deque()

    def next(self) -> Request | None:
        if self.ready:
            return self.ready.popleft()
        if not self.queues:
            return None
        self.queues.rotate(-1)
        return pull(self.queues[-1], self.batch)

    def receive(self, request: Request, reply: Reply) -> int:
        if request.command == "ACKB":
            return request.jobs
        if reply["jobs"]:
            self.ready.append(acknowledge(reply))
        elif request.queue in self.queues:
            self.queues.remove(request.queue)
        return 0


SCENARIOS: dict[str, Callable[[Options, int], list[Part]]] = {
    "push": lambda options, index: [Push(options, index, single=True)],
    "push-batch": lambda options, index: [Push(options, index)],
    "drain": lambda options, index: [Drain(options, index)],
    "mixed": lambda options, index: [Cycle(options, index), Drain(options, index)],
}


def turned(names: Sequence[str], index: int) -> deque[str]:
    """The names in the same order, with a different start for each connection."""
    queues = deque(names)
    queues.rotate(-index)
    return queues


# Sockets


def check(command: str, reply: Reply) -> None:
    if reply.get("ok") is not True:
        raise LoadError(f"{command}: {reply.get('error', reply)}")


def connect(options: Options) -> socket.socket:
    """A blocking socket, authenticated if there is a token."""
    connection = socket.create_connection((options.host, options.port), timeout=REPLY_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.token:
        ask(connection, Request("Auth", {"token": options.token}))
    return connection


def ask(connection: socket.socket, request: Request) -> None:
    """One request on a blocking socket, and its reply."""
    connection.sendall(request.frame(request_id(0)))
    with connection.makefile("rb") as stream:
        head = stream.read(LENGTH.size)
        reply = stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""
    if not reply:
        raise LoadError("the server closed the connection")
    check(request.command, msgpack.unpackb(reply))


class Connection:
    """One socket, with at most `depth` requests in flight. Counts finished jobs and times every request."""

    def __init__(self, options: Options, index: int, outcome: Outcome) -> None:
        self.depth = options.depth
        self.parts = deque(SCENARIOS[options.scenario](options, index))
        self.outcome = outcome
        self.in_flight: dict[str, tuple[Request, float]] = {}
        self.sent = 0
        self.outgoing = bytearray()
        self.incoming = bytearray()
        self.socket = connect(options)
        self.socket.setblocking(False)

    @property
    def done(self) -> bool:
        return not self.parts

    @property
    def events(self) -> int:
        """The events that the selector should watch for."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.outgoing else 0)

    def next(self) -> Request | None:
        while self.parts:
            if request := self.parts[0].next():
                return request
            if self.in_flight:
                return None  # a reply may give this part more to send
            self.parts.popleft()
        return None

    def send(self) -> None:
        """Send as much as depth and socket allow."""
        now = time.perf_counter()
        while len(self.in_flight) < self.depth and (request := self.next()):
            number = request_id(self.sent)
            self.sent += 1
            self.in_flight[number] = request, now
            self.outgoing += request.frame(number)
        if self.outgoing:
            with suppress(BlockingIOError):
                del self.outgoing[: self.socket.send(self.outgoing)]

    def read(self) -> None:
        """Handle what has arrived, reply by reply."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise LoadError("the server closed the connection")
        self.incoming += data
        now = time.perf_counter()
        start = 0
        while len(self.incoming) >= start + 4:
            end = start + 4 + LENGTH.unpack_from(self.incoming, start)[0]
            if len(self.incoming) < end:
                break
            self.take(msgpack.unpackb(self.incoming[start + 4 : end], strict_map_key=False), now)
            start = end
        del self.incoming[:start]

    def take(self, reply: Reply, now: float) -> None:
        request, since = self.in_flight.pop(str(reply.get("reqId")), (None, now))
        check(request.command if request else "server", reply)
        if request is None:
            raise LoadError(f"a reply to no request: {reply}")
        self.outcome.latencies[request.command].append(now - since)
        self.outcome.jobs += self.parts[0].receive(request, reply)


def drive(connections: Sequence[Connection], progress: Callable[[], None]) -> None:
    """Run all conversations to their end, calling `progress` now and then."""
    report_at = time.perf_counter() + PROGRESS_SECONDS
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.send()
            selector.register(connection.socket, connection.events, connection)
        while not all(connection.done for connection in connections):
            ready = selector.select(REPLY_SECONDS)
            if not ready:
                raise LoadError(f"no reply within {REPLY_SECONDS:g} s")
            for key, mask in ready:
                connection = key.data
                if mask & selectors.EVENT_READ:
                    connection.read()
                connection.send()
                if connection.events != key.events:
                    selector.modify(connection.socket, connection.events, connection)
            if time.perf_counter() >= report_at:
                report_at = time.perf_counter() + PROGRESS_SECONDS
                progress()
