"""How long an answer of the store is waited for, where a process would else wait for ever.

A server that hangs keeps its connections, and nothing tells that another one may lead by now.  So a question
that is not answered in time loses its connection, and the next one may find another server.  The time is
doubled whenever it was not enough: what was asked may need longer.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

FIRST_S, LAST_S = 15.0, 600.0


class AnswerTimeout:
    """For the questions of one connection after the other."""

    def __init__(self) -> None:
        self.seconds = FIRST_S

    @contextmanager
    def with_answer_of(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Ask in the block.  If that takes longer, the connection ends, with psycopg's OperationalError."""
        begun = time.monotonic()
        timer = threading.Timer(self.seconds, _hang_up, (connection,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self.took(time.monotonic() - begun)

    def took(self, seconds: float) -> None:
        """An answer came after so long, or did not."""
        self.seconds = FIRST_S if seconds < self.seconds else min(2 * self.seconds, LAST_S)


def _hang_up(connection: psycopg.Connection[Any]) -> None:
    """End it under the hands of the thread that waits for its answer."""
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)
