"""This project's blocking client, and its worker."""

from __future__ import annotations

from collections.abc import Callable

from harness import BATCH, CONCURRENCY, DATA, main

from bunqueue import ActiveJob, Queue, Worker


class Ours:
    def __init__(self, port: int) -> None:
        self._port = port
        self._queue = Queue("bench", port=port)

    def single(self, jobs: int) -> None:
        for _ in range(jobs):
            self._queue.add("noop", DATA)

    def bulk(self, jobs: int) -> None:
        for start in range(0, jobs, BATCH):
            self._queue.add_bulk([("noop", DATA)] * min(BATCH, jobs - start))

    def add(self, sent: float) -> None:
        self._queue.add("noop", {"sent": sent})

    def serve(self, started: Callable[[float], object]) -> None:
        async def handler(job: ActiveJob) -> None:
            started(job.data.get("sent", 0.0))

        Worker("bench", handler, concurrency=CONCURRENCY, port=self._port).run_forever()


if __name__ == "__main__":
    main(Ours)
