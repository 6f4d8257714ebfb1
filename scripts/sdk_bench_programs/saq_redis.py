"""SAQ on Redis; handlers are coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from harness import CONCURRENCY, DATA, main
from saq import Queue, Worker

AT_ONCE = 100  # adds in flight: SAQ has no bulk call that does not wait for results


class Saq:
    def __init__(self, port: int) -> None:
        self._url = f"redis://127.0.0.1:{port}"
        self._adding: asyncio.Runner | None = None
        self._queue: Any = None

    def single(self, jobs: int) -> None:
        async def add() -> None:
            queue = Queue.from_url(self._url)
            for _ in range(jobs):
                await queue.enqueue("noop", data=DATA)
            await queue.disconnect()

        asyncio.run(add())

    def bulk(self, jobs: int) -> None:
        async def add() -> None:
            queue = Queue.from_url(self._url)
            for start in range(0, jobs, AT_ONCE):
                count = min(AT_ONCE, jobs - start)
                await asyncio.gather(*[queue.enqueue("noop", data=DATA) for _ in range(count)])
            await queue.disconnect()

        asyncio.run(add())

    def add(self, sent: float) -> None:
        if self._adding is None:
            self._adding = asyncio.Runner()
            self._queue = Queue.from_url(self._url)
        self._adding.run(self._queue.enqueue("noop", data={"sent": sent}))

    def serve(self, started: Callable[[float], object]) -> None:
        async def noop(_: object, *, data: dict[str, Any]) -> None:
            started(data.get("sent", 0.0))

        async def work() -> None:
            worker = Worker(Queue.from_url(self._url), [("noop", noop)], concurrency=CONCURRENCY)
            await worker.start()

        asyncio.run(work())


if __name__ == "__main__":
    main(Saq)
