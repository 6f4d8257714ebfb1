"""The length of a MessagePack value as JSON text, against the json module."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.protocol.json_size import json_size

UNLIMITED = 2**62

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_it_is_as_long_as_the_json_text(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert json_size(msgpack.packb(value), UNLIMITED) == len(text)


@pytest.mark.parametrize("count", [0, 15, 16, 70_000])
@pytest.mark.parametrize("make", [lambda n: [7] * n, lambda n: {str(i): i for i in range(n)}])
def test_containers_of_every_width(count: int, make: Any) -> None:
    text = json.dumps(make(count), separators=(",", ":"))
    assert json_size(msgpack.packb(make(count)), UNLIMITED) == len(text)


@pytest.mark.parametrize("length", [0, 31, 32, 300, 70_000])
def test_text_of_every_width(length: int) -> None:
    assert json_size(msgpack.packb("é" * length), UNLIMITED) == length + 2


@pytest.mark.parametrize(
    "value", [b"x" * 10, b"x" * 300, b"x" * 70_000, msgpack.ExtType(5, b"x" * 16), msgpack.ExtType(5, b"xyz")]
)
def test_what_json_does_not_have_is_walked_over(value: Any) -> None:
    assert json_size(msgpack.packb([value, 1]), UNLIMITED) >= len("[,1]")


def test_a_number_without_a_fraction_is_written_without_one() -> None:
    assert json_size(msgpack.packb(5.0), UNLIMITED) == json_size(msgpack.packb(5.0, use_single_float=True), 9)
    assert json_size(msgpack.packb(5.0), UNLIMITED) == 1


def test_it_stops_at_the_limit() -> None:
    endless = b"\xdd\xff\xff\xff\xff" + b"\x00" * 100  # a whole walk would run off its end
    assert json_size(endless, 1000) > 1000
