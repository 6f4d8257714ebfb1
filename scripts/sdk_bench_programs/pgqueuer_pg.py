"""PgQueuer on PostgreSQL with asyncpg; handlers are coroutines.  The database is that of BENCH_POSTGRES."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

import asyncpg
from harness import BATCH, CONCURRENCY, DATA, main
from pgqueuer import AsyncpgDriver, PgQueuer, Queries

URL = os.environ["BENCH_POSTGRES"]
PAYLOAD = json.dumps(DATA).encode()


class Pgqueuer:
    def __init__(self, port: int) -> None:
        self._runner: asyncio.Runner | None = None
        self._queries: Any = None

    def single(self, jobs: int) -> None:
        async def add() -> None:
            connection = await asyncpg.connect(URL)
            queries = Queries(AsyncpgDriver(connection))
            for _ in range(jobs):
                await queries.enqueue("noop", PAYLOAD)
            await connection.close()

        asyncio.run(add())

    def bulk(self, jobs: int) -> None:
        async def add() -> None:
            connection = await asyncpg.connect(URL)
            queries = Queries(AsyncpgDriver(connection))
            for start in range(0, jobs, BATCH):
                count = min(BATCH, jobs - start)
                await queries.enqueue(["noop"] * count, [PAYLOAD] * count, [0] * count)
            await connection.close()

        asyncio.run(add())

    def add(self, sent: float) -> None:
        if self._runner is None:
            self._runner = asyncio.Runner()
            connection = self._runner.run(asyncpg.connect(URL))
            self._queries = Queries(AsyncpgDriver(connection))
        self._runner.run(self._queries.enqueue("noop", json.dumps({"sent": sent}).encode()))

    def serve(self, started: Callable[[float], object]) -> None:
        async def work() -> None:
            queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

            @queue.entrypoint("noop")  # type: ignore[untyped-decorator]
            async def noop(job: Any) -> None:
                started(json.loads(job.payload).get("sent", 0.0))

            await queue.run(batch_size=CONCURRENCY, max_concurrent_tasks=2 * CONCURRENCY)

        asyncio.run(work())


if __name__ == "__main__":
    main(Pgqueuer)
