"""A timeout for answers of the store, where a process would otherwise wait for ever.

A server that hangs keeps its connections, and nothing shows that another server may have become the primary.
So when a query is not answered in time, its connection is closed, and the next connection may reach another
server.  The timeout is doubled each time it expires, because the query may need longer.
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
    """The timeout for queries on successive connections."""

    def __init__(self) -> None:
        self.seconds = FIRST_S

    @contextmanager
    def with_answer_of(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Run a query in the block.  If it takes longer than the timeout, the connection is closed, and the
        query raises psycopg's OperationalError."""
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
        """Adapt the timeout: a query has taken this long, answered or not."""
        self.seconds = FIRST_S if seconds < self.seconds else min(2 * self.seconds, LAST_S)


def _hang_up(connection: psycopg.Connection[Any]) -> None:
    """Close the connection while another thread waits on it for an answer."""
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)
