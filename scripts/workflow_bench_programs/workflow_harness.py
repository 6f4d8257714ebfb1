"""Shared code of the benchmark programs: clocks, and the messages to `workflow_bench.py`.

Each answer is a line of JSON on standard output.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from types import TracebackType


def say(**found: object) -> None:
    print(json.dumps(found), flush=True)


class Clock:
    """Collects times in milliseconds."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._began = 0.0

    def start(self) -> None:
        self._began = time.perf_counter()

    def stop(self) -> None:
        self._times.append((time.perf_counter() - self._began) * 1000)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def report(self) -> None:
        times = sorted(self._times)
        last = len(times) - 1
        say(p50=times[round(last * 0.5)], p99=times[round(last * 0.99)])


class Timing:
    """A number of things, and their rate per second."""

    def __init__(self, many: int) -> None:
        self._many = many

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: object, where: TracebackType | None) -> None:
        if kind is None:
            say(per_second=self._many / (time.perf_counter() - self._began))


# -- what is in flight when the process is killed

begun = 0


async def second_step(goes_on: bool) -> None:
    """Ends at once, but only after the restart."""
    global begun
    begun += 1
    if not goes_on:
        await asyncio.Event().wait()


async def all_in_second_step(many: int) -> None:
    while begun < many:  # noqa: ASYNC110 - steps may run in other loops
        await asyncio.sleep(0.01)
    say(ready=True)
    await asyncio.Event().wait()


def ready_to_be_weighed() -> None:
    """Wait until `workflow_bench.py` has measured the memory."""
    say(ready=True)
    sys.stdin.readline()
