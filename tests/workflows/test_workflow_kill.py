"""SIGKILLs of workers, shards and whole servers while workflows run, and every promise accounted for.

Each run of a step, and each time that the workflow has gone past it, is a line in a file. KILLS is the number
of kills.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import subprocess
import sys
from pathlib import Path

from support.server import Server, StartServer, quiet_port

from bunqueue import AsyncWorkflowHandle, Bunqueue

WORKFLOWS = 12
STEPS = 6
SIGNALS = 3
PATIENCE = 120_000

PROGRAM = """
import asyncio, os, sys
from bunqueue import Bunqueue, Flow, Retry

URL, LOG = sys.argv[1:]
app = Bunqueue("flows", url=URL, concurrency=20)
file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(*words):
    os.write(file, (" ".join(map(str, words)) + "\\n").encode())


@app.job(queue="parts", max_attempts=20)
async def part(name: str, number: int) -> int:
    note("child", name, number)
    return number * 10


@app.workflow(max_attempts=20)
async def works(flow: Flow, name: str, steps: int, signals: int) -> list:
    found = []

    async def work(number: int) -> int:
        note("ran", name, number)
        await asyncio.sleep(0.01)  # so that kills meet steps
        return number

    for number in range(steps):
        found.append(await flow.step(f"work-{number}", work, number, retry=Retry(10, max_attempts=20)))
        note("past", name, number)
    await flow.sleep("short", seconds=1.2)
    for _ in range(signals):
        found.append(await flow.wait_for("go"))
    parts = await flow.gather(*(flow.run(part, name, number) for number in (7, 8, 9)))
    return [*found, *parts]


app.run()
"""


class Workers:
    """One process that works the app, whoever kills it."""

    def __init__(self, program: Path, url: str, log: Path) -> None:
        self._command = [sys.executable, str(program), url, str(log)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


async def kill_at_random(server: Server, workers: Workers, kills: int, rng: random.Random) -> list[str]:
    diary = []
    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0.1, 1.0))  # the pace of the kills
        kind = rng.choice(["worker", "worker", "worker", "shard", "all"])
        diary.append(kind)
        if kind == "worker":
            workers.kill()
            workers.start()
        elif kind == "shard":
            await asyncio.to_thread(server.kill_shards, rng.randrange(2))
        else:
            await asyncio.to_thread(server.kill_all)
            await asyncio.to_thread(server.restart)
    return diary


async def signal_all(handles: list[AsyncWorkflowHandle[list[int]]]) -> None:
    for number in range(SIGNALS):
        for handle in handles:
            await handle.signal("go", 100 + number)
        await asyncio.sleep(0.3)  # some come while the workflow waits, others before


def broken(log: Path) -> list[str]:
    """Steps that ran again after the workflow had gone past them."""
    past: set[tuple[str, ...]] = set()
    problems = []
    for line in log.read_text().splitlines():
        what, *step = line.split()
        if what == "past":
            past.add(tuple(step))
        elif what == "ran" and tuple(step) in past:
            problems.append(f"step {step} ran again although it was recorded")
    return problems


async def test_no_kill_repeats_a_recorded_step_or_loses_a_signal(
    make_server: StartServer, tmp_path: Path
) -> None:
    kills = int(os.environ.get("KILLS", "6"))
    seed = os.environ.get("KILL_SEED") or secrets.token_hex(4)
    server = make_server("--log-level", "warning", port=quiet_port())
    await asyncio.to_thread(server.start)
    program, log = tmp_path / "works.py", tmp_path / "log"
    program.write_text(PROGRAM)
    url = f"bunqueue://{server.host}:{server.port}"
    workers = Workers(program, url, log)
    app = Bunqueue("flows", url=url)
    workers.start()
    try:
        queue = app.async_queue
        names = [f"w{number}" for number in range(WORKFLOWS)]
        handles = []
        for name in names:
            added = await queue.add(
                "works",
                {"name": name, "steps": STEPS, "signals": SIGNALS},
                job_id=name,
                workflow=True,
                max_attempts=20,
                backoff=100,
            )
            handles.append(queue.workflow(added.id))
        rng = random.Random(seed)
        diary, _ = await asyncio.gather(kill_at_random(server, workers, kills, rng), signal_all(handles))
        signals = [100 + number for number in range(SIGNALS)]
        expected = [*range(STEPS), *signals, 70, 80, 90]
        for handle in handles:
            assert await handle.result(PATIENCE) == expected, (seed, diary)
            steps = await handle.history()
            assert len({step.name for step in steps}) == len(steps) == STEPS + 1 + SIGNALS + 3
            assert (await handle.info()).signals == []
        assert broken(log) == [], (seed, diary)
    finally:
        workers.kill()
        await app.close_async()


def test_the_check_sees_a_step_that_ran_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ran a 1\npast a 1\nran b 1\nran a 1\n")
    assert broken(log) == ["step ['a', '1'] ran again although it was recorded"]
