"""Data of jobs against the signature of a function: what is taken, and how what is not is told."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import uuid
from collections.abc import Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, NoReturn

import msgspec
import pydantic
import pytest

from bunqueue import ArgumentsError, Bunqueue, PayloadError, ResultError
from bunqueue.app.arguments import Arguments
from bunqueue.client.options.job import encode_data

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Item(msgspec.Struct):
    name: str
    count: Positive = 1


@dataclasses.dataclass
class Address:
    city: str


class Kind(enum.Enum):
    FAST = "fast"


def order(to: str, items: list[Item] = [], *, copies: Positive | None = None) -> list[int]:  # noqa: B006
    return []


def rich(when: datetime.datetime, key: uuid.UUID, address: Address, kind: Kind, blob: bytes) -> Address: ...


def plain(anything, other=3):  # type: ignore[no-untyped-def]
    return anything


def through_the_wire(value: object) -> Any:
    return msgspec.msgpack.decode(bytes(encode_data(value, "it")))


@pytest.fixture
def arguments() -> Arguments:
    return Arguments(order, "order")


def test_calls_become_maps_and_arguments_again(arguments: Arguments) -> None:
    data = arguments.data(("ada", [Item("tea")]), {"copies": 2})
    assert data == {"to": "ada", "items": [Item("tea")], "copies": 2}
    assert arguments.of(through_the_wire(data)) == data
    assert arguments.of(through_the_wire(arguments.data((), {"to": "ada"}))) == {"to": "ada"}


def test_types_survive() -> None:
    arguments = Arguments(rich, "rich")
    values = {
        "when": datetime.datetime.now(datetime.UTC),
        "key": uuid.uuid4(),
        "address": Address("Turin"),
        "kind": Kind.FAST,
        "blob": b"\0\xff",
    }
    assert arguments.of(through_the_wire(arguments.data((), values))) == values


def test_without_annotations_anything_goes() -> None:
    arguments = Arguments(plain, "plain")
    assert arguments.of(through_the_wire(arguments.data(([1, "a"],), {}))) == {"anything": [1, "a"]}
    arguments.check_result(object)


@pytest.mark.parametrize(
    ("args", "kwargs", "problem", "path"),
    [
        ((), {}, "job 'order': missing a required argument: 'to'; it takes (to: str", "to"),
        (("a",), {"to": "b"}, "multiple values for argument 'to'", "to"),
        (("a", [], 1), {}, "too many positional arguments", None),
        (("a",), {"colour": 1}, "got an unexpected keyword argument 'colour'", "colour"),
        ((5,), {}, "argument to: 5 is not allowed: Expected `str`, got `int`", "to"),
        (("a",), {"copies": 0}, "argument copies: 0 is not allowed: Expected `int` >= 1", "copies"),
        (("a", [Item("x", 0)]), {}, "argument items[0].count: 0 is not allowed", "items[0].count"),
        (("a", [{"name": None}]), {}, "argument items[0].name: None is not allowed", "items[0].name"),
        (("a", [{"count": 1}]), {}, "missing required field `name`", "items[0]"),
    ],
)
def test_wrong_calls_are_told(
    arguments: Arguments, args: Any, kwargs: Any, problem: str, path: str | None
) -> None:
    with pytest.raises(ArgumentsError) as caught:
        arguments.data(args, kwargs)
    assert problem in str(caught.value)
    assert caught.value.argument == path
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


def test_what_cannot_be_sent_is_told(arguments: Arguments) -> None:
    with pytest.raises(PayloadError, match="an argument of job 'order' cannot be encoded"):
        arguments.data((object(),), {})


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "missing a required argument: 'to'; it takes (to: str, items: list"),
        ({}, "missing a required argument: 'to'"),
        ([1], "its data: Expected `object`, got `array`"),
        ({"to": 5}, "argument to: 5 is not allowed"),
        ({"to": "a", "items": [{"name": "x", "count": "many"}]}, "argument items[0].count: 'many'"),
    ],
)
def test_data_from_elsewhere_is_checked(arguments: Arguments, data: object, problem: str) -> None:
    with pytest.raises(ArgumentsError) as caught:
        arguments.of(data)
    assert problem in str(caught.value)


def test_data_may_say_more_than_the_function_takes(arguments: Arguments) -> None:
    """Who adds may be newer than who runs; and other clients put words of their own into data."""
    assert arguments.of({"to": "a", "colour": 1, "__parentId": "x"}) == {"to": "a"}


def test_no_data_is_no_argument() -> None:
    def sweep(days: int = 7) -> None: ...

    assert Arguments(sweep, "sweep").of(None) == {}


def test_results_are_checked(arguments: Arguments) -> None:
    arguments.check_result([1, 2])
    with pytest.raises(ResultError, match=r"its result at \[1\] is 'a', its annotation says otherwise: Exp"):
        arguments.check_result([1, "a"])
    with pytest.raises(ResultError, match="its result is None"):
        arguments.check_result(None)
    with pytest.raises(ResultError, match="the result of job 'order' cannot be encoded"):
        arguments.check_result([object()])


def test_results_of_functions_that_give_none() -> None:
    def nothing() -> None: ...
    def never() -> NoReturn:
        raise ValueError

    for function in (nothing, never):
        arguments = Arguments(function, "nothing")
        arguments.check_result(None)
        with pytest.raises(ResultError, match="its result is 3"):
            arguments.check_result(3)


def variable(*args: int) -> None: ...
def keywords(**kwargs: int) -> None: ...
def positional(a: int, /) -> None: ...


@pytest.mark.parametrize("function", [variable, keywords, positional])
def test_functions_that_take_more_than_names_are_refused(function: Any) -> None:
    with pytest.raises(TypeError, match="has no name that data could carry"):
        Arguments(function, "it")


def test_annotations_that_cannot_be_used_are_told() -> None:
    def unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def impossible(a: dict[str, int] | dict[int, str]) -> None: ...
    def impossible_result() -> dict[str, int] | dict[int, str]: ...

    for function, problem in (
        (unknown, "job 'it': an annotation names 'Nowhere'"),
        (impossible, "job 'it': its parameter 'a' cannot be carried by jobs: .*more than one dict"),
        (impossible_result, "job 'it': its result cannot be carried by jobs: .*more than one dict"),
    ):
        with pytest.raises(TypeError, match=problem):
            Arguments(function, "it").check_annotations()


def later(a: Later) -> None: ...


class Later(msgspec.Struct):
    x: int


def test_annotations_may_name_what_comes_later() -> None:
    assert Arguments(later, "later").of({"a": {"x": 1}}) == {"a": Later(1)}


class Order(pydantic.BaseModel):
    number: int


class Opaque:
    pass


def takes_opaque(order: Opaque) -> None: ...
def takes_complex(order: complex) -> None: ...
def gives_opaque() -> list[Opaque]: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (takes_opaque, "its parameter 'order' has the type Opaque, which jobs cannot carry"),
        (takes_complex, "its parameter 'order' has the type complex, which jobs cannot carry"),
        (gives_opaque, "its result has the type Opaque, which jobs cannot carry"),
    ],
)
def test_types_that_jobs_cannot_carry_are_refused_where_they_are_declared(
    function: Any, problem: str
) -> None:
    with pytest.raises(TypeError, match=f"job {function.__name__!r}: {problem}"):
        Bunqueue("q").job(function)


def takes_plain(
    anything: object,
    many: Iterable[int],
    key: Hashable,
    mapping: Mapping[str, Decimal],
    when: datetime.date,
    kind: Literal["a", "b"] = "a",
    nested: Tree | None = None,
) -> Sequence[uuid.UUID]: ...


class Tree(msgspec.Struct):
    children: list[Tree]


def test_types_that_arrive_may_be_declared() -> None:
    Bunqueue("q").job(takes_plain)
    Arguments(takes_plain, "it").check_annotations()


def test_a_type_that_is_defined_later_is_looked_at_when_it_is_known() -> None:
    """The decorator cannot know it yet; the first call does."""

    def make() -> Any:
        def early(order: Late) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        return early

    function = make()
    for kind, problem in ((Order, None), (Opaque, "'order' has the type Opaque")):
        task = Bunqueue("q").job(function)
        function.__globals__["Late"] = kind
        try:
            if problem is None:
                assert task.job(Order(number=1)).data == {"order": Order(number=1)}
                continue
            with pytest.raises(TypeError, match=problem):
                task.check()
        finally:
            del function.__globals__["Late"]
