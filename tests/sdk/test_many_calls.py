"""Groups, chains and chords, and jobs of many calls, over a server and embedded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from msgspec import Struct

from bunqueue import ArgumentsError, Bunqueue, Depends, FlowJob, FlowProducer, JobFailed, OptionError
from bunqueue.client.connection.endpoint_options import EndpointOptions

SOON = 60_000  # ms


class Point(Struct):
    x: int
    y: int


@pytest.fixture
async def app(where: EndpointOptions, name: str) -> AsyncIterator[Bunqueue]:
    app = Bunqueue(name, **where)
    yield app
    await app.close_async()


async def test_a_chord_of_chunks_gives_its_body_typed_results(app: Bunqueue) -> None:
    @app.job()
    async def moved(point: Point, by: int = 1) -> Point:
        return Point(point.x + by, point.y)

    @app.job()
    def plain(n: int, factor: Annotated[int, Depends(lambda: 10)]) -> int:
        return n * factor

    @app.job()
    async def widest() -> int:
        parts = await app.async_flows.children_results(list[Point])
        return max(point.x for part in parts for point in part)

    rows = [(Point(n, 0), 5) for n in range(7)]
    parts = moved.chunks(rows, 3)
    assert [len(part.data["*"]) for part in parts] == [3, 3, 1]  # type: ignore[index]
    async with app:
        body = await app.async_flows.chord(parts, widest.job())
        one, other = await app.async_flows.group([moved.starmap(rows[:2]), plain.starmap([(1,), (2,)])])
        last = await app.async_flows.chain(plain.job(1), plain.job(2))
        assert await body.result(SOON) == 11
        assert await one.result(SOON) == [Point(5, 0), Point(6, 0)]
        assert await other.result(SOON) == [10, 20]
        assert await last.result(SOON) == 20
    assert plain.starmap([]).data == {"*": []}
    assert plain.chunks([], 3) == []


async def test_a_call_that_raises_fails_all_of_its_job(app: Bunqueue) -> None:
    @app.job(max_attempts=1, unrecoverable=(KeyError,))
    async def picky(n: int) -> int:
        if n == 2:
            raise KeyError(n)
        return n

    async with app:
        (handle,) = await app.async_flows.group([picky.starmap([(1,), (2,), (3,)])])
        with pytest.raises(JobFailed, match="KeyError"):
            await handle.result(SOON)


def test_what_is_wrong_is_refused_before_anything_is_added(where: EndpointOptions) -> None:
    app = Bunqueue("many-wrong", **where)

    @app.job()
    def add(x: int, y: int) -> int:
        return x + y

    @app.job(group=lambda x: str(x))
    def grouped(x: int) -> int:
        return x

    @app.workflow
    async def long(flow: Any) -> None: ...

    refused: Any
    for refused, error, words in (
        (lambda: add.starmap([(1, 2), (1,)]), ArgumentsError, "missing a required argument: 'y'"),
        (lambda: add.starmap([(1, 2), (1, "b")]), ArgumentsError, "argument y"),
        (lambda: add.starmap(["ab"]), OptionError, "row 0: 'ab' is not allowed; give a tuple"),
        (lambda: add.chunks([(1, 2)], 0), OptionError, "size: 0 is not allowed"),
        (lambda: grouped.starmap([(1,)]), OptionError, "group: not possible for many calls in one job"),
        (lambda: long.starmap([()]), TypeError, "cannot be many calls in one job"),
    ):
        with pytest.raises(error, match=words):
            refused()
    with FlowProducer(**where) as flows:
        with pytest.raises(OptionError, match="a chain needs at least one job"):
            flows.chain()
        assert flows.group([]) == []
        body = flows.chord([], FlowJob("body", queue="many-none"))
        assert body.state() == "waiting"
    app.close()
