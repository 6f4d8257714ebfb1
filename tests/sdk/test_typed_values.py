"""Values of all kinds of types arrive as they were given, in arguments, data and results; what cannot is
refused where it is declared."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import ipaddress
import pathlib
import uuid
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import attrs
import msgspec
import pydantic
import pytest

from bunqueue import (
    ActiveJob,
    ArgumentsError,
    AsyncQueue,
    Bunqueue,
    FlowJob,
    JobFailed,
    PayloadError,
    ResultError,
    Worker,
)
from bunqueue.app.arguments import Arguments
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.client.options.job import encode_data

T = TypeVar("T")
ID = uuid.UUID("6dbb2faa-201a-41bf-977d-77e5164dbbdb")
DAY = datetime.date(2026, 3, 1)
NOW = datetime.datetime(2026, 3, 1, 9, 30, 0, 123456, tzinfo=datetime.UTC)


class Kind(enum.Enum):
    FAST = "fast"


class Right(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Box(Generic[T]):
    item: T


@attrs.define
class Parcel:
    weight: Decimal = attrs.field(validator=attrs.validators.gt(0))
    stops: set[str] = attrs.field(factory=set)


class Line(msgspec.Struct):
    name: str
    price: Decimal


class Point(NamedTuple):
    x: int
    on: datetime.date


class Options(TypedDict):
    key: uuid.UUID


class Item(pydantic.BaseModel):
    name: str
    price: Decimal = pydantic.Field(gt=0)


class Order(pydantic.BaseModel):
    id: uuid.UUID
    items: list[Item]
    made: datetime.datetime
    sender: str = pydantic.Field("nobody", alias="from")
    secret: pydantic.SecretStr | None = None
    site: pydantic.HttpUrl | None = None
    blob: bytes = b""

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> Decimal:
        return sum((item.price for item in self.items), Decimal())


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    id: uuid.UUID
    tags: frozenset[str]
    at: datetime.datetime


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Card(pydantic.BaseModel):
    type: Literal["card"] = "card"
    number: str


class Cash(pydantic.BaseModel):
    type: Literal["cash"] = "cash"


@pydantic.dataclasses.dataclass
class Checked:
    count: pydantic.PositiveInt


@dataclasses.dataclass
class Basket:
    orders: list[Order]


Customer = NewType("Customer", int)
ORDER = Order.model_validate(
    {
        "id": ID,
        "items": [Item(name="tea", price=Decimal("2.50"))],
        "made": NOW,
        "from": "ada",
        "secret": "hush",
        "site": "https://example.com/",
        "blob": b"\xff\0",
    }
)

VALUES: list[tuple[Any, Any]] = [
    (Kind, Kind.FAST),
    (Right, Right.READ | Right.WRITE),
    (datetime.datetime, NOW),
    (datetime.datetime, NOW.replace(tzinfo=None)),
    (datetime.date, DAY),
    (datetime.time, datetime.time(9, 30, 0, 5)),
    (datetime.timedelta, datetime.timedelta(days=-1, microseconds=3)),
    (uuid.UUID, ID),
    (Decimal, Decimal("1.10")),
    (bytes, b"\0\xff"),
    (set[uuid.UUID], {ID}),
    (frozenset[int], frozenset({1, 2})),
    (tuple[int, datetime.date], (1, DAY)),
    (tuple[str, ...], ("a", "b")),
    (dict[uuid.UUID, list[Decimal]], {ID: [Decimal(1)]}),
    (uuid.UUID | None, None),
    (int | uuid.UUID, ID),
    (Customer, Customer(5)),
    (Box[uuid.UUID], Box(ID)),
    (list[Box[Item]], [Box(Item(name="tea", price=Decimal(1)))]),
    (Parcel, Parcel(Decimal("0.5"), {"Turin"})),
    (Line, Line("tea", Decimal("2.50"))),
    (Point, Point(1, DAY)),
    (Options, {"key": ID}),
    (pathlib.Path, pathlib.Path("/tmp/a")),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("10.0.0.1")),
    (Order, ORDER),
    (Order | None, ORDER),
    (dict[str, list[Order]], {"a": [ORDER]}),
    (Basket, Basket([ORDER])),
    (Strict, Strict(id=ID, tags=frozenset({"a"}), at=NOW)),
    (Page[uuid.UUID], Page[uuid.UUID](items=[ID])),
    (Numbers, Numbers([1, 2])),
    (Checked, Checked(3)),
    (Annotated[Card | Cash, pydantic.Field(discriminator="type")], Cash()),
    (Card | int, 7),
    (list[Card | Cash], [Card(number="1"), Cash()]),
    (pydantic.PositiveInt, 5),
    (pydantic.SecretStr, pydantic.SecretStr("hush")),
]


def of_type(hint: Any, gives: Any = None) -> Arguments:
    def function(value): ...  # type: ignore[no-untyped-def]

    function.__annotations__ = {"value": hint, "return": hint if gives is None else gives}
    return Arguments(function, "it")


@pytest.mark.parametrize(("hint", "value"), VALUES, ids=lambda each: str(each)[:40])
def test_values_arrive_as_they_were(hint: Any, value: Any) -> None:
    arguments = of_type(hint)
    arguments.check_annotations()
    data = arguments.data((value,), {})
    wire = msgspec.msgpack.decode(bytes(encode_data(data, "it")))
    arrived = arguments.of(wire)["value"]
    assert arrived == value
    assert type(arrived) is type(value)
    arguments.check_result(value)


class Derived(Item):
    colour: str = "red"


class Same(pydantic.BaseModel):
    name: str
    price: Decimal


@dataclasses.dataclass
class Base:
    x: int


@dataclasses.dataclass
class Wider(Base):
    y: int = 0


@pytest.mark.parametrize(
    ("hint", "value", "problem"),
    [
        (Order, {"id": "x", "items": [], "made": NOW}, "argument value.id: 'x' is not allowed: Input should"),
        (Order, {"id": ID, "made": NOW}, "missing required field `items`"),
        (list[Item], [{"name": "a", "price": 0}], r"argument value\[0\].price: 0 is not allowed: .*greater"),
        (Basket, {"orders": [{}]}, r"argument value.orders\[0\]: .* missing required field `id`"),
        (pydantic.PositiveInt, -1, "argument value: -1 is not allowed: Input should be greater than 0"),
        (Parcel, {"weight": "-1"}, "argument value: .* must be > 0"),
        (Item, Derived(name="a", price=Decimal(1)), "would arrive as a Item: declare Derived"),
        (list[Item | Same], [Same(name="a", price=Decimal(1))], r"argument value\[0\]: Same.* as a Item"),
        (Base, Wider(1, 2), "would arrive as a Base"),
    ],
)
def test_what_would_arrive_as_something_else_is_refused(hint: Any, value: Any, problem: str) -> None:
    with pytest.raises(ArgumentsError, match=problem):
        of_type(hint).data((value,), {})


def test_a_result_that_would_arrive_as_something_else_is_refused() -> None:
    with pytest.raises(ResultError, match="would arrive as a Item; declare Derived"):
        of_type(Item).check_result(Derived(name="a", price=Decimal(1)))


def test_values_of_parameters_without_a_type_are_plain() -> None:
    def untyped(value, other: Any = None): ...  # type: ignore[no-untyped-def]

    arguments = Arguments(untyped, "it")
    assert arguments.data(([1, "a"],), {"other": {"a": b""}})
    with pytest.raises(
        PayloadError, match=r"the argument 'value' of job 'it' has UUID.* would arrive as text"
    ):
        arguments.data((ID,), {})


class Opaque:
    pass


class HasOpaque(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    thing: Opaque


class Mixed(enum.Enum):
    A = 1
    B = "b"


@pytest.mark.parametrize(
    ("hint", "problem"),
    [
        (Opaque, "has the type Opaque, which jobs cannot carry; use .* Pydantic models"),
        (list[Opaque], "has the type Opaque"),
        (Order | Opaque, "cannot be carried by jobs: .*Opaque"),
        (HasOpaque, "cannot be carried by jobs: .*Opaque"),
        (complex, "has the type complex"),
        (str | uuid.UUID, "cannot be carried by jobs: .*more than one str-like"),
        (Base | Wider, "cannot be carried by jobs: .*more than one dataclass"),
        (Line | Order, "cannot be carried by jobs"),
        (Mixed, "cannot be carried by jobs: Enums must contain either all str or all int"),
        (Annotated[int, msgspec.Meta(ge=1), pydantic.Field(le=5)], "has bounds of Pydantic and of msgspec"),
    ],
    ids=str,
)
def test_what_cannot_arrive_is_refused_where_it_is_declared(hint: Any, problem: str) -> None:
    app = Bunqueue("q")

    def takes(number: int, thing): ...  # type: ignore[no-untyped-def]

    takes.__annotations__["thing"] = hint
    with pytest.raises(TypeError, match=f"job 'takes': its parameter 'thing' {problem}"):
        app.job(takes)

    def gives(): ...  # type: ignore[no-untyped-def]

    gives.__annotations__["return"] = hint
    with pytest.raises(TypeError, match=f"job 'gives': its result {problem}"):
        app.job(gives)


def test_pydantic_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("bunqueue.client.conversion.models")
    monkeypatch.setitem(__import__("sys").modules, "bunqueue.client.conversion.models", None)
    with pytest.raises(TypeError, match=r"parameter 'value' needs Pydantic \(pip install 'bunqueue\[pyd"):
        of_type(Annotated[int, pydantic.Field(gt=0)]).check_annotations()


# -- with an engine


async def test_arguments_and_results_of_an_app(where: EndpointOptions) -> None:
    app = Bunqueue("typed", **where)

    @app.job
    async def price(order: Order, parcel: Parcel, rate: Decimal = Decimal(1)) -> Page[Decimal]:
        assert isinstance(order, Order)
        return Page[Decimal](items=[order.total * rate, parcel.weight])

    @app.job
    def echo(values: tuple[uuid.UUID, datetime.timedelta], kinds: set[Kind]) -> Box[set[Kind]]:
        return Box(kinds)

    async with app:
        handle = await price.add_async(ORDER, Parcel(Decimal("0.5")), rate=Decimal("2"))
        result = await handle.result(60_000)
        assert result == Page[Decimal](items=[Decimal("5.00"), Decimal("0.5")])
        other = await echo.add_async((ID, datetime.timedelta(1)), {Kind.FAST})
        assert await other.result(60_000) == Box({Kind.FAST})
        flow = await app.async_flows.add(
            price.job(ORDER, Parcel(Decimal(1))).after(echo.job((ID, DAY - DAY), set()))
        )
        assert (await flow.job.result(60_000)).items == [Decimal("2.50"), Decimal(1)]
        assert (await other.job()).result_as(Box[set[Kind]]) == Box({Kind.FAST})


async def test_data_and_results_of_a_queue(where: EndpointOptions) -> None:
    met: list[object] = []

    async def ship(job: ActiveJob[Order]) -> Item:
        met.append(job.data)
        return job.data.items[0]

    def weigh(job: ActiveJob) -> Parcel:
        parcel = job.data_as(Parcel)
        met.append(parcel)
        return parcel

    worker = Worker("parcels", {"ship": ship, "weigh": weigh}, concurrency=2, **where)
    async with AsyncQueue("parcels", **where) as queue, worker:
        shipped = (await queue.add("ship", ORDER)).returning(Item)
        assert await shipped.result(60_000) == Item(name="tea", price=Decimal("2.50"))
        weighed = (await queue.add("weigh", Parcel(Decimal("0.5"), {"a"}))).returning(Parcel)
        assert await weighed.result(60_000) == Parcel(Decimal("0.5"), {"a"})
        assert sorted(map(type, met), key=str) == sorted([Order, Parcel], key=str)
        job = await shipped.job()
        assert (job.data_as(Order), job.result_as(Item).name) == (ORDER, "tea")
        with pytest.raises(ArgumentsError, match=r"the data of job .* is not what was expected: "):
            job.data_as(Parcel)
        wrong = await queue.add("ship", {"id": "?"}, max_attempts=5)
        with pytest.raises(JobFailed, match="ArgumentsError: job 'ship': its data is not what"):
            await wrong.result(60_000)
        async with Worker("boxes", lambda job: job.data["item"], **where):
            box: FlowJob[Any] = FlowJob("box", Box(3), queue="boxes", result_type=int)
            assert box.result_type is int


def test_a_handler_whose_data_cannot_arrive_is_refused() -> None:
    async def handler(job: ActiveJob[Opaque]) -> None: ...
    async def unknown(job: ActiveJob[Nowhere]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match="the data of its jobs has the type Opaque"):
        Worker("q", handler, embedded=True)
    with pytest.raises(TypeError, match="names 'Nowhere', which its module does not know"):
        Worker("q", unknown, embedded=True)
