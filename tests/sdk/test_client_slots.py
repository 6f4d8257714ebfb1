"""Running a bounded number of jobs without a task for each."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from support.waiting import eventually

from bunqueue.worker.fetching.slots import Slots


async def test_jobs_run_side_by_side_but_never_more_than_the_size() -> None:
    running = most = 0
    gate = asyncio.Event()
    full = asyncio.Event()

    async def run(job: int, task: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 5:
            full.set()
        await gate.wait()
        running -= 1

    slots = Slots(5, run, lambda: None)
    slots.put(list(range(5)))
    await asyncio.wait_for(full.wait(), 60)
    assert slots.busy == 5
    gate.set()
    await eventually(lambda: not slots.busy, "all are done")
    slots.put([1, 2])
    await eventually(lambda: not slots.busy, "all are done")
    assert most == 5
    await slots.cancel(1)


async def test_handlers_that_never_wait_need_few_slots() -> None:
    done: list[int] = []

    async def run(job: int, task: object) -> None:
        done.append(job)

    slots = Slots(50, run, lambda: None)
    slots.put(list(range(50)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert done == list(range(50))
    assert len(slots._tasks) <= 5
    await slots.cancel(1)


async def test_jobs_that_were_not_begun_can_be_taken_back() -> None:
    async def run(job: str, task: object) -> None:
        await asyncio.Event().wait()

    slots = Slots(1, run, lambda: None)
    slots.put(["a", "b", "c"])
    await asyncio.sleep(0)
    assert slots.withdraw() == ["b", "c"]
    assert slots.busy == 1
    await slots.cancel(1)
    assert slots.busy == 0


async def test_context_variables_of_one_job_are_not_seen_by_the_next() -> None:
    variable: ContextVar[object] = ContextVar("variable", default="clean")
    seen: list[object] = []

    async def run(job: object, task: object) -> None:
        seen.append(variable.get())
        variable.set(job)

    slots = Slots(1, run, lambda: None)
    for job in (1, 2, 3):
        slots.put([job])
        await eventually(lambda: not slots.busy, "all are done")
    slots.put([4])
    await eventually(lambda: not slots.busy, "all are done")
    assert seen == ["clean"] * 4
    await slots.cancel(1)


async def test_context_values_that_cannot_be_compared_do_no_harm() -> None:
    class Hostile:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("not comparable")

        __hash__ = None  # type: ignore[assignment]

    variable: ContextVar[object] = ContextVar("variable")
    variable.set(Hostile())
    done = 0

    async def run(job: int, task: object) -> None:
        nonlocal done
        variable.set(Hostile())
        done += 1

    slots = Slots(1, run, lambda: None)
    for job in range(3):
        slots.put([job])
        await eventually(lambda: not slots.busy, "all are done")
    assert done == 3
    await slots.cancel(1)
