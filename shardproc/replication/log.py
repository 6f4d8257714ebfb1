"""A shard's log, as the shard uses it: what its `Owner` wants is sent over a link, and answers come back.

Nothing here blocks and nothing reads a clock, so that a simulation can stand in for PostgreSQL.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from bunqueue.protocol.commands.monitoring import COMMIT_MS

from .owner import Answer, Append, Beat, Claim, Done, Doubt, Entry, Owner, Phase, Request

WEIGHT = 0.1  # of the latest round trip in their mean
PATIENCE_S = (
    15.0  # for an answer; doubled each time that it was not enough, as a standby may be away for long
)
MAX_PATIENCE_S = 600.0


class Link(Protocol):
    """Carries requests to the log, one at a time."""

    wants_write: bool

    @property
    def fileno(self) -> int | None:
        """The descriptor to poll; None while there is nothing to wait for."""

    def send(self, request: Request) -> Answer | None:
        """Begin a request; its answer, if that comes at once."""

    def receive(self) -> Answer | None:
        """Take what has come; the answer, once it is whole.  `Doubt` also when nothing was asked and the
        connection has ended."""

    def close(self) -> None:
        """Drop the connection."""


class ShardLog:
    """The log of one shard: claimed, read, and then appended to."""

    def __init__(self, owner: Owner, link: Link) -> None:
        self.owner = owner
        self.link = link
        self._request: Request | None = None  # under way
        self._sent_at = 0.0
        self._patience_s = PATIENCE_S
        self.round_trip_s = 0.0
        """The mean time until a commit was acknowledged, the latest counting most."""
        self.appended = 0
        """Bytes of records that were acknowledged."""
        self.commits = [0] * (len(COMMIT_MS) + 1)
        """How many took up to each of COMMIT_MS, and longer."""
        self.commits_s = 0.0
        """How long all of them took together."""
        self.is_protected = True
        """Whether a standby was waited for when that was last looked at."""

    @property
    def is_owned(self) -> bool:
        """Whether the shard is ours as far as is known, and its whole log was read."""
        return self.owner.phase is Phase.OWNING

    @property
    def position(self) -> int:
        """That of the last record that is acknowledged, or was read."""
        return self.owner.position

    def turn(self, now: float) -> Sequence[Entry]:
        """Take what has come, and send what is next; records that the shard's file lacks, in order.

        ``now``: monotonic, seconds.  Raises Fenced and LogDamaged.
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
            assert isinstance(answer, Doubt)
            self.owner.lost(answer.why, now)
            return
        position = self.owner.position
        entries += self.owner.answered(answer, now)
        if isinstance(request, Append) and self.owner.position > position:
            self.appended += len(request.body)
        if isinstance(request, Append | Beat | Claim) and isinstance(answer, Done):
            self._patience_s = PATIENCE_S
            if answer.is_protected is not None:
                self.is_protected = answer.is_protected
            took = now - self._sent_at
            self.commits[bisect_left(COMMIT_MS, took * 1000)] += 1
            self.commits_s += took
            self.round_trip_s += (took - self.round_trip_s) * (WEIGHT if self.round_trip_s else 1.0)

    def _give_up(self, now: float) -> None:
        """No answer has come: the server may hang, and another one may be the leader by now.

        What was asked may still be carried out, which is what every doubt is about.
        """
        self.link.close()
        self._request = None
        self.owner.lost(f"no answer within {self._patience_s:.0f} s", now)
        self._patience_s = min(2 * self._patience_s, MAX_PATIENCE_S)

    def wait_s(self, now: float) -> float | None:
        """Seconds until `turn` may have something to do by itself; None: an answer has to come first."""
        if self._request is not None:
            return max(0.0, self._sent_at + self._patience_s - now)
        return self.owner.wait_s(now)

    def close(self) -> None:
        self.link.close()
