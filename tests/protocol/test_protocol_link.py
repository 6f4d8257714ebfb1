"""What router and shard say to each other."""

from __future__ import annotations

import pytest

from bunqueue.protocol.framing import MAX_FRAME, FrameTooLarge, frame
from bunqueue.server.links import shard_protocol as link

U32 = 2**32 - 1


def test_an_envelope_to_a_shard() -> None:
    body = frame(b"\x80")
    assert link.envelope(7, link.COMMANDS_V2, body) == b"\0\0\0\5" + b"\0\0\0\7" + b"\2" + body
    assert link.envelope(7, link.CLOSED) == b"\0\0\0\0" + b"\0\0\0\7" + b"\0"


def test_an_envelope_to_the_router() -> None:
    found = link.answer(7, link.REPLIES, b"xyz", replies=3, slow=2)
    assert found == b"\0\0\0\3" + b"\0\0\0\7" + b"\0" + b"\0\0\0\3" + b"\0\2" + b"xyz"


def test_the_kind_of_commands_is_their_protocol_version() -> None:
    assert (link.COMMANDS_V2, link.COMMANDS_V3) == (2, 3)


def test_kinds_are_distinct() -> None:
    to_shard = [
        link.CLOSED,
        link.SEVERED,
        link.COMMANDS_V2,
        link.COMMANDS_V3,
        link.LIVE,
        link.PING,
        link.DRAIN,
    ]
    to_router = [link.REPLIES, link.HELLO, link.READY, link.PROGRESS, link.PONG]
    for kinds in (to_shard, to_router):
        assert len(kinds) == len(set(kinds))
        assert all(0 <= kind <= 255 for kind in kinds)


def test_the_largest_numbers_fit() -> None:
    (found,) = link.EnvelopeSplitter(link.TO_ROUTER).feed(link.answer(U32, 255, b"", U32, 65_535))
    assert found == ((U32, 255, U32, 65_535), b"")
    (found,) = link.EnvelopeSplitter(link.TO_SHARD).feed(link.envelope(U32, 255))
    assert found == ((U32, 255), b"")


def test_tickets_and_connections_are_apart() -> None:
    assert link.CONTROL == 0
    assert 0 < link.TICKET < U32


def test_hello_and_progress_survive() -> None:
    hello = link.ShardHello(3, 4711, "secret \N{SNOWMAN}")
    assert link.decode_hello(link.encode(hello)) == hello
    progress = link.ShardProgress(50_000, 1_000_000)
    assert link.decode_progress(link.encode(progress)) == progress


@pytest.mark.parametrize("connections", [[], [1], [1, 2, 3], [U32, 0]])
def test_live_connections_survive(connections: list[int]) -> None:
    assert link.unpack_connections(link.pack_connections(connections)) == tuple(connections)


def test_an_unfinished_envelope_waits() -> None:
    splitter = link.EnvelopeSplitter(link.TO_SHARD)
    whole = link.envelope(1, link.PING, b"body")
    assert splitter.feed(whole[:-1]) == []
    assert splitter.feed(b"") == []
    assert splitter.feed(whole[-1:] + whole[:3]) == [((1, link.PING), b"body")]
    assert splitter.feed(whole[3:]) == [((1, link.PING), b"body")]


def test_a_body_of_frames_is_taken_apart() -> None:
    assert link.split_frames(b"") == []
    assert link.split_frames(frame(b"a") + frame(b"") + frame(b"xyz")) == [b"a", b"", b"xyz"]


def test_the_words_for_a_large_frame() -> None:
    assert str(FrameTooLarge(MAX_FRAME + 1, MAX_FRAME)) == "Frame too large: 67108865 bytes (max 67108864)"
