"""Shared code of the Python benchmark programs: `PROGRAM SCENARIO JOBS PORT` prints one JSON object.

Handlers only count, or, for `latency`, report how long ago their job was sent.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

PAUSE_S = 0.005  # between two jobs of `latency`: the system is idle
CONCURRENCY = 50
BATCH = 1000  # jobs in one call, where there is a call for many
DATA = {"user": 4711, "template": "welcome", "text": "x" * 60}  # about 100 bytes
PATIENCE_S = 120.0


class Program(Protocol):
    """One library. The data of a job of `add` has the time of sending: `sent`, epoch s."""

    def single(self, jobs: int) -> None:
        """Add jobs one at a time: the next when the last is acknowledged."""

    def bulk(self, jobs: int) -> None:
        """Add jobs as fast as the library can."""

    def add(self, sent: float) -> None:
        """Add one job for `serve`."""

    def serve(self, started: Callable[[float], object]) -> None:
        """Run jobs, fifty at a time, for ever; the handler first calls `started`."""


def main(make: Callable[[int], Program]) -> None:
    scenario, jobs, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    program = make(port)
    if scenario in ("single", "bulk"):
        print(json.dumps({"value": _rate(lambda: getattr(program, scenario)(jobs), jobs)}))
    elif scenario == "drain":
        print(json.dumps({"value": _drain(program, jobs)}))
    elif scenario == "latency":
        print(json.dumps({"value": _latency(program, jobs)}))
    elif scenario == "serve":
        program.serve(lambda sent: print((time.time() - sent) * 1000, flush=True))


def _rate(work: Callable[[], None], jobs: int) -> float:
    begun = time.perf_counter()
    work()
    return jobs / (time.perf_counter() - begun)


def _drain(program: Program, jobs: int) -> float:
    """Jobs a second from the start of the first handler to that of the last; all are added before."""
    program.bulk(jobs)
    times: list[float] = []
    all_done = threading.Event()

    def started(sent: float) -> None:
        times.append(time.perf_counter())
        if len(times) == jobs:
            all_done.set()

    # In the main thread, because some libraries require it; what runs there is abandoned at the end.
    threading.Thread(target=_report, args=(all_done, times, jobs), daemon=True).start()
    program.serve(started)
    return 0.0


def _report(all_done: threading.Event, times: list[float], jobs: int) -> None:
    if all_done.wait(PATIENCE_S):
        print(json.dumps({"value": (jobs - 1) / (times[jobs - 1] - times[0])}), flush=True)
    os._exit(not all_done.is_set())


def _latency(program: Program, jobs: int) -> float:
    """The median time in ms from before an add to the start of the handler, in another process."""
    worker = subprocess.Popen(
        [sys.executable, sys.argv[0], "serve", "0", sys.argv[3]], stdout=subprocess.PIPE
    )
    assert worker.stdout is not None
    try:
        found = []
        for _ in range(jobs + 20):
            program.add(time.time())
            found.append(float(worker.stdout.readline()))
            time.sleep(PAUSE_S)
        return statistics.median(found[20:])
    finally:
        worker.kill()
        worker.wait()
