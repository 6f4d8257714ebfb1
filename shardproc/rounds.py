"""What connections have queued at a shard: turn by turn, so that none of them waits for all that another one
has sent.

The order of what one connection has sent stays.  Commands that the router asks several shards for a
connection are in that connection's turn (`link.ASKER`).
"""

from __future__ import annotations

from collections import deque
from time import monotonic

from bunqueue.pace import LATELY_S

MANY = 1000  # connections of which it is known for longer than needed that they had much queued


class Waiting:
    """An envelope that waits: all of it, or the commands that are left of it."""

    __slots__ = ("body", "conn", "kind", "payloads")

    def __init__(self, conn: int, kind: int, body: bytes = b"", payloads: deque[bytes] | None = None) -> None:
        self.conn = conn  # or the ticket
        self.kind = kind
        self.body = body
        self.payloads = payloads


class Rounds:
    """The queues of all connections; whose turn it is stands first."""

    __slots__ = ("lately", "queues")

    def __init__(self) -> None:
        # Public, because they are looked at for each envelope.
        self.queues: dict[int, deque[Waiting]] = {}
        self.lately: dict[int, float] = {}  # when they had more than one slice's work, the latest last

    def __bool__(self) -> bool:
        return bool(self.queues)

    def is_busy(self, turn: int) -> bool:
        """Whether one of ``lately`` had much to do just now.  What it sends is part of that, and queued too:
        nobody waits for just that one command."""
        if monotonic() - self.lately[turn] < LATELY_S:
            return True
        self._forget()
        return False

    def _forget(self) -> None:
        """Those that have had little since."""
        late = monotonic() - LATELY_S
        for turn, at in list(self.lately.items()):
            if at > late:
                break
            del self.lately[turn]

    def note(self, turn: int) -> None:
        """It has more than one slice's work."""
        self.lately.pop(turn, None)
        self.lately[turn] = monotonic()
        if len(self.lately) > 2 * len(self.queues) + MANY:
            self._forget()

    def add(self, turn: int, waiting: Waiting) -> None:
        """Behind what the connection has queued."""
        queue = self.queues.get(turn)
        if queue is None:
            self.queues[turn] = deque((waiting,))
            if waiting.payloads is not None:
                self.note(turn)
        else:
            queue.append(waiting)

    def next(self) -> tuple[int, deque[Waiting]]:
        """The connection whose turn it is, and what it has queued: take from there, then call `done`."""
        return next(iter(self.queues.items()))

    def done(self, turn: int) -> None:
        """The next turn of the connection comes after all others'."""
        queue = self.queues.pop(turn)
        if queue:
            self.queues[turn] = queue
            self.note(turn)
