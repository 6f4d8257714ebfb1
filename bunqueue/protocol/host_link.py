"""What crosses the connection between the routers of two hosts of a cluster.

A router dials every other one and uses its shards over this connection, so between two hosts there are two.
Both directions carry envelopes with one header: ``u32 body length | u8 channel | u8 shard | u32 connection |
u8 kind | u32 replies | u16 slow``.

- TO_SHARD, from the one that dialled: what its own shards would get, see `bunqueue.protocol.link`.
- FROM_SHARD, back: what these would have answered.
- HOST, both ways: what the routers say to each other; kinds and bodies are below.

The one that dialled sends HELLO first, and the other CHALLENGE; it answers with PROOF, and is answered with
WELCOME.  Each of the four has a limit, and nothing else is read before.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

HEADER = struct.Struct(">IBBIBIH")
VERSIONS = (1, 1)  # the oldest and the newest of this protocol that this program speaks
MAX_GREETING = 4096  # bytes of a body before WELCOME

TO_SHARD, FROM_SHARD, HOST = range(3)  # channels

# Kinds of the channel HOST.
HELLO = 0  # body: Hello
CHALLENGE = 1  # 32 bytes that have to be proved to be known with the cluster's secret
PROOF = 2
WELCOME = 3  # body: Welcome
REFUSED = 4  # and why; the connection is closed
PING, PONG = 5, 6
UP = 7  # a shard serves at the sender's; ``connection`` is its epoch's low bits, body: the epoch as 8 bytes
DOWN = 8  # it does not any more
MOVING = 9  # the sender is about to give the shard up: send nothing more for it, and say HOLDING
HOLDING = 10
STANDBY = 11  # the sender is ready to take the shard over
RELEASED = 12  # it has no owner now
RETURNED = 13  # commands of the receiver's clients that waited at the shard: they are to be asked again
LIVE = 14  # all connections of the sender's (packed u32)
WORKERS = 15  # body: the registered workers at the sender's
FORWARD = (
    16  # body: a command that only the receiver's router can answer; its reply comes back with FORWARDED
)
FORWARDED = 17
POKE = 18  # the placement in the store has changed
LOAD = 19  # body: Load

SECRET_BYTES = 32


class Hello(Struct):
    """Who dials.  ``life`` is new for each start of its router: connections of another one are gone."""

    cluster: str
    store: str
    host: str
    number: int
    life: str
    oldest: int
    newest: int


class Welcome(Struct):
    """The version that is spoken from now on, and the life of the one that was dialled."""

    version: int
    host: str
    life: str


class Load(Struct):
    """How busy the sender's machine is."""

    per_core: float  # processes that want a core, per core, in the mean of a minute


encode = Encoder().encode
decode_load = Decoder(Load).decode
decode_hello = Decoder(Hello).decode
decode_welcome = Decoder(Welcome).decode


def envelope(
    channel: int,
    kind: int,
    body: bytes = b"",
    *,
    shard: int = 0,
    conn: int = 0,
    replies: int = 0,
    slow: int = 0,
) -> bytes:
    return HEADER.pack(len(body), channel, shard, conn, kind, replies, slow) + body


def prove(secret: str, challenge: bytes, host: str) -> bytes:
    """What only a host that can read the store knows."""
    return hmac.digest(bytes.fromhex(secret), challenge + host.encode(), hashlib.sha256)


def agree(oldest: int, newest: int) -> int | None:
    """The newest version that both speak; None without one."""
    version = min(newest, VERSIONS[1])
    return version if version >= max(oldest, VERSIONS[0]) else None
