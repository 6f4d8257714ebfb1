"""Whether values fit a JSON Schema: as the types of Python say, and nothing that they take is refused."""

from __future__ import annotations

import datetime as dt
import enum
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from types import FrameType
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from bunqueue.client.conversion.converter import Converter
from bunqueue.client.conversion.encoding import encode
from bunqueue.client.conversion.mismatch import WRONG
from bunqueue.client.conversion.schema import schema_of
from bunqueue.model.json_schema import MAX_WORK, misfit, words


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Point(NamedTuple):
    x: int
    y: float


class Part(TypedDict, total=False):
    weight: float


@dataclass
class Order:
    id: UUID
    colour: Colour
    parts: list[Part]
    price: Decimal = Decimal(1)
    made: dt.datetime | None = None


class Item(BaseModel):
    name: str = Field(min_length=2, alias="called")
    price: Decimal = Decimal(1)
    tags: set[str] = set()


class Basket(BaseModel):
    items: list[Item]
    colour: Literal["red", "blue"] = "red"
    child: Basket | None = None


KINDS: list[Any] = [
    bool, int, str, float, bytes, None, UUID, Decimal, dt.datetime, dt.date, dt.time, dt.timedelta, Colour,
    list[int], dict[str, float], tuple[int, str], set[str], Point, Part, Order, Cat | Dog, Item, Basket,
    int | None, Literal["a", 1], Annotated[int, msgspec.Meta(gt=5)], list[Order], dict[str, list[Point]],
]  # fmt: skip
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=5)
    | st.binary(max_size=5) | st.sampled_from(["red", "a", "Cat", "2026-01-01", "PT1S", "1.5"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["id", "colour", "parts", "x", "y", "type", "lives", "name", "items", "weight"])
        | st.text(max_size=3),
        inner,
        max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip


def schema_for(kind: Any) -> tuple[Converter, dict[str, Any]]:
    converting = Converter(kind, "it")
    encoded = schema_of(converting)
    assert encoded is not None, kind
    return converting, msgspec.msgpack.decode(encoded)


def check(kind: Any, value: object) -> None:
    """What the type takes is not refused."""
    converting, schema = schema_for(kind)
    sent = encode(value)
    try:
        converting.decode(msgspec.Raw(sent))
    except WRONG:
        return
    assert misfit(schema, msgspec.msgpack.decode(sent)) is None, (kind, value)


@given(st.sampled_from([kind for kind in KINDS if kind not in (Item, Basket)]), PLAIN)
def test_nothing_that_a_type_takes_is_refused(kind: Any, value: object) -> None:
    check(kind, value)


@given(st.data())
def test_no_value_of_a_type_is_refused(data: st.DataObject) -> None:
    order = st.builds(
        Order,
        st.uuids(),
        st.sampled_from(Colour),
        st.lists(st.fixed_dictionaries({}, optional={"weight": st.floats()})),
        st.decimals(allow_nan=False),
        st.none() | st.datetimes() | st.datetimes(timezones=st.just(dt.UTC)),
    )
    item = st.builds(
        lambda name, price, tags: Item(called=name, price=price, tags=tags),
        st.text(min_size=2),
        st.decimals(allow_nan=False, allow_infinity=False),
        st.sets(st.text()),
    )
    basket = st.builds(Basket, items=st.lists(item), colour=st.sampled_from(["red", "blue"]))
    of = {
        Order: order,
        list[Order]: st.lists(order, max_size=3),
        Item: item,
        Basket: basket,
        Cat | Dog: st.builds(Cat, st.integers(0, 9)) | st.builds(Dog, st.text()),
        Point: st.builds(Point, st.integers(0, 9), st.floats()),
        dt.date: st.dates(),
        dt.time: st.times(),
        dt.timedelta: st.timedeltas(),
    }
    kind = data.draw(st.sampled_from(list(of)))
    value = data.draw(of[kind])
    _, schema = schema_for(kind)
    assert misfit(schema, msgspec.msgpack.decode(encode(value))) is None


def test_what_is_wrong_is_named() -> None:
    order = {"id": "b5a1dd0c-1f3c-4b0e-9d3a-0d6a0c3d5c11", "colour": "red", "parts": []}
    for kind, value, told in (
        (Order, 5, ("", "an object with id, colour, parts", "5")),
        (Order, {"id": "x"}, ("colour", "one of 'blue', 'red'", "nothing")),
        (Order, {**order, "id": "x"}, ("id", "a uuid as text", "'x'")),
        (Order, {**order, "parts": [{"weight": "1"}]}, ("parts[0].weight", "a number", "'1'")),
        (Cat | Dog, {"type": "Cat"}, ("lives", "an integer", "nothing")),
        (Cat | Dog, 5, ("", "an object with type, lives or an object with type, name", "5")),
        (Point, [1], ("", "at least 2 entries", "1")),
        (Annotated[int, msgspec.Meta(gt=5)], 5, ("", "an integer of more than 5", "5")),
        (dt.date, "tomorrow", ("", "a date as text", "'tomorrow'")),
        (Basket, {"items": [{"name": "x"}]}, ("items[0].name", "at least 2 characters", "1")),
        (Basket, {"items": [{"called": "xy"}]}, None),
        (int | None, "x", ("", "an integer or null", "'x'")),
        (bool, b"x", ("", "true or false", "b'x'")),
        (str, b"x", ("", "a text", "b'x'")),
        (bytes, "x", None),
    ):
        found = misfit(schema_for(kind)[1], value)
        assert (None if found is None else tuple(found)) == told, (kind, value)
    assert words({}) == "any value"
    assert words(False) == "nothing"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 2}}},
        {
            "$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(200)},
            "$ref": "#/$defs/a0",
        },
        {"$ref": "http://example.com/x"},
        {"$ref": "#/nowhere/~1/~0"},
        {"type": [[], {}], "required": [[1], {}, "x"], "enum": 5, "properties": [], "items": 5},
        {"type": "integer", "minimum": "x", "maximum": None, "exclusiveMinimum": []},
        {"anyOf": [5, None, True], "prefixItems": "x", "minLength": "1", "format": []},
        {"items": {"enum": list(range(4000))}},
        {"items": {"required": [str(n) for n in range(2000)]}},
        {"anyOf": [{"properties": {"a": {"type": "null"}}}] * 500},
    ],
)  # fmt: skip
def test_any_schema_ends_soon(schema: dict[str, Any]) -> None:
    """Those who send it may be hostile; looking costs no more than so much, whatever it says."""
    looks = 0

    class Counting(dict[str, Any]):
        def get(self, *args: Any) -> Any:
            nonlocal looks
            looks += 1
            return super().get(*args)

    class CountingList(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            nonlocal looks
            looks += len(self)
            return super().__iter__()

        def __getitem__(self, place: Any) -> Any:
            found = super().__getitem__(place)
            return CountingList(found) if isinstance(place, slice) else found

    def counting(value: Any) -> Any:
        if isinstance(value, dict):
            return Counting({name: counting(each) for name, each in value.items()})
        return CountingList(map(counting, value)) if isinstance(value, list) else value

    for value in (
        None,
        5,
        "x",
        {},
        {"a": 1},
        [{}] * 50_000,
        list(range(50_000)),
        {str(n): n for n in range(50_000)},
    ):
        looks = 0
        misfit(counting(schema), counting(value))
        assert looks < 40 * MAX_WORK
        words(schema)


class Huge(str):
    """A text that is too long for anything to be made of the whole of it."""

    __slots__ = ()

    def __repr__(self) -> str:
        raise AssertionError("the whole text was shown")


def lines_run(schema: dict[str, Any], value: object) -> int:
    """How many lines a check takes: its work, on any machine."""
    ran = 0

    def count(frame: FrameType, event: str, found: object) -> Any:
        nonlocal ran
        ran += event == "line"
        return count

    sys.settrace(count)
    try:
        misfit(schema, value)
    finally:
        sys.settrace(None)
    return ran


def test_what_a_schema_can_cost_is_bounded() -> None:
    hops: dict[str, Any] = {f"a{hop}": {"$ref": f"#/d/a{hop + 1}"} for hop in range(90)}
    hops["a90"] = {"anyOf": [{"$ref": "#/d/a0"}] * 200}
    alternatives = {"anyOf": [{"$ref": "#/d"}] * 50 + [{}]}
    hostile: list[tuple[dict[str, Any], object]] = [
        ({"$ref": "#/d/a0", "d": hops}, 1),
        ({"items": {"$ref": "#" + "/d" * 7_000}}, [1] * 19_000),
        ({"items": {"type": ["x", "object"] * 1_000}}, [1] * 19_000),
        ({"items": {"required": [1] * 5_000}}, [{}] * 19_000),
        ({"allOf": [{"$ref": "#"}, *[True] * 14_000]}, 1),
        ({"items": alternatives, "d": {"required": ["x"] * 5_000, "type": "object"}}, [1] * 190),
    ]
    for schema, value in hostile:
        assert lines_run(schema, value) < 40 * MAX_WORK, str(schema)[:60]


def test_of_a_long_text_only_the_beginning_is_looked_at() -> None:
    text = Huge("x" * 2_000)
    found = misfit({"anyOf": [{"type": "integer"}, {"type": "null"}]}, text)
    assert found is not None
    assert found.found == "'" + "x" * 56 + "..."
    assert misfit({"type": "string", "format": "decimal"}, text) is None
    found = misfit({"additionalProperties": {"type": "null"}}, {"k" * 2_000: 1})
    assert found is not None
    assert found.path == "k" * 100
