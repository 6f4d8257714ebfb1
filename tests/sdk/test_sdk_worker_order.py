"""A worker of several queues takes their jobs in a strict order, or by weights."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from support.waiting import eventually

from bunqueue import ActiveJob, AsyncQueue, Bunqueue, Worker
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.errors import OptionError
from bunqueue.worker.fetching.order import Turns


@pytest.fixture
def names(name: str) -> tuple[str, str]:
    return f"{name}-high", f"{name}-low"


async def fill(where: EndpointOptions, counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        async with AsyncQueue(name, **where) as queue:
            for number in range(count):
                await queue.add("job", number)


async def ran(
    where: EndpointOptions, names: tuple[str, str], order: Any, counts: tuple[int, int], concurrency: int = 1
) -> list[str]:
    """The queues whose jobs began, in that order."""
    await fill(where, dict(zip(names, counts, strict=True)))
    begun: list[str] = []

    async def note(job: ActiveJob) -> None:
        begun.append(job.queue)

    async with Worker(names, note, order=order, concurrency=concurrency, **where):
        await eventually(lambda: len(begun) == sum(counts), "all jobs run")
    return begun


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_strict_leaves_the_later_queue_until_the_earlier_is_empty(
    where: EndpointOptions, names: tuple[str, str], concurrency: int
) -> None:
    high, low = names
    assert await ran(where, (low, high), "strict", (6, 9), concurrency) == [low] * 6 + [high] * 9


async def test_a_job_of_the_earlier_queue_goes_before_those_that_wait(
    where: EndpointOptions, names: tuple[str, str]
) -> None:
    high, low = names
    await fill(where, {low: 3})
    begun: list[str] = []

    async def note(job: ActiveJob) -> None:
        begun.append(job.queue)
        if len(begun) == 1:
            await fill(where, {high: 2})

    async with Worker(names, note, order="strict", **where):
        await eventually(lambda: len(begun) == 5, "all jobs run")
    assert begun == [low, high, high, low, low]


async def test_weights_share_the_places(where: EndpointOptions, names: tuple[str, str]) -> None:
    high, low = names
    begun = await ran(where, names, {high: 3, low: 1}, (30, 30))
    assert Counter(begun[:40]) == {high: 30, low: 10}
    assert all(Counter(begun[at : at + 4]) == {high: 3, low: 1} for at in range(0, 40, 4))


@pytest.mark.parametrize("kind", ["strict", "weighted"])
async def test_an_idle_worker_hears_of_jobs_in_each_queue(
    where: EndpointOptions, names: tuple[str, str], kind: Literal["strict", "weighted"]
) -> None:
    order: Any = "strict" if kind == "strict" else dict.fromkeys(names, 1)

    async def answer(job: ActiveJob) -> str:
        return job.queue

    async with Worker(names, answer, order=order, **where):
        for name in (*names, *names):
            async with AsyncQueue(name, **where) as queue:
                handle = await queue.add("job")
                assert await asyncio.wait_for(handle.result(), 60) == name


async def test_a_worker_that_stops_leaves_the_rest(where: EndpointOptions, names: tuple[str, str]) -> None:
    high, low = names
    await fill(where, {high: 5, low: 5})
    done: list[str] = []

    async def note(job: ActiveJob) -> None:
        done.append(job.queue)

    worker = Worker(names, note, order="strict", max_jobs=3, **where)
    await worker.run()
    assert done == [high] * 3
    async with AsyncQueue(high, **where) as first, AsyncQueue(low, **where) as second:
        assert (await first.counts()).waiting == 2
        assert (await second.counts()).waiting == 5


@pytest.mark.parametrize(
    "order",
    [
        *("first", None, 3, {}, {"a": 1}, {"a": 1, "b": 1, "c": 1}),
        *({"a": value, "b": 1} for value in (0, True, 1.5, 1001)),
    ],
)
def test_an_order_that_there_is_not_is_refused(order: Any) -> None:
    with pytest.raises(OptionError, match="order"):
        Worker(["a", "b"], print, order=order)


@pytest.mark.parametrize("order", ["strict", {"a": 1}])
def test_an_order_of_one_queue_is_refused(order: Any) -> None:
    Worker("a", print, order="even")
    with pytest.raises(OptionError, match=r"order.*one queue"):
        Worker("a", print, order=order)


def test_one_place_is_enough_unless_each_queue_has_its_own() -> None:
    Worker(["a", "b"], print, order="strict").set_concurrency(1)
    with pytest.raises(OptionError, match="too little for 2 queues"):
        Worker(["a", "b"], print)


def app_of(where: EndpointOptions, names: tuple[str, str], begun: list[str], **options: Any) -> Bunqueue:
    """An app whose queues have jobs of the same name, which are run by different functions."""
    app = Bunqueue(names[0], **options, **where)

    @app.route("job")
    async def high(job: ActiveJob) -> None:
        begun.append(f"high {job.queue}")

    @app.route("job", queue=names[1])
    def low(job: ActiveJob) -> None:
        begun.append(f"low {job.queue}")

    @app.batch("many", size=2, queue=names[1])
    async def many(jobs: list[ActiveJob]) -> None:
        begun.extend(f"many {job.queue}" for job in jobs)

    return app


async def test_the_queues_of_an_app_in_a_strict_order(where: EndpointOptions, names: tuple[str, str]) -> None:
    await fill(where, {names[1]: 3, names[0]: 4})
    begun: list[str] = []
    async with app_of(where, names, begun, order="strict", concurrency=1):
        await eventually(lambda: len(begun) == 7, "all jobs run")
        async with AsyncQueue(names[1], **where) as queue:
            for handle in await queue.add_bulk([("many", 1), ("many", 2)]):
                await handle.result()
    high, low = names
    assert begun == [f"high {high}"] * 4 + [f"low {low}"] * 3 + [f"many {low}"] * 2


async def test_the_queues_of_an_app_by_weight(where: EndpointOptions, names: tuple[str, str]) -> None:
    high, low = names
    await fill(where, {low: 20, high: 20})
    begun: list[str] = []
    app = Bunqueue(high, concurrency=1, worker={"order": {high: 3, low: 1}}, **where)

    @app.route()
    @app.route(queue=low)
    async def note(job: ActiveJob) -> None:
        begun.append(job.queue)

    async with app:
        await eventually(lambda: len(begun) == 40, "all jobs run")
    assert Counter(begun[:24]) == {high: 18, low: 6}


@pytest.mark.parametrize("order", ["first", 3, {"a": 0, "b": 1}, {"a": 1}])
async def test_an_order_that_an_app_does_not_know_is_refused(order: Any) -> None:
    with pytest.raises(OptionError, match="order"):
        async with app_of({"embedded": True}, ("a", "b"), [], order=order):
            pass


async def test_an_order_takes_the_places_of_all_queues_together() -> None:
    app = app_of({"embedded": True}, ("a", "b"), [], order="strict")
    app.add_queue("b", concurrency=3)
    with pytest.raises(
        OptionError, match="queue 'b': concurrency=3 of its own does not go with order='strict'"
    ):
        await app.start()
    await app.close_async()
    (one,) = app_of({"embedded": True}, ("a", "b"), [], order="strict").__bunqueue_workers__(["a"])
    assert [line.partition(" at ")[0] for line in one.describe()] == ["queue a"], "one of them has no order"


def test_a_queue_without_jobs_does_not_save_up_turns() -> None:
    turns = Turns(("a", "b"), {"a": 1, "b": 1})
    for _ in range(100):
        turns.took("a", 1)
        turns.ended({"b"})
    assert turns.ask(4, ()) == ("a", 2)
