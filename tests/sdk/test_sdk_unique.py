"""Unique jobs for users of this package: by arguments, for a period, in states; what a taken key means."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from support.waiting import eventually

from bunqueue import (
    ActiveJob,
    AsyncQueue,
    Bunqueue,
    Dedup,
    DuplicateJob,
    FlowJob,
    JobCancelled,
    NewJob,
    OptionError,
    Queue,
    Unique,
    Worker,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions

HOUR = timedelta(hours=1)


@dataclass
class Order:
    id: int
    note: str = ""


async def run_all(queue: AsyncQueue, where: EndpointOptions, *, fail: bool = False) -> None:
    """Have what waits run."""

    async def run(job: ActiveJob) -> None:
        if fail:
            raise ValueError("broken")

    async def is_empty() -> bool:
        counts = await queue.counts()
        return counts.waiting + counts.active + counts.delayed == 0

    async with Worker(queue.name, run, **where):
        await eventually(is_empty, "all jobs have ended")


async def test_a_period_outlasts_completion(queue: AsyncQueue, where: EndpointOptions) -> None:
    first = await queue.add("n", unique_key="k", dedup=Dedup(ttl=HOUR))
    assert (first.created, first.conflict, first.holder) == (True, None, None)
    await run_all(queue, where)
    assert await first.state() == "completed"
    again = await queue.add("n", unique_key="k", dedup=Dedup(ttl=HOUR))
    assert (again.id, again.created, again.conflict, again.holder) == (first.id, False, "kept", first.id)
    assert await queue.get_unique_job_id("k") == first.id
    assert await queue.remove_unique_key("k")
    assert (await queue.add("n", unique_key="k", dedup=Dedup(ttl=50))).created

    async def is_free() -> bool:
        return await queue.get_unique_job_id("k") is None

    await eventually(is_free, "50 ms are over")


@pytest.mark.parametrize("by", [None, "id", ["id"]])
async def test_by_arguments(queue: AsyncQueue, by: Any) -> None:
    unique = Unique(by=by, within=HOUR)
    first = await queue.add("n", {"id": 1, "b": 2}, unique=unique)
    same = await queue.add("n", {"b": 2 if by is None else 3, "id": 1}, unique=unique)
    assert (same.id, same.conflict) == (first.id, "kept")
    assert (await queue.add("n", {"id": 2, "b": 2}, unique=unique)).created
    assert (await queue.add("other", {"id": 1, "b": 2}, unique=unique)).created
    many = await queue.add_bulk(
        [
            NewJob("n", {"id": 1, "b": 2}, unique=unique),
            NewJob("n", {"id": 3}, unique=unique),
            NewJob("n", {"id": 3}, unique=Unique(by=by, on_conflict="replace")),
            ("n", {"id": 1}),
        ]
    )
    assert [each.conflict for each in many] == ["kept", None, "replaced", None]
    assert [each.created for each in many] == [False, True, True, True]
    assert many[2].holder == many[1].id


async def test_true_means_all_arguments_until_the_job_has_ended(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    first = await queue.add("n", 5, unique=True, backoff=1)
    assert (await queue.add("n", 5, unique=True)).id == first.id
    await run_all(queue, where, fail=True)
    assert (await queue.add("n", 5, unique=True)).created


async def test_states(queue: AsyncQueue) -> None:
    waiting = Unique(states=["waiting", "delayed"])
    first = await queue.add("n", unique=waiting)
    assert (await queue.add("n", unique=waiting)).id == first.id
    await queue.pull()
    assert (await queue.add("n", unique=waiting)).created


async def test_reject(queue: AsyncQueue) -> None:
    first = await queue.add("n", unique_key="k")
    with pytest.raises(DuplicateJob, match=f"job {first.id} holds the unique key 'k'") as caught:
        await queue.add("n", unique_key="k", dedup=Dedup(on_conflict="reject"))
    assert (caught.value.holder, caught.value.server_code) == (first.id, "DUPLICATE_KEY")
    with pytest.raises(DuplicateJob, match=r"jobs\[1\]"):
        await queue.add_bulk([("n", 1), NewJob("n", unique_key="k", dedup=Dedup(on_conflict="reject"))])
    assert await queue.count() == 1


async def test_extend(queue: AsyncQueue, where: EndpointOptions) -> None:
    first = await queue.add("n", unique_key="k", dedup=Dedup(ttl=60_000))
    await run_all(queue, where)
    again = await queue.add("n", unique_key="k", dedup=Dedup(ttl=HOUR, extend=True))
    assert (again.id, again.conflict) == (first.id, "extended")


async def test_supersede_cancels_what_runs_and_then_runs(queue: AsyncQueue, where: EndpointOptions) -> None:
    began, log = asyncio.Event(), []

    async def work(job: ActiveJob) -> int:
        log.append(f"{job.data} begins")
        began.set()
        try:
            await asyncio.sleep(0 if job.data else 60)  # the first one is cancelled
        except asyncio.CancelledError:
            log.append(f"{job.data} is cancelled")
            raise
        return int(job.data)

    async with Worker(queue.name, work, concurrency=5, **where):
        first = await queue.add("n", 0, unique_key="k")
        await asyncio.wait_for(began.wait(), 60)
        second = await queue.add("n", 1, unique_key="k", dedup=Dedup(on_conflict="supersede"))
        assert (second.created, second.conflict, second.holder) == (True, "superseded", first.id)
        assert await second.result(timeout=60_000) == 1
        with pytest.raises(JobCancelled, match=f"superseded by job {second.id}"):
            await first.result(timeout=60_000)
    assert log == ["0 begins", "0 is cancelled", "1 begins"]


async def test_functions_are_unique_by_their_arguments(where: EndpointOptions, name: str) -> None:
    app = Bunqueue(name, **where)

    @app.job(unique=Unique(by="order", within=HOUR))
    def ship(order: int, express: bool = False) -> None: ...

    @app.job(unique=True)
    def clean(folder: str, deep: bool = False) -> None: ...

    @app.job(unique=Unique(by=lambda order: order.id), group=lambda order: f"g{order.id % 2}")
    def pay(order: Order) -> None: ...

    first = await ship.add_async(1)
    assert (await ship.add_async(1, express=True)).holder == first.id
    assert (await ship.add_async(2)).created
    assert not (await app.add_bulk_async([ship.job(1)]))[0].created
    plain = await clean.add_async("x")
    assert (await clean.add_async("x", deep=False)).id == plain.id  # an equal call
    assert (await clean.add_async("x", deep=True)).created
    assert (await clean.options(unique=None).add_async("x")).created
    paid = await pay.add_async(Order(1, "a"))
    assert (await pay.add_async(Order(1, "b"))).id == paid.id
    job = await app.async_queue.get_job(paid.id)
    assert job is not None
    assert job.group == "g1"
    await app.close_async()


def test_mistakes_are_refused_where_they_are_written() -> None:
    app = Bunqueue("mistakes", embedded=True)
    with pytest.raises(TypeError, match="unique: by names 'orders'; the job has order"):

        @app.job(unique=Unique(by="orders"))
        def wrong(order: str) -> None: ...

    with pytest.raises(TypeError, match="unique: by: its function asks for 'orders'; the job has order"):

        @app.job(unique=Unique(by=lambda orders: orders))
        def wrong_too(order: str) -> None: ...

    cases: list[tuple[dict[str, Any], str]] = [
        ({"unique": Unique(within=-1)}, "unique: within must be at least 0, not -1"),
        ({"unique": Unique(on_conflict="ignore")}, "unique: .*on_conflict"),  # type: ignore[arg-type]
        ({"unique": Unique(on_conflict="extend")}, "'extend' needs a time"),
        ({"unique": Unique(states=["lost"])}, "unique: states: 'lost' is unknown"),  # type: ignore[list-item]
        ({"unique": Unique(states=[])}, "unique: states: without any"),
        ({"unique": "yes"}, "unique: 'yes' is not allowed; give a bunqueue.Unique"),
        ({"unique": True, "unique_key": "k"}, "unique_key: unique says that already"),
        (
            {"unique_key": "k", "dedup": Dedup(on_conflict="keep", extend=True)},
            "on_conflict says that already",
        ),
    ]
    with Queue("mistakes", embedded=True) as queue:
        for options, problem in cases:
            with pytest.raises(OptionError, match=problem):
                queue.add("n", {"a": 1}, **options)
            with pytest.raises(OptionError, match=problem):
                app.job(**options)(lambda: None)
        with pytest.raises(
            OptionError, match=r"unique: by: the data of the job has no 'b'; it is \{'a': 1\}"
        ):
            queue.add("n", {"a": 1}, unique=Unique(by="b"))
        with pytest.raises(OptionError, match=r"job 1: unique: by: the data of the job has no 'b'"):
            queue.add_bulk([("n", 1), NewJob("n", {"a": 1}, unique=Unique(by="b"))])
        assert queue.count() == 0
    with pytest.raises(OptionError, match="unique"):
        app.flows.add(FlowJob("n", queue="q", unique=True))


def test_the_blocking_client_and_defaults(where: EndpointOptions, name: str) -> None:
    options: Any = {"unique": Unique(within=HOUR)}
    with Queue(name, default_job_options=options, **where) as queue:
        first = queue.add("n", 1)
        again = queue.add("n", 1)
        assert (again.id, again.conflict, again.holder) == (first.id, "kept", first.id)
        assert queue.add("n", 1, unique_key="own").created
        assert not queue.add_bulk([("n", 1)])[0].created
