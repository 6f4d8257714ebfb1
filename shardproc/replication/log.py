"""A shard's log, as the shard uses it: sends the requests of its `Owner` over a link, and takes the answers.

Nothing here blocks or reads a clock, so a simulation can replace PostgreSQL.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from bunqueue.protocol.commands.monitoring import COMMIT_MS

from .owner import Answer, Append, Claim, Done, Entry, Heartbeat, Owner, Request, Uncertain

WEIGHT = 0.1  # weight of the latest round trip in the moving average
PATIENCE_S = 15.0  # for an answer; doubled after each timeout, as a standby may be down for long
MAX_PATIENCE_S = 600.0


class Link(Protocol):
    """Carries requests to the log, one at a time."""

    wants_write: bool

    @property
    def fileno(self) -> int | None:
        """The descriptor to poll; None while there is nothing to wait for."""

    def send(self, request: Request) -> Answer | None:
        """Begin a request; returns its answer, if that comes at once."""

    def receive(self) -> Answer | None:
        """Take what has arrived; returns the answer, once it is whole. Returns `Uncertain` also when nothing
        was asked and the connection has ended."""

    def close(self) -> None:
        """Drop the connection."""


class ShardLog:
    """The log of one shard: claimed, read, and then appended to."""

    def __init__(self, owner: Owner, link: Link) -> None:
        self.owner = owner
        self.link = link
        self._request: Request | None = None  # in flight
        self._sent_at = 0.0
        self._patience_s = PATIENCE_S
        self.round_trip_s = 0.0
        """The moving average of the time until a commit is acknowledged; recent commits count most."""
        self.appended = 0
        """Bytes of records that were acknowledged."""
        self.commits = [0] * (len(COMMIT_MS) + 1)
        """The number of commits that took up to each of COMMIT_MS, and longer."""
        self.commits_s = 0.0
        """The total time of all commits."""
        self.is_protected = True
        """Whether commits waited for a standby at the last check."""

    @property
    def position(self) -> int:
        """The position of the last record that was acknowledged or read."""
        return self.owner.position

    def turn(self, now: float) -> Sequence[Entry]:
        """Take what has arrived, and send the next request; returns records that the shard's file lacks, in
        order.

        ``now``: monotonic, seconds. Raises Fenced and LogDamaged.
        """
        entries: list[Entry] = []
        if self.link.fileno is not None:
            self._take(self.link.receive(), now, entries)
        if self._request is not None and now - self._sent_at > self._patience_s:
            self._give_up(now)
        while self._request is None and (request := self.owner.next_request(now)) is not None:
            self._request, self._sent_at = request, now
            self._take(self.link.send(request), now, entries)
        return entries

    def _take(self, answer: Answer | None, now: float, entries: list[Entry]) -> None:
        if answer is None:
            return
        request, self._request = self._request, None
        if request is None:
            assert isinstance(answer, Uncertain)
            self.owner.lost(answer.why, now)
            return
        position = self.owner.position
        entries += self.owner.answered(answer, now)
        if isinstance(request, Append) and self.owner.position > position:
            self.appended += len(request.body)
        if isinstance(request, Append | Heartbeat | Claim) and isinstance(answer, Done):
            self._patience_s = PATIENCE_S
            if answer.is_protected is not None:
                self.is_protected = answer.is_protected
            took = now - self._sent_at
            self.commits[bisect_left(COMMIT_MS, took * 1000)] += 1
            self.commits_s += took
            self.round_trip_s += (took - self.round_trip_s) * (WEIGHT if self.round_trip_s else 1.0)

    def _give_up(self, now: float) -> None:
        """No answer has come: the server may hang, and another one may be the leader by now.

        The request may still be carried out; every `Uncertain` means that.
        """
        self.link.close()
        self._request = None
        self.owner.lost(f"no answer within {self._patience_s:.0f} s", now)
        self._patience_s = min(2 * self._patience_s, MAX_PATIENCE_S)

    def wait_s(self, now: float) -> float | None:
        """Seconds until `turn` may have something to do on its own; None: an answer has to come first."""
        if self._request is not None:
            return max(0.0, self._sent_at + self._patience_s - now)
        return self.owner.wait_s(now)

    def close(self) -> None:
        self.link.close()
