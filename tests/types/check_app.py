"""Types of typed jobs and of what they give: read by mypy and pyright, never run."""

from __future__ import annotations

from typing import Any, assert_type

import msgspec
import pydantic

from bunqueue import (
    AsyncFlowProducer,
    AsyncJobHandle,
    Bunqueue,
    FlowJob,
    FlowNode,
    FlowProducer,
    FlowTree,
    JobHandle,
    QueueEvent,
    QueueEvents,
)

app = Bunqueue("emails", port=6789, default_job_options={"max_attempts": 5})


class Receipt(msgspec.Struct):
    to: str


class Order(pydantic.BaseModel):
    number: int


@app.job
async def send(to: str, copies: int = 1) -> Receipt:
    return Receipt(to)


@app.job(queue="numbers", max_attempts=5, backoff=1000)
def total(numbers: list[int], *, scale: float = 1.0) -> float:
    return sum(numbers) * scale


@app.job
async def price(order: Order) -> Order:
    return order


@app.cron("0 9 * * *", tz="Europe/Rome", immediately=True)
@app.job
async def report() -> None: ...


@app.cron(every=1000)
def sweep() -> int:
    return 1


async def calls() -> None:
    assert_type(await send("ada", copies=2), Receipt)
    assert_type(total([1], scale=2.0), float)
    assert_type(sweep(), int)
    await send(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    total()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def adding() -> None:
    assert_type(send.add("ada", copies=2), JobHandle[Receipt])
    assert_type(await send.add_async("ada"), AsyncJobHandle[Receipt])
    assert_type(send.add("ada").result(), Receipt)
    assert_type(price.add(Order(number=1)).result(), Order)
    price.add({"number": 1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await (await total.add_async([1])).result(), float)
    assert_type(report.add().result(), None)
    assert_type(send.options(delay=5000).add("ada"), JobHandle[Receipt])
    assert_type(send.handle("id"), JobHandle[Receipt])
    send.add(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    send.add()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    send.add("ada", colour="blue")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await total.add_async(["x"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    send.options(delai=5000)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_type(app.add("any", {"x": 1}, priority=3), JobHandle[Any])
    assert_type(app.add_bulk([send.job("a"), send.job("b")]), list[JobHandle[Receipt]])
    assert_type(await app.add_bulk_async([total.job([1])]), list[AsyncJobHandle[float]])


async def flows() -> None:
    assert_type(send.job("ada"), FlowJob[Receipt])
    assert_type(send.job("ada").after(total.job([1])), FlowJob[Receipt])
    assert_type(send.starmap([("ada", 2), ["bob"]]), FlowJob[list[Receipt]])
    assert_type(send.chunks([("ada",)], 10), list[FlowJob[list[Receipt]]])
    assert_type(app.flows.chord(send.chunks([("ada",)], 10), total.job([1])), JobHandle[float])
    assert_type(app.flows.group([send.starmap([("ada",)])]), list[JobHandle[Any]])
    send.starmap([1, 2])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    send.chunks([("ada",)])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    send.chunks([("ada",)], "ten")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(app.flows.add(send.job("ada")), FlowNode[JobHandle[Receipt]])
    assert_type(await app.async_flows.add(send.job("ada")), FlowNode[AsyncJobHandle[Receipt]])
    assert_type(FlowProducer().get_flow("id"), FlowTree | None)
    producer = AsyncFlowProducer()
    tree = await producer.get_flow("id")
    assert tree is not None
    assert_type(tree.children[0].job.queue, str)
    assert_type(await producer.children_values("id"), dict[str, Any])
    assert_type(await producer.children_results(Receipt), list[Receipt])


def events() -> None:
    with QueueEvents("emails", types=["completed"]) as events:
        for event in events:
            assert_type(event, QueueEvent)
            assert_type(event.count, int | None)
    QueueEvents("emails", types="completed")
    QueueEvents("emails", types=["complete"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
