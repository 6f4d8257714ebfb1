"""procrastinate on PostgreSQL; handlers are coroutines.  The database is that of BENCH_POSTGRES."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from harness import BATCH, CONCURRENCY, DATA, main
from procrastinate import App, PsycopgConnector

URL = os.environ["BENCH_POSTGRES"]


class Procrastinate:
    def __init__(self, port: int) -> None:
        self._app = App(connector=PsycopgConnector(conninfo=URL))
        self._started: Callable[[float], object] = lambda sent: None
        self._runner: asyncio.Runner | None = None

        @self._app.task(name="noop", queue="bench")  # type: ignore[untyped-decorator]
        async def noop(sent: float = 0.0, **data: object) -> None:
            self._started(sent)

        self._noop = noop

    def single(self, jobs: int) -> None:
        async def add() -> None:
            async with self._app.open_async():
                for _ in range(jobs):
                    await self._noop.defer_async(**DATA)

        asyncio.run(add())

    def bulk(self, jobs: int) -> None:
        async def add() -> None:
            async with self._app.open_async():
                for start in range(0, jobs, BATCH):
                    await self._noop.batch_defer_async(*[DATA] * min(BATCH, jobs - start))

        asyncio.run(add())

    def add(self, sent: float) -> None:
        if self._runner is None:
            self._runner = asyncio.Runner()
            self._runner.run(self._app.open_async().__aenter__())
        self._runner.run(self._noop.defer_async(sent=sent))

    def serve(self, started: Callable[[float], object]) -> None:
        self._started = started

        async def work() -> None:
            async with self._app.open_async():
                await self._app.run_worker_async(
                    queues=["bench"], concurrency=CONCURRENCY, delete_jobs="always"
                )

        asyncio.run(work())


if __name__ == "__main__":
    main(Procrastinate)
