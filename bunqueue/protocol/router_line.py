"""What crosses the line between the first router of a host and another one: a pair of connected sockets.

The envelopes are those of `bunqueue.protocol.host_link`, of its channel HOST; these are the kinds.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

# The first router says:
SHARD_UP = 32  # a shard serves: body Up
SHARD_DOWN = 33  # its process has ended
SHARD_DAMAGED = 34  # it stays down: the body says what is to be done
BEGIN = 35  # all shards that serve have been named: let clients in, once they are reached
ANSWER = 36  # to what a connection asked: the body is the frame
CUT = 37  # nobody knows what became of what a connection asked
RENEW = 38  # the files of the certificate are new
STOP = 39  # let nobody in, ask nothing more, deliver the answers, end
PING = 40
# The other one says:
BEGUN = 48  # it lets clients in
JOINED, LEFT = 49, 50  # a connection
ASK = 51  # a connection has sent what the first router answers for all: ``replies`` is its protocol version
PONG = 52
# Both say:
GUESS = 56  # a wrong token came from this address


class Up(Struct):
    """Where a shard is dialled, and what has to be shown there."""

    path: str
    secret: str
    epoch: int


class Start(Struct):
    """What a further router gets when it starts, as JSON on its standard input."""

    number: int  # which one of its host
    line: int  # its descriptors
    sockets: list[int]
    table: str  # see `router.further.table`
    settings: str


encode = Encoder().encode
decode_up = Decoder(Up).decode
