"""What crosses the connection between the first router of a host and another one: a pair of sockets.

The envelopes are those of `bunqueue.protocol.host_link`.  TO_SHARD and FROM_SHARD carry what the other router
asks shards of other hosts, to which the first one has the links, and what these answer; HOST what the two
routers say to each other, in the kinds below.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

# The first router says:
SHARD_UP = 32  # a shard serves, here or at another host: body Up
SHARD_DOWN = 33  # it does not any more: the body is its epoch, 8 bytes
SHARD_DAMAGED = 34  # it stays down: the body says what is to be done
BEGIN = 35  # all shards that serve have been named: let clients in, once they are reached
ANSWER = 36  # to what a connection asked: the body is the frame
CUT = 37  # nobody knows what became of what a connection asked
RENEW = 38  # the files of the certificate are new
STOP = 39  # let nobody in, ask nothing more, deliver the answers, end
PING = 40
MOVING = 41  # a shard is about to get another owner: send nothing more for it, and say HOLDING
RETURNED = 42  # commands of a connection that waited there: ask the next owner; body: u8 version, frames
# The other one says:
BEGUN = 48  # it lets clients in
JOINED, LEFT = 49, 50  # a connection
ASK = 51  # a connection has sent what the first router answers for all: ``replies`` is its protocol version
PONG = 52
HOLDING = 53
# Both say:
GUESS = 56  # a wrong token came from this address


class Up(Struct):
    """Where a shard is dialled, and what has to be shown there.  ``path`` is "" for a shard of another host,
    which is asked over the first router."""

    path: str
    secret: str
    epoch: int


class Start(Struct):
    """What a further router gets when it starts, as JSON on its standard input."""

    number: int  # which one of its host
    origin: int  # of the host's connections, see `bunqueue.protocol.link`
    life: int  # how often it was started before
    link: int  # its descriptors
    sockets: list[int]
    table: str  # see `router.further.table`
    settings: str


encode = Encoder().encode
decode_up = Decoder(Up).decode
