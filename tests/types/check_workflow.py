"""Types of what the function of a workflow can call: read by mypy and pyright, never run."""

from __future__ import annotations

from functools import partial
from typing import Any, assert_type

from bunqueue import BlockingFlow, Bunqueue, Flow

app = Bunqueue("orders", port=6789)


@app.job
async def pack(item: str, weight: float = 1.0) -> int:
    return len(item)


@app.job
def weigh(item: str) -> float:
    return float(len(item))


@app.workflow
async def ship(flow: Flow, items: list[str]) -> str:
    return ", ".join(items)


@app.workflow
async def order(flow: Flow) -> None:
    assert_type(await flow.wait_for("a"), Any)
    assert_type(await flow.wait_for("a", str), str)
    assert_type(await flow.wait_for("a", str, timeout=1_000), str)
    assert_type(await flow.wait_for("a", str, timeout=1_000, default=None), str | None)
    assert_type(await flow.wait_for("a", str, timeout=1_000, default=7), str | int)

    assert_type(await flow.run(pack, "lamp"), int)
    assert_type(await flow.run(pack, "lamp", child_id="own", step="pack"), int)
    assert_type(await flow.run(pack, "lamp", step="pack"), int)
    assert_type(await flow.run(pack.job("lamp")), int)
    assert_type(await flow.run(ship, ["lamp"]), str)
    assert_type(await flow.start(pack, "lamp", weight=2.0), str)
    assert_type(await flow.map(weigh, ["lamp", "book"]), list[float])
    await flow.run(pack, 7)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await flow.run(7)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]

    assert_type(await flow.gather(flow.run(pack, "a"), flow.run(weigh, "b")), tuple[int, float])
    assert_type(await flow.gather(*(flow.run(pack, each) for each in "abc")), list[int])
    assert_type(await flow.race(flow.run(pack, "a"), flow.wait_for("b", str)), int | str)
    assert_type(await flow.race(human=flow.wait_for("a", str), nobody=flow.sleep(days=1)), tuple[str, Any])


@app.workflow
def plain(flow: BlockingFlow) -> None:
    assert_type(flow.wait_for("a", str), str)
    assert_type(flow.wait_for("a", str, timeout=1_000, default=None), str | None)
    assert_type(flow.run(pack, "lamp"), int)
    assert_type(flow.run(pack, "lamp", step="pack"), int)
    assert_type(flow.run(pack.job("lamp"), step="pack"), int)
    assert_type(flow.map(weigh, ["lamp", "book"]), list[float])
    assert_type(flow.gather(lambda: 1, lambda: "b"), tuple[int, str])
    assert_type(flow.gather(*(partial(flow.run, pack, each) for each in "abc")), list[int])
    assert_type(flow.race(lambda: 1, lambda: "b"), int | str)
