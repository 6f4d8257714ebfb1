"""A worker process of `worker_pool`: does what the jobs say, and notes each run before it begins.

Called with a JSON object: queue, file of the runs, and the worker's options.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from bunqueue import ActiveJob, Worker


class Odd(BaseException):
    """Nobody catches this by accident, and it does not say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


RAISED: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        ValueError,
        Odd,
        BaseException,
        ExceptionGroup,
        StopIteration,
        StopAsyncIteration,
        GeneratorExit,
        asyncio.CancelledError,
        RecursionError,
        MemoryError,
        KeyboardInterrupt,
        SystemExit,
    )
}


async def handler(job: ActiveJob) -> int:
    """`sleep`, `block` the loop, `spin` in Python code, all for seconds; `raise` in the first attempt."""
    os.write(RUNS, f"{job.id} {os.getpid()}\n".encode())
    if job.name == "sleep":
        await asyncio.sleep(job.data)  # how long the job runs
    elif job.name == "block":
        time.sleep(job.data)  # noqa: ASYNC251  # the very thing that must not cost the job
    elif job.name == "spin":
        end = time.monotonic() + job.data
        while time.monotonic() < end:
            pass
    elif job.name == "raise" and not job.attempts:
        await asyncio.sleep(0)
        kind = RAISED[job.data]
        raise kind("several", [ValueError()]) if kind is ExceptionGroup else kind
    return os.getpid()


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    RUNS = os.open(orders["runs"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    worker = Worker(orders["queue"], handler, **orders["options"])
    try:
        worker.run_forever()
    finally:
        print(json.dumps({"completed": worker.stats.completed, "lost": worker.stats.lost}))
