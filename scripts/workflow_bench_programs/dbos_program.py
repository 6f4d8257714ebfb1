"""DBOS Transact: one process with its workflows, on the database of an URL.

python dbos_program.py SCENARIO COUNT URL

All workflows are started in the process that runs them, which is the fastest way in DBOS. A run is over when
the last function has returned, because handles poll for results only once a second.
"""

from __future__ import annotations

import asyncio
import sys
import time

import workflow_harness as harness
from dbos import DBOS, SetWorkflowID

scenario, count, url = sys.argv[1], int(sys.argv[2]), sys.argv[3]
DBOS(
    config={
        "name": "bench",
        "system_database_url": url,
        "run_admin_server": False,
        "log_level": "ERROR",
    }
)
clock = harness.Clock()
ended = 0
waiting = 0


@DBOS.step()
async def nothing(number: int) -> int:
    return number


@DBOS.step()
async def second() -> None:
    await harness.second_step(scenario == "recovery-go")


@DBOS.workflow()
async def steps(many: int) -> None:
    global ended
    for number in range(many):
        await nothing(number)
    ended += 1


@DBOS.workflow()
async def timed(many: int) -> None:
    for number in range(many):
        with clock:
            await nothing(number)


@DBOS.workflow()
async def signalled() -> None:
    await DBOS.recv_async("go", timeout_seconds=600)
    clock.stop()


@DBOS.workflow()
async def sleeps() -> None:
    global waiting
    waiting += 1
    await DBOS.sleep_async(86_400)


@DBOS.workflow()
async def in_flight() -> None:
    global ended
    await nothing(1)
    await second()
    ended += 1


async def until_ended(many: int) -> None:
    while ended < many:  # noqa: ASYNC110 - workflows run in loops of their own
        await asyncio.sleep(0.001)


async def many_steps() -> None:
    with harness.Timing(count * 10):
        for _ in range(count):
            await DBOS.start_workflow_async(steps, 10)
        await until_ended(count)


async def one_step() -> None:
    await timed(count)
    clock.report()


async def whole() -> None:
    for _ in range(count):
        with clock:
            await steps(1)
    clock.report()


async def signals() -> None:
    for number in range(count):
        with SetWorkflowID(f"s{number}-{time.time_ns()}"):
            handle = await DBOS.start_workflow_async(signalled)
        await asyncio.sleep(0.05)  # until it waits; there is no notification
        clock.start()
        await DBOS.send_async(handle.workflow_id, "go", topic="go")
        await handle.get_result()
    clock.report()


async def sleepers() -> None:
    for _ in range(count):
        await DBOS.start_workflow_async(sleeps)
    while waiting < count:  # noqa: ASYNC110 - the same
        await asyncio.sleep(0.1)
    harness.ready_to_be_weighed()


async def recovery_begin() -> None:
    for _ in range(count):
        await DBOS.start_workflow_async(in_flight)
    await harness.all_in_second_step(count)


async def recovery_go() -> None:
    await until_ended(count)
    harness.say(done=True)


SCENARIOS = {
    "steps": many_steps,
    "step": one_step,
    "whole": whole,
    "signal": signals,
    "sleepers": sleepers,
    "recovery-begin": recovery_begin,
    "recovery-go": recovery_go,
}


async def main() -> None:
    DBOS.launch()
    await SCENARIOS[scenario]()
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
