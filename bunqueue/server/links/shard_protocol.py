"""The protocol on the Unix socket between the router and a shard.

Both directions carry *envelopes*: a fixed header and a body of whole client frames.  So all commands in one
read from a connection travel as one envelope, and all replies to them come back as one.

Router to shard: ``u32 body length | u32 connection | u8 kind | body``.  Shard to router: the same with
``u32 replies | u16 slow`` after the kind.  These are the number of commands that the body answers, and how
many of them may be answered late.  With them the router counts commands in flight without parsing frames.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.model.quota import Quota
from bunqueue.protocol.framing import HEADER

_length_at = struct.Struct(">I").unpack_from
TO_SHARD = struct.Struct(">IIB")
TO_ROUTER = struct.Struct(">IIBIH")

# Kinds, router to shard.  2 and 3 are commands in that protocol version.
CLOSED = 0  # the client closed the connection: its jobs return to their queues
SEVERED = 1  # the server closed the connection: locked jobs stay with their holder until the lock expires
COMMANDS_V2 = 2
COMMANDS_V3 = 3
SCOPED = 0x40  # added to these if the first frame is the scope of the connection, not a command
COMMAND_KINDS = (COMMANDS_V2, COMMANDS_V3, COMMANDS_V2 | SCOPED, COMMANDS_V3 | SCOPED)
LIVE = 4  # answer to READY: the open connections (body: packed u32)
PING = 5
DRAIN = 6  # answer what can be answered, then exit
PEER_MESSAGE = 7  # from another shard: the body is its number and the message
PEER = 8  # another shard is ready, perhaps after a restart: the body is its number
UNSUBSCRIBE = 9  # the connection wants no more events
WORKER_PRESENCE = 10  # the workers of a queue have changed: the body is WorkerPresence
BROKEN = 11  # the connection broke: its locked jobs wait for their worker to connect again
GONE = 12  # the process of a worker on this machine has ended: the body is the worker's id
HANDOVER = 13  # another host takes the shard over: answer the commands received, give up the shard, exit
SUBSCRIBE = 15  # a connection continues its subscription to a queue's events: the body is the queue's name
ORIGIN_GONE = 16  # the router with this origin (in the connection's number) is gone, with all its workers
ORIGIN_CUT = (
    18  # the router with this origin is unreachable: it closes connections that wait for an answer from here
)
ROUTER = 17  # first message of a secondary router of this host: the body is RouterHello
OWNER_RELEASED = 14  # before READY: check again, the owner for which the shard waits has given it up
ASKER = (
    19  # for the ticket whose command comes next: the body is the asking connection, which pays with its turn
)
HALF_CLOSED = 20  # the client sends nothing more but may still read: give it no more jobs
QUOTAS = 21  # the bounds of all namespaces, whenever the file of identities has changed

# Kinds, shard to router.
REPLIES = 0
HELLO = 1  # first message: body is ShardHello
READY = 2  # recovered; commands may follow after LIVE.  Body: the epoch of a shard with a log, 8 bytes
PROGRESS = 3  # still loading: body is ShardProgress
PONG = 4
EVENTS = 5  # for connection CONTROL; body: connections and event frames (`pack_events`)
TO_PEER = 6  # a peer message: the body is the receiving shard's number and the message
LOST = 7  # the outcome of the commands of these connections is unknown for good (body: packed u32)
DAMAGED = 8  # the shard exits; do not restart it before its file is repaired: the body says why
WAITING = 9  # not ready yet, through no fault of its own: the body says what it waits for
STANDBY = 10  # not ready yet: its file is up to date, and it only waits for the owner to end
RETURNED = (
    11  # with HANDOVER: commands that waited here, for the next owner; body: u32 connection, u8 version
)
RELEASED = 12  # with HANDOVER: the shard has no owner now
ENDING = 13  # the shard exits of its own accord: the body says why

END_KINDS = (CLOSED, SEVERED, BROKEN)

NEVER = 3  # exit status of a shard: it could not start, and a restart would fail in the same way
CONTROL = 0  # the "connection" of messages that concern no client

# A connection's number has a bit for tickets, eight bits for the router (its *origin*, 0 if it is the only
# one), and the number that this router gave it.  If a host has several routers, the first five bits of that
# number identify the router.
TICKET = 0x8000_0000  # numbers of at least this are tickets of gathered commands
ORIGIN_SHIFT = 23
MAX_NUMBER = (1 << ORIGIN_SHIFT) - 1
MAX_ORIGIN = 255
ROUTER_SHIFT = 18
MAX_ROUTERS = 1 << (ORIGIN_SHIFT - ROUTER_SHIFT)  # of one host


def origin_of(conn: int) -> int:
    """The router that a connection, or a ticket, belongs to."""
    return (conn >> ORIGIN_SHIFT) & MAX_ORIGIN


def router_of(conn: int) -> int:
    """The router that a connection, or a ticket, belongs to, when hosts have several routers: its origin and
    its number on that host."""
    return (conn & ~TICKET) >> ROUTER_SHIFT


class ShardHello(Struct):
    """Identifies a connecting shard: its number and process, and the secret that it was started with."""

    shard: int
    pid: int
    secret: str


class ShardProgress(Struct):
    """The progress of recovery."""

    loaded: int
    total: int


class RouterHello(Struct):
    """Identifies a router that connects to a shard: `router_of` its connections, the shard's secret, and the
    open connections (packed u32)."""

    router: int
    secret: str
    live: bytes


class WorkerPresence(Struct):
    """Queues of a shard, and whether registered workers work on them.

    ``names`` has the names of the jobs that a queue's workers run; queues where this is unknown are missing.
    """

    queues: list[str]
    present: bool
    names: dict[str, list[str]] = {}


encode = Encoder().encode
decode_worker_presence = Decoder(WorkerPresence).decode
decode_hello = Decoder(ShardHello).decode
decode_router_hello = Decoder(RouterHello).decode
decode_progress = Decoder(ShardProgress).decode
decode_quotas = Decoder(dict[str, Quota]).decode


def envelope(conn: int, kind: int, body: bytes = b"") -> bytes:
    """Router to shard."""
    return TO_SHARD.pack(len(body), conn, kind) + body


def answer(conn: int, kind: int, body: bytes = b"", replies: int = 0, slow: int = 0) -> bytes:
    """Shard to router."""
    return TO_ROUTER.pack(len(body), conn, kind, replies, slow) + body


def pack_connections(connections: list[int]) -> bytes:
    return struct.pack(f">{len(connections)}I", *connections)


def unpack_connections(body: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(body) // 4}I", body)


def pack_events(connections: Collection[int], frames: list[bytes]) -> bytes:
    """Pack frames for many connections, so that they cross the socket only once."""
    return b"".join([struct.pack(f">{len(connections) + 1}I", len(connections), *connections), *frames])


def unpack_events(body: bytes) -> tuple[tuple[int, ...], bytes]:
    """The connections, and the frames for them."""
    end = 4 + 4 * int.from_bytes(body[:4], "big")
    return unpack_connections(body[4:end]), body[end:]


def split_scope(kind: int, body: bytes) -> tuple[int, bytes, bytes]:
    """The version of an envelope with commands, the scope of their connection ("" without one), and the
    commands."""
    if not kind & SCOPED:
        return kind, b"", body
    end = HEADER + _length_at(body)[0]
    return kind & ~SCOPED, body[HEADER:end], body[end:]


class EnvelopeSplitter:
    """Takes bytes in pieces of any size and returns ``(header fields..., body)`` tuples."""

    __slots__ = ("_header", "_rest", "_want")

    def __init__(self, header: struct.Struct) -> None:
        self._header = header
        self._rest = bytearray()
        self._want = 0

    def feed(self, data: bytes) -> list[tuple[tuple[int, ...], bytes]]:
        """All envelopes that ``data`` completes: the header fields without the length, and the body."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._want:
                return []
            data = bytes(self._rest)
            self._rest.clear()
        unpack, size = self._header.unpack_from, self._header.size
        out = []
        start, total = 0, len(data)
        want = size
        while total - start >= size:
            fields = unpack(data, start)
            end = start + size + fields[0]
            if end > total:
                want = size + fields[0]
                break
            out.append((fields[1:], data[start + size : end]))
            start = end
            want = size
        if start < total:
            self._rest += data[start:]
            self._want = want
        return out


def split_frames(body: bytes) -> list[bytes]:
    """The payloads (without length prefix) of a body that consists of whole frames."""
    out = []
    end, total = 0, len(body)
    while end < total:
        start = end + HEADER
        end = start + _length_at(body, end)[0]
        out.append(body[start:end])
    return out
