"""dramatiq on Redis; handlers run in threads."""

from __future__ import annotations

import time
from collections.abc import Callable

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from harness import CONCURRENCY, DATA, main
from threads import from_threads


class Dramatiq:
    def __init__(self, port: int) -> None:
        self._broker = RedisBroker(port=port)
        dramatiq.set_broker(self._broker)
        self._started: Callable[[float], object] = print
        self._noop = dramatiq.actor(lambda data: self._started(data.get("sent", 0.0)), actor_name="noop")

    def single(self, jobs: int) -> None:
        for _ in range(jobs):
            self._noop.send(DATA)

    def bulk(self, jobs: int) -> None:
        from_threads(lambda: self._noop.send(DATA), jobs)

    def add(self, sent: float) -> None:
        self._noop.send({"sent": sent})

    def serve(self, started: Callable[[float], object]) -> None:
        self._started = started
        worker = dramatiq.Worker(self._broker, worker_threads=CONCURRENCY)
        worker.start()
        while True:
            time.sleep(60)


if __name__ == "__main__":
    main(Dramatiq)
