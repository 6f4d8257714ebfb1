"""How many answers the router itself gives in one turn of its event loop, to all clients together.

An answer of its own costs as much as passing on ten commands.  Without a bound, one client that asks for
thousands would have all others wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .connection import ClientConnection

ANSWERS = 32  # in a turn: less than a millisecond
EACH = 8  # for one client; then others have their turn


class Turns:
    """The clients answered in this turn, and those that wait for the next one."""

    def __init__(self) -> None:
        self._left = ANSWERS
        self._waiting: deque[ClientConnection] = deque()
        self._due = False

    @property
    def most(self) -> int:
        """How many answers one client may have now."""
        return min(EACH, self._left)

    def answered(self, count: int) -> None:
        """So many answers were given."""
        self._left -= count
        self._call()

    def wait(self, client: ClientConnection) -> None:
        """Call `ClientConnection.release` when it is its turn."""
        self._waiting.append(client)
        self._call()

    def _call(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._due, self._left = False, ANSWERS
        for _ in range(len(self._waiting)):  # those that have to wait again come after all others
            if self._left <= 0:
                break
            self._waiting.popleft().release()
        if self._waiting:
            self._call()
