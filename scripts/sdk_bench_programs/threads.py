"""Adds many jobs from several threads at once, for libraries without a bulk call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

THREADS = 8


def from_threads(add: Callable[[], object], jobs: int) -> None:
    def some(count: int) -> None:
        for _ in range(count):
            add()

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(some, [jobs // THREADS + (n < jobs % THREADS) for n in range(THREADS)]))
