"""The protocol between the first router of a host and a secondary router, over a socket pair.

The envelopes are those of `bunqueue.server.links.host_protocol`.  TO_SHARD and FROM_SHARD carry the secondary
router's requests to shards of other hosts, and their answers; the first router has the links to those hosts.
HOST carries the messages between the two routers, of the kinds below.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

# Sent by the first router:
SHARD_UP = 32  # a shard serves, here or on another host: body Up
SHARD_DOWN = 33  # the shard no longer serves: the body is its epoch, 8 bytes
SHARD_DAMAGED = 34  # the shard stays down: the body says how to fix it
BEGIN = 35  # all serving shards have been announced: accept clients as soon as the shards are connected
ANSWER = 36  # the answer to a connection's command: the body is the frame
CUT = 37  # the outcome of a connection's commands is unknown
RENEW = 38  # the files of the certificate or of the identities have changed
STOP = 39  # accept no clients, send no more commands, deliver the answers, exit
PING = 40
MOVING = 41  # a shard is about to get another owner: send nothing more for it, and reply PAUSED
RETURNED = 42  # a connection's commands that waited there, for the next owner; body: u8 version, frames
# Sent by the secondary router:
BEGUN = 48  # it accepts clients
JOINED, LEFT = 49, 50  # a connection
ASK = 51  # a connection's command that the first router answers: ``replies`` is as the kind to a shard
PONG = 52
PAUSED = 53
# Sent by both:
WRONG_TOKEN = 56  # a wrong token came from this address


class Up(Struct):
    """How to connect to a shard: its socket and its secret.  ``path`` is "" for a shard of another host,
    which is reached through the first router."""

    path: str
    secret: str
    epoch: int


class Start(Struct):
    """The configuration of a secondary router when it starts, as JSON on its standard input."""

    number: int  # of the router on its host
    origin: int  # of the host's connections, see `bunqueue.server.links.shard_protocol`
    incarnation: int  # how many times it was started before
    link: int  # its descriptor; next, those of the listening sockets
    sockets: list[int]
    table: str  # see `router.secondary.shared_figures`
    settings: str


encode = Encoder().encode
decode_up = Decoder(Up).decode
