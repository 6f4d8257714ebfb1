"""Fair shares of the router's time among clients with more work than is done for one client at a time.

A client's commands are routed, or answered, as they arrive, and answers of several shards are merged for it,
up to one slice. A client that needs more waits in line. All clients in line together get one slice per turn
of the event loop; all others are served in each turn. So a client with little to ask waits for one slice at
most, however much others have sent; `bunqueue.server.host.pace` decides when the next slice begins.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from time import monotonic

from bunqueue.server.host.pace import Pace, Slice

SLICE_S = 0.00025  # hundreds of routed commands: more than the shards can carry out in that time
AT_ONCE_S, WINDOW_S = 0.0005, 0.002  # the part of each window that a client gets without waiting in line
TICK_S = 0.002  # timers of event loops have whole milliseconds, and may fire one too early

Work = Callable[[], None]


class Turns:
    """The line."""

    def __init__(self) -> None:
        self._line: dict[Hashable, deque[Work]] = {}  # the next client comes first
        self._due = False
        self._pace = Pace()
        self.asked = self._pace.asked
        """A client sends a command outside the line."""
        self._spent: dict[Hashable, float] = {}  # seconds outside the line, since ``_since``
        self._since = 0.0

    @property
    def busy(self) -> bool:
        """Whether any client waits in line."""
        return bool(self._line)

    def begin(self, client: Hashable, work: Work) -> None:
        """Do something for a client: now, unless it had much done just now, or waits in line already."""
        if client in self._line:
            self.wait(client, work)
            return
        if monotonic() - self._since > WINDOW_S:
            self._spent.clear()
            self._since = monotonic()
        spent = self._spent.get(client, 0.0)
        if spent >= AT_ONCE_S:
            self.wait(client, work)
            return
        turn = Slice()
        work()
        self._spent[client] = spent = spent + turn.worked_s
        if spent >= AT_ONCE_S:
            self._since = monotonic()
            self._pace.worked(turn, client)

    def wait(self, client: Hashable, work: Work) -> None:
        """Do something when it is this client's turn: it takes one slice at most if it can be divided."""
        works = self._line.get(client)
        if works is None:
            self._line[client] = deque((work,))
        else:
            works.append(work)
        if not self._due:
            self._due = True
            self._call()

    def _call(self) -> None:
        loop = asyncio.get_running_loop()
        if rest := self._pace.pause_s:
            loop.call_later(max(rest, TICK_S), self._next)
        else:
            loop.call_soon(self._next)

    def _next(self) -> None:
        turn = Slice(SLICE_S)
        for _ in range(len(self._line)):  # clients that have to wait again come after all others
            client, works = next(iter(self._line.items()))
            del self._line[client]
            work = works.popleft()
            if works:
                self._line[client] = works
            work()
            if turn.is_over:
                self._pace.worked(turn, client)
                break
        self._due = bool(self._line)
        if self._due:
            self._call()
