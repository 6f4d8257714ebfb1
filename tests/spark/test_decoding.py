"""Payloads as JSON: whatever a client has sent."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.server.folder.shard_values import payload_error, payload_json
from bunqueue.spark.read import arrow

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(PLAIN)
def test_what_json_can_say_stays_the_same(value: Any) -> None:
    raw = msgpack.packb(value)
    text = payload_json(raw)
    assert text is not None
    assert json.loads(text) == value
    assert payload_error(raw) is None


@given(st.binary(max_size=40))
def test_nothing_fails(raw: bytes) -> None:
    assert (payload_json(raw) is None) == (payload_error(raw) is not None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\x00\xff", "AP8="),
        ([float("nan"), float("inf"), 1.5], [None, None, 1.5]),
        ({2: "a", None: "b", True: "c"}, {"2": "a", "null": "b", "true": "c"}),
        ({b"k": "d", (1, 2): "e"}, {"aw==": "d", "[1,2]": "e"}),
        (msgpack.ExtType(7, b"x"), None),
        ({"at": msgpack.Timestamp(0)}, {"at": "1970-01-01T00:00:00+00:00"}),
        ({"raw": {"b": b"x"}}, {"raw": {"b": "eA=="}}),
    ],
)
def test_what_json_cannot_say(value: Any, expected: Any) -> None:
    raw = msgpack.packb(value)
    text = payload_json(raw)
    assert text is not None
    assert json.loads(text) == expected


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xc1", b"\x93\x01", b"\xa1\xff", b"\x91" * 300 + b"\xc0", b"\x91" * 100_000 + b"\xc0"],
    ids=["empty", "reserved", "short", "no UTF-8", "deep", "very deep"],
)
def test_what_cannot_be_decoded_has_a_reason(raw: bytes) -> None:
    assert payload_json(raw) is None
    assert payload_error(raw)


def test_there_may_be_no_payload() -> None:
    assert payload_json(None) is None
    assert payload_error(None) is None


def test_batches_that_wait_may_be_more_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "MEMORY", 1000)
    batches = [pa.record_batch({"n": pa.array(range(start, start + 500))}) for start in range(0, 5000, 500)]
    done = []
    waiting = arrow.kept((done.append(batch) or batch for batch in batches), batches[0].schema)
    first = next(waiting)
    assert len(done) == len(batches), "all were taken before the first was handed out"
    assert pa.Table.from_batches([first, *waiting]).equals(pa.Table.from_batches(batches))
