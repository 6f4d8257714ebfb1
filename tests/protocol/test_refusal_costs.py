"""A command is judged before anything is built of what it holds: a refusal takes no more than its bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec.inspect as mi
import pytest
from msgspec import UNSET, Raw, msgpack
from support.commands import MINIMAL

from bunqueue.protocol.codec import InvalidCommand, decode_command
from bunqueue.protocol.commands import COMMANDS
from bunqueue.protocol.lenient import DECODE_ERRORS, MAX_FIELDS
from router.core.routing import peek

MANY = 5_000
# As Python objects each of them takes more than 250 kB.
DENSE = {
    "a list of maps": b"\xdd" + MANY.to_bytes(4, "big") + b"\x80" * MANY,
    "a map of lists": b"\xdf" + MANY.to_bytes(4, "big") + b"".join(b"\xa5%05d\x90" % i for i in range(MANY)),
    "a list of texts": b"\xdd" + MANY.to_bytes(4, "big") + b"\xa2ab" * MANY,
}
MOST = 120_000  # bytes: Python's own, and slices of the payload
BUILT = 250_000

encode = msgpack.Encoder().encode


def hiding(kind: mi.Type, dense: Raw, levels: int = 3) -> Iterator[object]:
    """Values of a type, or nearly, with ``dense`` in all places that are not for any value."""
    if isinstance(kind, mi.Metadata):
        yield from hiding(kind.type, dense, levels)
        return
    kinds = kind.types if isinstance(kind, mi.UnionType) else (kind,)
    if not any(isinstance(each, mi.RawType) or may_be_long(each) for each in kinds):
        yield dense
    for each in kinds:
        yield from hiding_within(each, dense, levels)


def hiding_within(kind: mi.Type, dense: Raw, levels: int) -> Iterator[object]:
    if not levels:
        return
    if isinstance(kind, mi.Metadata):
        yield from hiding_within(kind.type, dense, levels)
    elif isinstance(kind, mi.ListType):
        for inner in hiding(kind.item_type, dense, levels - 1):
            yield [inner]
    elif isinstance(kind, mi.DictType):
        for inner in hiding(kind.value_type, dense, levels - 1):
            yield {"a": inner}
    elif isinstance(kind, mi.StructType):
        yield from with_dense_fields(kind, dense, levels - 1)


def may_be_long(kind: mi.Type) -> bool:
    if isinstance(kind, mi.Metadata):
        return may_be_long(kind.type)
    return isinstance(kind, mi.ListType) and (kind.max_length or 0) >= MANY


def with_dense_fields(kind: mi.StructType, dense: Raw, levels: int = 3) -> Iterator[dict[str, object]]:
    needed = {f.encode_name: MINIMAL.get(f.encode_name) for f in kind.fields if f.required}
    for field in kind.fields:
        for value in hiding(field.type, dense, levels):
            yield {**needed, field.encode_name: value}


def peak_of(call: Callable[[], object]) -> int:
    """Bytes that were taken while it ran."""
    tracemalloc.start()
    try:
        with suppress(InvalidCommand, *DECODE_ERRORS):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_measure_sees_what_is_built() -> None:
    for dense in DENSE.values():
        assert peak_of(partial(msgpack.decode, dense)) > BUILT


def test_whatever_is_in_a_field_of_the_wrong_type_is_not_built() -> None:
    commands = 0
    for spec in COMMANDS.values():
        info = mi.type_info(spec.request)
        assert isinstance(info, mi.StructType)
        for name, dense in DENSE.items():
            for fields in with_dense_fields(info, Raw(dense)):
                payload = encode({"cmd": spec.name, **fields})
                for call in (peek, decode_command):
                    assert peak_of(partial(call, payload)) < MOST, (spec.name, list(fields), name, call)
                commands += 1
    assert commands > 1000


def test_no_field_of_a_command_takes_a_value_that_is_decoded_whatever_it_is() -> None:
    """Payloads of users stay encoded; a field of any other type would be built before anybody looks at it."""

    def check(kind: Any, where: str) -> None:
        assert not isinstance(kind, mi.AnyType), where
        for inner in ("type", "item_type", "value_type"):
            if isinstance(part := getattr(kind, inner, None), mi.Type):
                check(part, where)
        for part in getattr(kind, "types", ()):
            check(part, where)

    for spec in COMMANDS.values():
        for field in mi.type_info(spec.request).fields:  # type: ignore[attr-defined]
            check(field.type, f"{spec.name}.{field.encode_name}")


def test_a_command_itself_has_a_bounded_number_of_fields() -> None:
    for dense in DENSE.values():
        assert peak_of(partial(decode_command, dense)) < MOST
    fields: dict[str, object] = {f"f{i}": None for i in range(MAX_FIELDS)}
    payload = encode({"cmd": "GetJob", "id": 5, "reqId": 7, **fields})
    with pytest.raises(InvalidCommand) as caught:
        decode_command(payload)
    assert str(caught.value) == f"a command must have at most {MAX_FIELDS} fields"
    assert caught.value.bound == MAX_FIELDS
    assert caught.value.req_id == Raw(b"\x07")


def test_one_wrong_entry_among_many_is_named() -> None:
    """The right ones are not gone through in Python, and not changed."""
    jobs: list[object] = [{"data": i, "priority": 3} for i in range(500)]
    payload = encode({"cmd": "PUSHB", "queue": "q", "jobs": [*jobs, {"data": 1, "priority": "x"}]})
    with pytest.raises(InvalidCommand) as caught:
        decode_command(payload)
    assert caught.value.field == "jobs[500].priority"
    accepted: Any = decode_command(encode({"cmd": "PUSHB", "queue": "q", "jobs": [*jobs, {"tags": None}]}))
    assert [job.priority for job in accepted.jobs] == [3] * 500 + [UNSET]
    assert bytes(accepted.jobs[499].data) == encode(499)
