"""SIGKILLs of workers, shards, routers and whole servers while workflows run: every promise is accounted for.

Workflows are started all the time, until the last kill is over. Each run of a step, each time that a workflow
has gone past it, and each undo is a line in a file. WORKFLOW_KILLS is the number of kills, and KILL_SEED
repeats their choice.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.budget import a_seed, budget
from support.naming import queue_on
from support.server import StartServer, quiet_port
from support.worker_kills import Workers, kill_at_random, persistently

from bunqueue import Bunqueue, JobFailed, ResultTimeout
from bunqueue.client.queue.workflow import AsyncWorkflowHandle

AT_ONCE = 12
STEPS = 6
SIGNALS = 3
PATIENCE = 600_000
"""ms for one workflow, which may lose its worker again and again, and then waits until its lock expires."""

PROGRAM = """
import asyncio, os, sys
from bunqueue import Bunqueue, Flow, Retry, Unrecoverable

URL, LOG, *QUEUES = sys.argv[1:]
app = Bunqueue("flows", url=URL, concurrency=20)
file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(*words):
    os.write(file, (" ".join(map(str, words)) + "\\n").encode())


async def made(name: str, number: int) -> int:
    note("child", name, number)
    return number * 10


parts = [app.job(made, queue=queue, name=queue, max_attempts=20) for queue in QUEUES]  # of both shards


@app.workflow(max_attempts=20)
async def works(flow: Flow, name: str, steps: int, signals: int, fails: bool) -> list:
    found = []

    async def work(number: int) -> int:
        note("ran", name, number)
        await asyncio.sleep(0.01)  # so that kills meet steps
        return number

    async def undo(number: int) -> None:
        note("undone", name, number)

    for number in range(steps):
        back, retry = undo if number % 2 else None, Retry(10, max_attempts=20)
        found.append(await flow.step(f"work-{number}", work, number, retry=retry, undo=back))
        note("past", name, number)
    await flow.sleep("short", seconds=1.2)
    for _ in range(signals):
        found.append(await flow.wait_for("go"))
    found.append(await flow.wait_for("all", key=name))
    some = [(7, parts[0]), (8, parts[1]), (9, parts[0])]
    results = await flow.gather(*(flow.run(part, name, number) for number, part in some))
    if fails:
        raise Unrecoverable("in the end")
    return [*found, *results]


app.run()
"""


async def result(handle: AsyncWorkflowHandle[Any]) -> Any:
    """What it gives. An error says what it waits for if that does not come."""
    try:
        return await persistently(lambda: handle.result(PATIENCE))
    except ResultTimeout as error:
        error.add_note(f"{await persistently(handle.job)}\n{await persistently(handle.info)}")
        raise


@dataclass
class Load:
    """Workflows, some of them at a time, until `over`."""

    app: Bunqueue
    log: Path
    rng: random.Random
    over: asyncio.Event = field(default_factory=asyncio.Event)
    numbers: count[int] = field(default_factory=count)
    ended: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        await asyncio.gather(*(self._some() for _ in range(AT_ONCE)))

    async def _some(self) -> None:
        while True:
            number = next(self.numbers)
            await self._one(f"w{number}", fails=number % 4 == 3)
            if self.over.is_set():
                return

    async def _one(self, name: str, *, fails: bool) -> None:
        queue = self.app.async_queue
        data = {"name": name, "steps": STEPS, "signals": SIGNALS, "fails": fails}
        options: Any = {"job_id": name, "workflow": True, "max_attempts": 20, "backoff": 100}
        await persistently(lambda: queue.add("works", data, **options))
        handle = queue.workflow(name)
        await self._signal(name)
        if fails:
            with pytest.raises(JobFailed, match="in the end"):
                await result(handle)
        else:
            expected = [*range(STEPS), *range(100, 100 + SIGNALS), "everybody", 70, 80, 90]
            assert await result(handle) == expected
        steps = await persistently(handle.history)
        undone = [step.name for step in steps if step.kind == "undo"]
        assert len({step.name for step in steps}) == len(steps) == STEPS + 1 + SIGNALS + 1 + 3 + len(undone)
        assert undone == ([f"undo:work-{number}" for number in reversed(range(1, STEPS, 2))] if fails else [])
        assert (await persistently(handle.info)).signals == []
        self.ended["failed" if fails else "completed"] += 1

    async def _signal(self, name: str) -> None:
        """Some come while the workflow waits, others before."""
        handle, admin = self.app.async_queue.workflow(name), self.app.async_admin
        first = self.rng.random() < 0.5
        if first:
            await persistently(lambda: admin.broadcast("all", name, "everybody"))
        for number in range(SIGNALS):
            await asyncio.sleep(self.rng.uniform(0, 1))  # so that they come at all times
            sent = f"{name}-{number}"
            await persistently(lambda n=number, i=sent: handle.signal("go", 100 + n, signal_id=i))  # type: ignore[misc]
        if not first:
            await persistently(lambda: admin.broadcast("all", name, "everybody"))


def broken(log: Path) -> list[str]:
    """What ran again although it was recorded, and what was undone that had not run, or too late."""
    past: set[tuple[str, ...]] = set()
    lowest: dict[str, int] = {}
    problems = []
    for line in log.read_text().splitlines():
        what, *step = line.split()
        if what == "past":
            past.add(tuple(step))
        elif what == "ran" and tuple(step) in past:
            problems.append(f"step {step} ran again although it was recorded")
        elif what == "undone":
            name, number = step[0], int(step[1])
            if tuple(step) not in past or number > lowest.get(name, number):
                problems.append(f"step {step} was undone out of turn")
            lowest[name] = number
    return problems


async def test_no_kill_repeats_a_recorded_step_or_loses_a_signal(
    make_server: StartServer, tmp_path: Path
) -> None:
    kills = budget(3, 100)
    seed = a_seed()
    server = make_server("--log-level", "warning", port=quiet_port())
    await asyncio.to_thread(server.start)
    program, log = tmp_path / "works.py", tmp_path / "log"
    program.write_text(PROGRAM)
    log.touch()
    url = f"bunqueue://{server.host}:{server.port}"
    workers = Workers(program, url, log, *[queue_on(shard, "parts") for shard in range(2)])
    app = Bunqueue("flows", url=url)
    workers.start()
    rng = random.Random(seed)
    load = Load(app, log, random.Random(f"{seed}/load"))
    running = asyncio.create_task(load.run())
    try:
        killing = asyncio.create_task(kill_at_random(server, workers, log, kills, rng))
        await asyncio.wait([killing, running], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            load.over.set()
            print(f"seed {seed}: {dict(await killing)}")
        await running
        print(f"{dict(load.ended)}")
        assert broken(log) == [], seed
        assert load.ended.total() >= AT_ONCE
    finally:
        running.cancel()
        workers.kill()
        await app.close_async()


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("ran a 1\npast a 1\nran b 1\nran a 1\n", "step ['a', '1'] ran again although it was recorded"),
        ("past a 1\npast a 3\nundone a 1\nundone a 3\n", "step ['a', '3'] was undone out of turn"),
        ("ran a 1\nundone a 1\n", "step ['a', '1'] was undone out of turn"),
    ],
)
def test_the_check_sees_what_must_not_be(tmp_path: Path, lines: str, problem: str) -> None:
    log = tmp_path / "log"
    log.write_text(lines)
    assert broken(log) == [problem]
