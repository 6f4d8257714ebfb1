"""An embedded file outlives its process: nothing that was acknowledged is lost, however the process ends."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.file_rules import check_file
from support.waiting import PATIENCE_S

from bunqueue import Queue

PROGRAM = """
import asyncio, sys, threading
from bunqueue import Queue, Worker

path = sys.argv[1]

async def work(job):
    await asyncio.sleep(0.002)  # so that some jobs run when it is killed
    return job.data

def tell(*words):  # in one write: lines of several threads
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

def add():
    with Queue("q", embedded=True, data_path=path) as queue:
        for number in range(100_000):
            tell("added", queue.add("n", number).id, number)

threading.Thread(target=add, daemon=True).start()
Worker(
    "q", work, embedded=True, data_path=path, concurrency=5,
    on_completed=lambda job, result: tell("completed", job.id, result),
).run_forever()
tell("stopped")
"""


class Acknowledged:
    """What the process has said before its end, over all of its lives."""

    def __init__(self) -> None:
        self.added: dict[str, int] = {}
        self.completed: dict[str, int] = {}
        self.stopped = False

    def hear(self, output: str) -> None:
        for line in output.splitlines(keepends=True):
            words = line.split()
            if not line.endswith("\n"):  # cut off by the kill
                continue
            if words == ["stopped"]:
                self.stopped = True
                continue
            kind, job_id, number = words
            (self.added if kind == "added" else self.completed)[job_id] = int(number)


def live(path: Path, acknowledged: Acknowledged, seconds: float, end: signal.Signals) -> int:
    """One life of the process; its exit status."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        first = [run.stdout.readline()]
        while first[-1] and not first[-1].startswith("completed"):
            first.append(run.stdout.readline())
        time.sleep(seconds)  # the instant is what is tried
        run.send_signal(end)
        rest, _ = run.communicate(timeout=PATIENCE_S)
        acknowledged.hear("".join(first) + rest)
        return run.returncode


def check(path: Path, acknowledged: Acknowledged) -> None:
    with Queue("q", embedded=True, data_path=path) as queue:
        for job_id, number in acknowledged.added.items():
            state = queue.get_state(job_id)
            assert state in ("waiting", "completed"), (job_id, state)
            assert queue.get_job(job_id).data == number  # type: ignore[union-attr]
        for job_id, number in acknowledged.completed.items():
            assert (queue.get_state(job_id), queue.get_result(job_id)) == ("completed", number)
        counts = queue.counts()
        assert (counts.active, counts.failed) == (0, 0)
        assert counts.waiting + counts.completed >= len(acknowledged.added)
    check_file(path)


def test_nothing_acknowledged_is_lost_whenever_the_process_is_killed(tmp_path: Path) -> None:
    rng, acknowledged = random.Random(5), Acknowledged()
    for _ in range(6):
        assert (
            live(tmp_path / "jobs.db", acknowledged, rng.uniform(0, 0.6), signal.SIGKILL) == -signal.SIGKILL
        )
        check(tmp_path / "jobs.db", acknowledged)
    assert acknowledged.added
    assert acknowledged.completed


def test_a_process_that_is_told_to_stop_finishes_what_runs(tmp_path: Path) -> None:
    acknowledged = Acknowledged()
    assert live(tmp_path / "jobs.db", acknowledged, 0.5, signal.SIGTERM) == 0
    assert acknowledged.stopped
    assert acknowledged.completed
    check(tmp_path / "jobs.db", acknowledged)
