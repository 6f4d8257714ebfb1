"""Finished jobs for `spark_bench.py`: made by a real server, as fast as one client can drive it.

24 queues, four job names, eight workers; two in a hundred jobs fail for good at once, and two are retried.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from large_test import Client, Server

QUEUES = [f"bench-{number:02d}" for number in range(24)]
NAMES = ("resize", "send", "charge", "index")
ERRORS = ("TimeoutError: no answer in 30 s", "ConnectionError: refused", "ValueError: not a number")
WORKERS = 8
ROUND = 96_000  # jobs that are pushed before they are processed
BATCH = 1000
FAIL_EVERY, RETRY_EVERY = 50, 50
LAST_RETRIES_S = 10.0  # the first retry comes after one second


class History:
    """Pushes and processes jobs, and counts its progress."""

    def __init__(self, client: Client, jobs: int) -> None:
        self._client = client
        self._jobs = jobs
        self._pulls = 0
        self.done = 0

    async def make(self) -> None:
        pushed = 0
        while pushed < self._jobs:
            size = min(ROUND, self._jobs - pushed)
            await self._push(pushed, size)
            pushed += size
            await self._work_off()
            self._tell()
        deadline = time.monotonic() + LAST_RETRIES_S
        while self.done < self._jobs and time.monotonic() < deadline:
            await self._work_off()
            await asyncio.sleep(0.1)
        if self.done != self._jobs:
            sys.exit(f"{self.done} of {self._jobs} jobs are finished: the server keeps the others waiting")

    async def _push(self, first: int, size: int) -> None:
        share = -(-size // len(QUEUES))
        commands: list[dict[str, Any]] = []
        for place, queue in enumerate(QUEUES):
            numbers = range(first + place * share, first + min(size, (place + 1) * share))
            jobs = [
                {"name": NAMES[number % len(NAMES)], "data": {"number": number, "text": "x" * 60}}
                for number in numbers
            ]
            commands += [
                {"cmd": "PUSHB", "queue": queue, "jobs": jobs[start : start + BATCH]}
                for start in range(0, len(jobs), BATCH)
            ]
        await self._client.ask_all(commands)

    async def _work_off(self) -> None:
        for queue in QUEUES:
            while True:
                self._pulls += 1
                owner = f"worker-{self._pulls % WORKERS}"
                reply = await self._client.ask("PULLB", queue=queue, count=BATCH, owner=owner)
                if not reply["jobs"]:
                    break
                await self._finish(reply["jobs"], reply["tokens"])

    async def _finish(self, jobs: list[dict[str, Any]], tokens: list[str]) -> None:
        """Complete most of these jobs, and fail some."""
        commands: list[dict[str, Any]] = []
        ids, held = [], []
        for place, (job, token) in enumerate(zip(jobs, tokens, strict=True)):
            error = ERRORS[place % len(ERRORS)]
            fail: dict[str, Any] = {"cmd": "FAIL", "id": job["id"], "token": token, "error": error}
            if place % FAIL_EVERY == 7:
                commands.append({**fail, "unrecoverable": True})
                self.done += 1
            elif place % RETRY_EVERY == 11 and not job["attempts"]:
                commands.append(fail)
            else:
                ids.append(job["id"])
                held.append(token)
        commands.append({"cmd": "ACKB", "ids": ids, "tokens": held})
        self.done += len(ids)
        await self._client.ask_all(commands)

    def _tell(self) -> None:
        if sys.stderr.isatty():
            print(f"\r{self.done:,} of {self._jobs:,} jobs finished ", end="", file=sys.stderr, flush=True)


async def _make(port: int, jobs: int) -> None:
    await History(await Client.connect(port), jobs).make()


def make_history(server: Server, jobs: int) -> float:
    """Finish this many jobs on a running server; returns the seconds it took."""
    begin = time.perf_counter()
    asyncio.run(_make(server.port, jobs))
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    return time.perf_counter() - begin
