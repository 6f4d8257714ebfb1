"""huey on Redis; handlers run in threads."""

from __future__ import annotations

from collections.abc import Callable

from harness import CONCURRENCY, DATA, main
from huey import RedisHuey
from threads import from_threads


class Huey:
    def __init__(self, port: int) -> None:
        self._huey = RedisHuey("bench", port=port)
        self._started: Callable[[float], object] = print

        @self._huey.task()
        def noop(data):  # type: ignore[no-untyped-def]  # huey has no types
            self._started(data.get("sent", 0.0))

        self._noop = noop

    def single(self, jobs: int) -> None:
        for _ in range(jobs):
            self._noop(DATA)

    def bulk(self, jobs: int) -> None:
        from_threads(lambda: self._noop(DATA), jobs)

    def add(self, sent: float) -> None:
        self._noop({"sent": sent})

    def serve(self, started: Callable[[float], object]) -> None:
        self._started = started
        self._huey.create_consumer(workers=CONCURRENCY, worker_type="thread").run()


if __name__ == "__main__":
    main(Huey)
