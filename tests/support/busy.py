"""A server that has something to do while others read its files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bunqueue import Queue

from .naming import queue_on
from .server import Server
from .waiting import PATIENCE_S

BATCH = 50  # jobs that are added in one transaction
PAUSE_S = 0.05  # between them: the cores are Spark's, too
NAME = queue_on(1, "live", 2)


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """Jobs come in all the time, so many in each transaction."""
    over, begun = threading.Event(), threading.Event()

    def work() -> None:
        with Queue(NAME, port=server.port) as queue:
            while not over.wait(PAUSE_S):
                queue.add_bulk([("n", number) for number in range(BATCH)])
                begun.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(PATIENCE_S)
        yield
    finally:
        over.set()
        thread.join()
