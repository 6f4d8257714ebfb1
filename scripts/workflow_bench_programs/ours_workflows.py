"""Workflows of this project: one process with the app and its worker, against a running server.

python ours_workflows.py SCENARIO COUNT PORT
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import workflow_harness as harness

from bunqueue import Bunqueue, Flow

scenario, count, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
together = count if scenario.startswith("recovery") else 100
app = Bunqueue("bench", port=port, concurrency=together)
clock = harness.Clock()


async def nothing(number: int) -> int:
    return number


@app.workflow
async def steps(flow: Flow, many: int) -> None:
    for number in range(many):
        await flow.step(f"step-{number}", nothing, number)


@app.workflow
async def timed(flow: Flow, many: int) -> None:
    for number in range(many):
        with clock:
            await flow.step(f"step-{number}", nothing, number)


@app.workflow
async def signalled(flow: Flow) -> None:
    await flow.wait_for("go")
    clock.stop()


@app.workflow
async def sleeps(flow: Flow) -> None:
    await flow.sleep(days=1)


async def second() -> None:
    await harness.second_step(scenario == "recovery-go")


@app.workflow
async def in_flight(flow: Flow) -> None:
    await flow.step("first", nothing, 1)
    await flow.step("second", second)


async def finished(handles: Sequence[Any]) -> None:
    await asyncio.gather(*(handle.result(timeout=600_000) for handle in handles))


async def main() -> None:
    if scenario == "sleepers":
        return await sleepers()
    async with app:
        await steps.start_async(1)
        await SCENARIOS[scenario]()


async def many_steps() -> None:
    with harness.Timing(count * 10):
        await finished(await asyncio.gather(*(steps.start_async(10) for _ in range(count))))


async def one_step() -> None:
    await finished([await timed.start_async(count)])
    clock.report()


async def whole() -> None:
    for _ in range(count):
        with clock:
            await finished([await steps.start_async(1)])
    clock.report()


async def signals() -> None:
    for _ in range(count):
        handle = await signalled.start_async()
        while await handle.state() != "waiting-signal":  # noqa: ASYNC110 - there is no notification
            await asyncio.sleep(0.001)
        clock.start()
        await handle.signal("go")
        await finished([handle])
    clock.report()


async def sleepers() -> None:
    """Wait until all sleep.  The worker keeps running, as it normally does."""
    async with app:
        for start in range(0, count, 1000):
            await app.add_bulk_async([sleeps.job() for _ in range(min(1000, count - start))])
        while (await app.async_queue.counts()).delayed < count:  # noqa: ASYNC110 - there is no notification
            await asyncio.sleep(0.1)
        harness.ready_to_be_weighed()


async def recovery_begin() -> None:
    handles = await asyncio.gather(*(in_flight.start_async(id=f"w{number}") for number in range(count)))
    await harness.all_in_second_step(len(handles))


async def recovery_go() -> None:
    await finished([app.async_queue.workflow(f"w{number}") for number in range(count)])
    harness.say(done=True)


SCENARIOS = {
    "steps": many_steps,
    "step": one_step,
    "whole": whole,
    "signal": signals,
    "recovery-begin": recovery_begin,
    "recovery-go": recovery_go,
}

if __name__ == "__main__":
    asyncio.run(main())
