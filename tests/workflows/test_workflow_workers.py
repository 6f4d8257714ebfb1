"""Workflows run by real workers: with a server of two shards, and embedded."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import pytest
from support.promises import promises
from support.waiting import eventually

from bunqueue import AsyncQueue, BlockingFlow, Bunqueue, Flow, JobCancelled, JobFailed, Worker
from bunqueue.client.connection.endpoint_options import EndpointOptions

PATIENCE = 60_000


@dataclass
class Order:
    id: str
    items: list[str]


@dataclass
class Receipt:
    charge: str
    parcels: list[str]


def an_app(where: EndpointOptions) -> Bunqueue:
    return Bunqueue(f"q-{uuid4().hex[:8]}", **where)


async def test_an_order_from_its_start_to_its_receipt(where: EndpointOptions) -> None:
    app = an_app(where)
    other = f"packing-{uuid4().hex[:8]}"
    undone: list[str] = []

    @app.job(queue=other)
    async def pack(item: str) -> str:
        return f"parcel with {item}"

    signalled = threading.Event()

    def pay(order: Order) -> str:
        assert signalled.wait(60)
        return f"charge for {order.id}"

    @app.workflow(max_attempts=5)
    async def order(flow: Flow, order: Order) -> Receipt:
        charge = await flow.step("charge", pay, order, undo=undone.append)
        await flow.sleep("cooling-off", seconds=1.5)
        if not await flow.wait_for("approval", bool):
            raise ValueError("not approved")
        parcels = await flow.gather(*(flow.run(pack, item) for item in order.items))
        return await flow.step("ship", Receipt, charge, parcels)

    async with app:
        given = Order("7", ["lamp", "book", "pen"])
        handle = await order.start_async(given, id=f"order-{uuid4()}")
        assert await handle.signal("approval", True) is False  # it pays still
        signalled.set()
        again = await order.start_async(given, id=handle.id)
        assert (handle.created, again.created) == (True, False)
        receipt = await handle.result(PATIENCE)
        assert receipt == Receipt("charge for 7", ["parcel with lamp", "parcel with book", "parcel with pen"])
        steps = {step.name: step.status for step in await handle.history()}
        assert set(steps) == {"charge", "cooling-off", "approval", "pack", "pack#2", "pack#3", "ship"}
        assert set(steps.values()) == {"completed"}
        assert (await handle.info()).suspended >= 1
    assert undone == []


async def test_a_cancelled_order_is_undone(where: EndpointOptions) -> None:
    app = an_app(where)
    undone: list[str] = []

    @app.workflow
    async def order(flow: Flow) -> None:
        await flow.step("a", lambda: "a", undo=undone.append)
        await flow.step("b", lambda: "b", undo=undone.append)
        await flow.wait_for("never")

    async with app:
        handle = await order.start_async()

        async def waits() -> bool:
            return await handle.state() == "waiting-signal"

        await eventually(waits, "the workflow waits")
        await handle.cancel("changed their mind")
        with pytest.raises(JobCancelled, match="changed their mind"):
            await handle.result(PATIENCE)
    assert undone == ["b", "a"]


async def test_a_plain_function_as_a_workflow(where: EndpointOptions) -> None:
    app = an_app(where)

    @app.job
    def pack(item: str) -> str:
        return f"parcel with {item}"

    @app.workflow
    def order(flow: BlockingFlow, items: list[str]) -> list[str]:
        flow.step("check", len, items)
        who, answer = flow.race(
            answer=partial(flow.wait_for, "answer", str), nobody=partial(flow.sleep, "patience", days=1)
        )
        parcels = flow.gather(*(partial(flow.run, pack, item) for item in items))
        return [who, answer, *parcels]

    async with app:
        handle = await order.start_async(["lamp", "book"])
        await handle.signal("answer", "yes")
        found = await handle.result(PATIENCE)
    assert found == ["answer", "yes", "parcel with lamp", "parcel with book"]


@promises("A sleep of at most a second stays in the process")
async def test_a_short_sleep_stays_in_the_process(where: EndpointOptions) -> None:
    app = an_app(where)
    runs: list[str] = []

    @app.workflow
    async def sleeps(flow: Flow) -> None:
        runs.append("run")
        await flow.sleep(0.2 * 1000)

    async with app:
        handle = await sleeps.start_async()
        await handle.result(PATIENCE)
        assert (await handle.info()).suspended == 0
    assert runs == ["run"]


@promises("When a worker stops, its workflows go back at the next step")
async def test_another_worker_goes_on(where: EndpointOptions) -> None:
    app = an_app(where)
    ran: list[str] = []
    begun = asyncio.Event()

    async def work(name: str) -> None:
        ran.append(name)
        begun.set()
        await asyncio.sleep(0.1)  # a step that is under way when the worker is told to stop

    @app.workflow
    async def works(flow: Flow) -> None:
        for number in range(20):
            await flow.step("work", work, str(number))

    async with AsyncQueue(app.name, **where) as queue:
        async with app:
            handle = await works.start_async()
            await asyncio.wait_for(begun.wait(), 60)
        assert 1 <= len(ran) < 20
        assert await queue.get_state(handle.id) == "waiting"
        async with app:
            await (await works.start_async(id=handle.id)).result(PATIENCE)
    assert ran == [str(number) for number in range(20)]


async def test_a_run_that_ends_takes_nothing_with_it_that_others_wait_for(where: EndpointOptions) -> None:
    """Steps of many runs are stored by the same command, which begins in one of these runs."""
    app = Bunqueue(f"q-{uuid4().hex[:8]}", **where, concurrency=40)

    @app.workflow
    async def steps(flow: Flow, count: int) -> int:
        for number in range(count):
            await flow.step("add", lambda number: number, number)
        return count

    async with app:
        handles = [await steps.start_async(3 + number % 7) for number in range(120)]
        results = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
    assert results == [3 + number % 7 for number in range(120)]


async def test_waits_for_a_job_outlive_the_run_that_began_them(where: EndpointOptions) -> None:
    """The function of a workflow waits for a job by its handle, and then somebody else does so, too."""
    app = an_app(where)
    other_queue = AsyncQueue(f"q-{uuid4().hex[:8]}", **where)
    waits, joined = asyncio.Event(), asyncio.Event()
    first: list[asyncio.Future[object]] = []

    @app.workflow
    async def impatient(flow: Flow, job_id: str) -> str:
        first.append(asyncio.ensure_future(other_queue.handle(job_id).result(PATIENCE)))
        await asyncio.sleep(0.1)  # until its command is under way
        waits.set()
        await joined.wait()
        return "enough"

    async with other_queue, app:
        job = await other_queue.add("work", {})
        handle = await impatient.start_async(job.id)
        await asyncio.wait_for(waits.wait(), 60)
        other = asyncio.ensure_future(job.result(PATIENCE))
        await asyncio.sleep(0)  # it has begun to wait with the same command
        joined.set()
        assert await handle.result(PATIENCE) == "enough"
        async with Worker(other_queue.name, lambda job: "done", **where):
            assert await other == "done"
    assert first[0].cancelled()


async def test_what_one_workflow_asks_for_does_not_fail_others(where: EndpointOptions) -> None:
    app = an_app(where)
    together = asyncio.Barrier(9)

    @app.workflow(max_attempts=1)
    async def order(flow: Flow, number: int) -> int:
        async def wait() -> int:
            await together.wait()
            return number

        return await flow.step("together", wait)

    @app.workflow(max_attempts=1)
    async def wrong(flow: Flow) -> None:
        record = flow._run.record("w", kind="signal", status="waiting", signal="w", key="k" * 2000)
        await together.wait()
        await flow._run.send(record)

    async with app:
        bad = await wrong.start_async()
        good = [await order.start_async(number) for number in range(8)]
        assert [await handle.result(timeout=PATIENCE) for handle in good] == list(range(8))
        with pytest.raises(JobFailed, match="key must be at most 1024 characters"):
            await bad.result(timeout=PATIENCE)
