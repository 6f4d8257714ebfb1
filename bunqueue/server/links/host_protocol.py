"""The protocol between the routers of two hosts in a cluster.

Each router connects to every other router and uses that host's shards over the connection, so there are two
connections between two hosts.  Both directions carry envelopes with the same header: ``u32 body length | u8
channel | u8 shard | u32 connection | u8 kind | u32 replies | u16 slow``.

- TO_SHARD, from the connecting router: the messages that it would send to a shard of its own, see
  `bunqueue.server.links.shard_protocol`.
- FROM_SHARD, in the other direction: the messages that the shard would send back.
- HOST, both ways: messages between the routers; kinds and bodies are below.

The connecting router sends HELLO, the other one CHALLENGE, the first one PROOF, and the other one WELCOME.
Each of these four messages has a size limit, and nothing else is read before the greeting is complete.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

HEADER = struct.Struct(">IBBIBIH")
VERSIONS = (1, 1)  # the oldest and the newest version of this protocol that this program supports
MAX_GREETING = 4096  # bytes of a body before WELCOME

TO_SHARD, FROM_SHARD, HOST = range(3)  # channels

# Kinds of the channel HOST.
HELLO = 0  # body: Hello
CHALLENGE = 1  # 32 bytes, to be authenticated with the cluster's secret
PROOF = 2
WELCOME = 3  # body: Welcome
REFUSED = 4  # the body says why; the connection is closed
PING, PONG = 5, 6
UP = 7  # the sender's host serves a shard; ``connection``: low bits of its epoch, body: the epoch as 8 bytes
DOWN = 8  # the sender's host no longer serves the shard
MOVING = 9  # the sender is about to give the shard up: send nothing more for it, and reply PAUSED
PAUSED = 10
STANDBY = 11  # the sender is ready to take the shard over
RELEASED = 12  # the shard has no owner now
RETURNED = 13  # commands of the receiver's clients that waited at the shard: send them to its next owner
LIVE = 14  # all open connections of the sender (packed u32)
WORKERS = 15  # body: the workers registered with the sender
FORWARD = (
    16  # body: a command that only the receiver's router can answer; its reply comes back with FORWARDED
)
FORWARDED = 17
POKE = 18  # the placement in the store has changed
LOAD = 19  # body: Load
WRONG_TOKEN = 20  # a wrong token was presented to the sender; body: the address that it came from

SECRET_BYTES = 32


class Hello(Struct):
    """The connecting host.  ``incarnation`` is new for each start of its router; the connections of another
    one are gone."""

    cluster: str
    store: str
    host: str
    number: int
    incarnation: str
    oldest: int
    newest: int


class Welcome(Struct):
    """The version that both use from now on, and the incarnation of the answering host's router."""

    version: int
    host: str
    incarnation: str


class Load(Struct):
    """How busy the sender's machine is."""

    per_core: float  # runnable processes per core, averaged over a minute


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
    """A proof that the host knows the secret in the store."""
    return hmac.digest(bytes.fromhex(secret), challenge + host.encode(), hashlib.sha256)


def agree(oldest: int, newest: int) -> int | None:
    """The newest version that both support; None if there is no common version."""
    version = min(newest, VERSIONS[1])
    return version if version >= max(oldest, VERSIONS[0]) else None
