"""Frames and envelopes come out as they went in, however the bytes are cut on their way."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.protocol.framing import HEADER, MAX_FRAME, FrameSplitter, frame
from bunqueue.server.links import shard_protocol as link

payloads = st.lists(st.binary(max_size=40), max_size=12)
u32 = st.integers(0, 2**32 - 1)
to_shard = st.lists(st.tuples(u32, st.integers(0, 255), st.binary(max_size=40)), max_size=12)
to_router = st.lists(
    st.tuples(u32, st.integers(0, 255), st.binary(max_size=40), u32, st.integers(0, 2**16 - 1)), max_size=12
)


@st.composite
def cuts(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """``data`` in pieces, empty ones included."""
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=20)))
    edges = [0, *places, len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def bytewise(data: bytes) -> list[bytes]:
    return [data[index : index + 1] for index in range(len(data))]


@given(payloads, st.data())
def test_any_cuts_give_the_same_frames(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frame(body) for body in bodies)
    splitter = FrameSplitter()
    out = [one for piece in data.draw(cuts(stream)) for one in splitter.feed(piece)]
    assert out == [frame(body) for body in bodies]
    assert not splitter.partial
    assert splitter.broken is None


@given(payloads)
def test_single_bytes_give_the_same_frames(bodies: list[bytes]) -> None:
    splitter = FrameSplitter()
    out = []
    for number, piece in enumerate(bytewise(b"".join(frame(body) for body in bodies)), 1):
        out += splitter.feed(piece)
        assert splitter.partial == (sum(map(len, out)) < number)
    assert out == [frame(body) for body in bodies]


@given(payloads, st.binary(max_size=30), st.data())
def test_an_unfinished_frame_is_kept_and_nothing_else(
    bodies: list[bytes], tail: bytes, data: st.DataObject
) -> None:
    """What came of a frame that never ends stays inside and shows in ``partial``."""
    unfinished = frame(tail + b"end")[: data.draw(st.integers(0, HEADER + len(tail)))]
    stream = b"".join(frame(body) for body in bodies) + unfinished
    splitter = FrameSplitter()
    out = [one for piece in data.draw(cuts(stream)) for one in splitter.feed(piece)]
    assert out == [frame(body) for body in bodies]
    assert splitter.partial == bool(unfinished)


@given(payloads, st.integers(1, 2**32 - 1 - 40), st.binary(max_size=50), st.data())
def test_an_oversized_length_breaks_at_once_and_for_good(
    bodies: list[bytes], above: int, after: bytes, data: st.DataObject
) -> None:
    limit = 40
    head = (limit + above).to_bytes(HEADER, "big")
    good = b"".join(frame(body) for body in bodies)
    splitter = FrameSplitter(limit)
    out = [one for piece in data.draw(cuts(good + head[:-1])) for one in splitter.feed(piece)]
    assert splitter.broken is None, "three bytes of a length say nothing yet"
    out += splitter.feed(head[-1:] + after)
    assert out == [frame(body) for body in bodies]
    assert str(splitter.broken) == f"Frame too large: {limit + above} bytes (max {limit})"
    assert not splitter.partial
    assert [one for piece in data.draw(cuts(good)) for one in splitter.feed(piece)] == []
    assert str(splitter.broken) == f"Frame too large: {limit + above} bytes (max {limit})"


@given(payloads, st.data())
def test_frames_before_an_oversized_length_come_out_with_any_cuts(
    bodies: list[bytes], data: st.DataObject
) -> None:
    limit = 40
    stream = b"".join(frame(body) for body in bodies) + (limit + 1).to_bytes(HEADER, "big") + b"garbage"
    splitter = FrameSplitter(limit)
    out = [one for piece in data.draw(cuts(stream)) for one in splitter.feed(piece)]
    assert out == [frame(body) for body in bodies]
    assert splitter.broken is not None


@pytest.mark.parametrize(("length", "broken"), [(MAX_FRAME, False), (MAX_FRAME + 1, True), (2**32 - 1, True)])
def test_the_bound_itself(length: int, broken: bool) -> None:
    splitter = FrameSplitter()
    assert splitter.feed(length.to_bytes(HEADER, "big")) == []
    assert (splitter.broken is not None) == broken
    assert splitter.partial != broken


def test_a_frame_of_the_largest_size_comes_out() -> None:
    limit = 1 << 20
    whole = frame(b"x" * limit)
    splitter = FrameSplitter(limit)
    assert splitter.feed(whole) == [whole]
    pieces = [whole[start : start + 65_536] for start in range(0, len(whole), 65_536)]
    assert [one for piece in pieces for one in splitter.feed(piece)] == [whole]


@given(payloads)
def test_split_frames_is_the_inverse_of_joining(bodies: list[bytes]) -> None:
    assert link.split_frames(b"".join(frame(body) for body in bodies)) == bodies


@given(to_shard, st.data())
def test_envelopes_to_a_shard(messages: list[tuple[int, int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(link.envelope(conn, kind, body) for conn, kind, body in messages)
    splitter = link.EnvelopeSplitter(link.TO_SHARD)
    out = [one for piece in data.draw(cuts(stream)) for one in splitter.feed(piece)]
    assert out == [((conn, kind), body) for conn, kind, body in messages]


@given(to_router, st.data())
def test_envelopes_to_the_router(
    messages: list[tuple[int, int, bytes, int, int]], data: st.DataObject
) -> None:
    stream = b"".join(link.answer(*message) for message in messages)
    splitter = link.EnvelopeSplitter(link.TO_ROUTER)
    out = [one for piece in data.draw(cuts(stream)) for one in splitter.feed(piece)]
    assert out == [((conn, kind, replies, polls), body) for conn, kind, body, replies, polls in messages]


@given(to_shard)
def test_envelopes_byte_by_byte(messages: list[tuple[int, int, bytes]]) -> None:
    splitter = link.EnvelopeSplitter(link.TO_SHARD)
    stream = b"".join(link.envelope(conn, kind, body) for conn, kind, body in messages)
    out = [one for piece in bytewise(stream) for one in splitter.feed(piece)]
    assert out == [((conn, kind), body) for conn, kind, body in messages]


@given(st.lists(payloads, max_size=4), st.data())
def test_commands_of_a_connection_survive_both_layers(
    batches: list[list[bytes]], data: st.DataObject
) -> None:
    """Client frames, packed into envelopes, cut anywhere, are the same payloads in the shard."""
    stream = b"".join(
        link.envelope(number, link.COMMANDS_V2, b"".join(frame(body) for body in bodies))
        for number, bodies in enumerate(batches)
    )
    splitter = link.EnvelopeSplitter(link.TO_SHARD)
    out = [one for piece in data.draw(cuts(stream)) for one in splitter.feed(piece)]
    assert [(conn, link.split_frames(body)) for (conn, _), body in out] == list(enumerate(batches))


@given(st.lists(u32, max_size=50))
def test_packed_connections(connections: list[int]) -> None:
    body = link.pack_connections(connections)
    assert len(body) == struct.calcsize(">I") * len(connections)
    assert link.unpack_connections(body) == tuple(connections)
