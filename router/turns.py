"""Whose turn it is at the router: clients that have asked for more than is done for one at a time.

What a client sends is routed, or answered, as it comes, and so are the answers of several shards merged for
it, for one slice.  Who needs more waits in line, and all in line together have one slice in a turn of the
event loop; all others are heard in each.  So whoever has little to ask waits for one slice, however much
anybody else has sent; `bunqueue.pace` says when the next one begins.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from time import monotonic

from bunqueue.pace import Pace, Slice

SLICE_S = 0.00025  # hundreds of commands to be passed on: more than shards can carry out meanwhile
AT_ONCE_S, WINDOW_S = 0.0005, 0.002  # so much of each window is done for a client that is not in line
TICK_S = 0.002  # the timers of event loops have whole milliseconds, and may ring one too early

Work = Callable[[], None]


class Turns:
    """The line."""

    def __init__(self) -> None:
        self._line: dict[Hashable, deque[Work]] = {}  # whose turn it is stands first
        self._due = False
        self._pace = Pace()
        self._spent: dict[Hashable, float] = {}  # seconds beside the line, since ``_since``
        self._since = 0.0

    @property
    def busy(self) -> bool:
        """Whether anybody waits in line."""
        return bool(self._line)

    def asked(self, client: Hashable) -> None:
        """A client asks something that is not in line."""
        self._pace.asked(client)

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
        """Do something when it is this client's turn: it takes one slice at most where it can be cut."""
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
        if rest := self._pace.rest_s:
            loop.call_later(max(rest, TICK_S), self._next)
        else:
            loop.call_soon(self._next)

    def _next(self) -> None:
        turn = Slice(SLICE_S)
        for _ in range(len(self._line)):  # those that have to wait again come after all others
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
