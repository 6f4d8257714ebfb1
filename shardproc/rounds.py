"""The commands that connections have queued at a shard, served turn by turn, so no connection waits for
everything that another one has sent.

The order of the commands of one connection is kept. Commands that the router sends to several shards for a
connection are in that connection's turn (`link.ASKER`).
"""

from __future__ import annotations

from collections import deque
from time import monotonic

from bunqueue.model.scope import Scope
from bunqueue.server.host.pace import LATELY_S

MANY = 1000  # connections that may stay in ``lately`` longer than needed


class Waiting:
    """An envelope that waits: all of it, or its remaining commands."""

    __slots__ = ("body", "conn", "kind", "payloads", "scope")

    def __init__(
        self,
        conn: int,
        kind: int,
        body: bytes = b"",
        payloads: deque[bytes] | None = None,
        scope: Scope | None = None,
    ) -> None:
        self.conn = conn  # or the ticket
        self.kind = kind
        self.body = body
        self.payloads = payloads
        self.scope = scope


class Rounds:
    """The queues of all connections; the one with the next turn comes first."""

    __slots__ = ("lately", "queues")

    def __init__(self) -> None:
        # Public, because they are read for each envelope.
        self.queues: dict[int, deque[Waiting]] = {}
        self.lately: dict[int, float] = {}  # when they last had more than one slice's work, most recent last

    def __bool__(self) -> bool:
        return bool(self.queues)

    def is_busy(self, turn: int) -> bool:
        """Whether one of ``lately`` had much to do just now. What it sends is then a part of that work, and
        is queued as well: no client waits for that one command alone."""
        if monotonic() - self.lately[turn] < LATELY_S:
            return True
        self._forget()
        return False

    def _forget(self) -> None:
        """Remove those that have had little to do since."""
        late = monotonic() - LATELY_S
        for turn, at in list(self.lately.items()):
            if at > late:
                break
            del self.lately[turn]

    def note(self, turn: int) -> None:
        """Note that a connection has more than one slice's work."""
        self.lately.pop(turn, None)
        self.lately[turn] = monotonic()
        if len(self.lately) > 2 * len(self.queues) + MANY:
            self._forget()

    def add(self, turn: int, waiting: Waiting) -> None:
        """Add an envelope after what the connection has queued."""
        queue = self.queues.get(turn)
        if queue is None:
            self.queues[turn] = deque((waiting,))
            if waiting.payloads is not None:
                self.note(turn)
        else:
            queue.append(waiting)

    def next(self) -> tuple[int, deque[Waiting]]:
        """The connection with the next turn, and its queue: take from there, then call `done`."""
        return next(iter(self.queues.items()))

    def done(self, turn: int) -> None:
        """Put the connection after all others."""
        queue = self.queues.pop(turn)
        if queue:
            self.queues[turn] = queue
            self.note(turn)
