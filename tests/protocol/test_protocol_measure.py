"""The size of a MessagePack value, against the json module and walks over the decoded value."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bunqueue.protocol import pieces
from bunqueue.protocol.measure import MAX_DATA, MAX_DEPTH, MAX_PARTS, depth_of, measure

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def characters(data: bytes) -> int:
    return measure(data).characters


def depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(depth, parts), default=0)


def parts(value: Any) -> int:
    if isinstance(value, dict):
        return sum(2 + parts(part) for part in value.values())
    return sum(1 + parts(part) for part in value) if isinstance(value, list) else 0


@pytest.fixture
def windows() -> Iterator[None]:
    before = pieces.WINDOW, pieces._LEAST
    yield
    pieces.WINDOW, pieces._LEAST = before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values, st.sampled_from([8, 16, 64, 500, pieces.WINDOW]))
def test_it_is_what_readers_see(windows: None, value: Any, window: int) -> None:
    """In pieces of every size."""
    pieces.WINDOW, pieces._LEAST = window, min(256, window)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert measure(msgpack.packb(value)) == (len(text), parts(value), depth(value))
    assert depth_of(value) == depth(value)


@pytest.mark.parametrize("count", [0, 15, 16, 70_000])
@pytest.mark.parametrize("make", [lambda n: [7] * n, lambda n: {str(i): i for i in range(n)}])
def test_containers_of_every_width(count: int, make: Any) -> None:
    text = json.dumps(make(count), separators=(",", ":"))
    assert characters(msgpack.packb(make(count))) == len(text)


@pytest.mark.parametrize("length", [0, 31, 32, 300, 70_000])
def test_text_of_every_width(length: int) -> None:
    assert characters(msgpack.packb("é" * length)) == length + 2


@pytest.mark.parametrize(
    "value", [b"x" * 10, b"x" * 300, b"x" * 70_000, msgpack.ExtType(5, b"x" * 16), msgpack.ExtType(5, b"xyz")]
)
def test_what_json_does_not_have_is_walked_over(value: Any) -> None:
    assert characters(msgpack.packb([value, 1])) >= len("[,1]")


def test_a_number_without_a_fraction_is_written_without_one() -> None:
    assert characters(msgpack.packb(5.0)) == characters(msgpack.packb(5.0, use_single_float=True))
    assert characters(msgpack.packb(5.0)) == 1


def a_list(count: int, part: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + part * count


def test_it_stops_at_the_limit() -> None:
    endless = b"\xdd\xff\xff\xff\xff" + b"\x00" * 100  # a whole walk would run off its end
    assert measure(endless, 1000).characters > 1000
    assert measure(endless).parts > MAX_PARTS


NESTED = b"\x91" * (MAX_DEPTH - 1) + b"\x90"


@pytest.mark.parametrize("around", [b"", b"\x92" + b"\xda\xff\xff" + b"x" * 0xFFFF], ids=["alone", "beside"])
def test_the_depth_of_what_is_large_is_exact(around: bytes) -> None:
    more = len(around[:1])
    assert measure(around + NESTED).depth == MAX_DEPTH + more
    assert measure(around + NESTED[more:]).depth == MAX_DEPTH
    assert measure(around + a_list(70_000, b"\x90")).depth == 2 + more


DENSE = {
    "empty maps": a_list(400_000, b"\x80"),
    "lists of one": a_list(200_000, b"\x91\x00"),
    "maps of one": a_list(100_000, b"\x81\xa1a\x01"),
    "texts": a_list(300_000, b"\xa2ab"),
    "bytes": a_list(300_000, b"\xc4\x00"),
    "within each other": b"\x91" * 300 + a_list(300_000, b"\x90"),
    "as names": b"\xdf"
    + (100_000).to_bytes(4, "big")
    + b"".join(b"\xa6%06d\xc0" % i for i in range(100_000)),
    "beside a long one": b"\x92\xdb"
    + (200_000).to_bytes(4, "big")
    + b"x" * 200_000
    + a_list(300_000, b"\x80"),
}


@pytest.mark.parametrize("data", DENSE.values(), ids=DENSE)
def test_many_small_parts_are_never_in_memory_together(data: bytes) -> None:
    tracemalloc.start()
    built = msgspec.msgpack.decode(data)
    everything = tracemalloc.get_traced_memory()[1]
    size = len(msgspec.json.encode(built))
    del built
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    found = measure(data)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert found.characters == size
    assert peak < everything / 2, (peak, everything)
    assert peak < 12 << 20


def test_few_pieces_are_enough() -> None:
    """What is not gone through in C costs a piece."""
    for name, data in DENSE.items():
        number = sum(1 for _ in pieces.pieces(data))
        assert number < 400 + len(data) / pieces.WINDOW * 8, name


def test_what_is_refused_for_its_size_is_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[pieces.Piece] = []

    def watched(data: bytes) -> Iterator[pieces.Piece]:
        for piece in pieces.pieces(data):
            seen.append(piece)
            yield piece

    monkeypatch.setattr("bunqueue.protocol.measure.pieces", watched)
    assert measure(a_list(9_000_000, b"\x80"), MAX_DATA).characters > MAX_DATA
    assert len(seen) == 1


@pytest.mark.parametrize(
    "data",
    [
        a_list(70_000, b"\xa1\xff"),  # no UTF-8
        b"\x91" * 300 + a_list(70_000, b"\xa1\xff"),
        b"\xdf" + (1).to_bytes(4, "big") + a_list(70_000, b"\x80") + b"\xc0",  # a list of maps as a name
        b"\x92" + b"\xda\xff\xff" + b"x" * 0xFFFF + b"\x81\x91\x80\xc0",
        b"\x82" + b"\xa1a" + a_list(70_000, b"\xc0") + b"\xd4\x05a\xc0",  # an extension as a name
    ],
)
def test_what_no_reader_can_decode_is_not_measured(data: bytes) -> None:
    with pytest.raises((ValueError, msgspec.DecodeError)):
        msgspec.msgpack.decode(data)
    with pytest.raises((ValueError, msgspec.DecodeError)):
        measure(data)
