"""Owning a shard's log: claim it, read its tail, append to it, one record at a time. No I/O, no clock.

An `Owner` decides the next request, and is given the answer. Another object has the connection:

    connect ─► look ─► claim ─► read the tail ─► append, append, ...
       ▲         │ another owner lives: wait
       └─────────┴──── any doubt: drop the connection

The rules, and why they hold:

- *Who owns* a shard is an epoch.  A claim raises it by one, and only from the epoch that was seen, so of two
  claims one fails.  An append succeeds only under the current epoch.
- *Claim first, then read.*  The claim is itself a replicated commit, so what is read after it is replicated.
- *Any doubt* (a lost connection, a notice, a row count other than one) is settled in one way: connect, claim
  again, look at the tail.  An append that was under way is in the tail, or can never be any more.
- *Fenced*: if another owner is found once this one has owned the shard, it must forget all and end.
- *Leases* only say when to try: another owner's heartbeat was unchanged for LEASE_S on this process's own
  monotonic clock.  While the log is unavailable or stalled, nobody can change a heartbeat, so that time does
  not count.  A wrong guess costs the other owner its shard, and never a record.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from bunqueue.server.links.pipe_messages import LEASE_S, OwnerObservation

from .errors import Fenced, LogDamaged, LogShorter

PROOF_S = LEASE_S / 2  # how long an answer of the log proves that the shard is still owned
FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0  # before connecting again
POLL_S = 0.5  # between two polls of another owner's heartbeat
STALLED_S = 1.0  # a poll that takes longer means that the log is stalled, not that the machine is busy
TAIL = 500  # records of the tail in one answer


# -- requests, and their answers


@dataclass(frozen=True, slots=True)
class Connect:
    """Answer: `Connected`."""


@dataclass(frozen=True, slots=True)
class GetHolder:
    """Ask for the shard's owner. Answer: `Holder`."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Own the shard, if its epoch is still this one. Answer: `Done`, or `Refused`."""

    epoch: int
    token: str


@dataclass(frozen=True, slots=True)
class Tail:
    """Read the records after a position, at most `most`. Answer: `Records`."""

    after: int
    most: int = TAIL


@dataclass(frozen=True, slots=True)
class Append:
    """Add a record at this position, if the epoch is the current one. Answer: `Done`, or `Refused`."""

    position: int
    epoch: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Send the shard's heartbeat, if the epoch is the current one. Answer: `Done`, or `Refused`.

    It has to be a replicated commit like an append: it proves that the shard is still owned.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give the shard up, if the epoch is the current one. Answer: `Done`, or `Refused`."""

    epoch: int


Request = Connect | GetHolder | Claim | Tail | Append | Heartbeat | Release


@dataclass(frozen=True, slots=True)
class Connected:
    pass


@dataclass(frozen=True, slots=True)
class Holder:
    """``token`` is "" while the shard is unclaimed; ``heartbeat`` changes as long as the owner lives."""

    epoch: int
    token: str
    heartbeat: int


@dataclass(frozen=True, slots=True)
class Entry:
    position: int
    epoch: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Records:
    """``snapshot`` is the position of the newest snapshot, up to which records may be gone; ``end`` is that
    of the last record ever written."""

    entries: Sequence[Entry]
    is_all: bool
    snapshot: int
    end: int


@dataclass(frozen=True, slots=True)
class Done:
    """Carried out, and replicated. ``is_protected``: whether commits wait for a standby, if the request
    asks."""

    is_protected: bool | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Not carried out: the epoch is another one."""


@dataclass(frozen=True, slots=True)
class Uncertain:
    """The outcome of the request is unknown: the connection was lost, or the log gave a notice."""

    why: str


Answer = Connected | Holder | Records | Done | Refused | Uncertain


class Phase(enum.Enum):
    DISCONNECTED = "disconnected"  # no connection
    CHECKING = "checking"
    WAITING = "waiting"  # another owner seems to live
    CLAIMING = "claiming"
    READING = "reading"
    OWNING = "owning"
    RELEASED = "released"  # on purpose: another one need not wait for it
    FENCED = "fenced"


def identity_of(token: str) -> str:
    """The data folder of an owner. Its lock admits one process at a time, so an older process is dead."""
    return token.partition("/")[0]


def seen_since(since: float, now: float, waited_s: float) -> float:
    """Since when another owner's heartbeat has been unchanged, after a poll that took ``waited_s``. Time in
    which the log was stalled does not count: no owner could change its heartbeat."""
    return min(now, since + waited_s) if waited_s > STALLED_S else since


class Owner:
    """One shard's claim to its log.

    ``token`` is "FOLDER/PROCESS": the folder's identity and a part that is new for each process. ``position``
    is that of the last record in the shard's file.
    """

    def __init__(
        self, token: str, position: int, observed: OwnerObservation | None = None, now: float = 0.0
    ) -> None:
        """``observed``: what was known of another owner at ``now``, on this machine's monotonic clock."""
        self.token = token
        self.position = position
        """The position of the last record that was acknowledged or read."""
        self.epoch = 0
        self.phase = Phase.DISCONNECTED
        self.fault = ""
        """Why the log is unavailable, for people; "" while it is available."""
        self._pending: bytes | None = None  # a record that is not acknowledged yet
        self._asked: Request | None = None  # in flight
        self._asked_at = 0.0
        self._proven_at = float("-inf")
        self._not_before = 0.0
        self._pause = FIRST_PAUSE_S
        self._has_owned = False
        self._releases = False
        self._seen: tuple[str, int, int] | None = None  # token, epoch, heartbeat of another owner
        self._seen_at = 0.0
        if observed is not None:
            self._seen = observed.token, observed.epoch, observed.heartbeat
            self._seen_at = now - observed.unchanged_s
        self._uncertain_since: float | None = None  # since the last check
        self._holder_epoch = 0

    # -- called by the shard

    @property
    def is_idle(self) -> bool:
        """Whether a record may be appended now."""
        return self.phase is Phase.OWNING and self._pending is None and self._asked is None

    def append(self, body: bytes) -> None:
        """Add a record. The owner keeps it, through any doubt, until it is acknowledged."""
        assert self.is_idle
        assert body
        self._pending = body

    def release(self) -> None:
        """Give the shard up, once nothing is in flight. Nothing may be appended after that."""
        assert self.is_idle
        self._releases = True

    def owns(self, now: float) -> bool:
        """Whether the last answer of the log is so recent that no other process can own the shard yet."""
        return self.phase not in (Phase.FENCED, Phase.RELEASED) and now - self._proven_at < PROOF_S

    def owner_released(self) -> None:
        """The owner that is waited for has given the shard up."""
        if self.phase is Phase.WAITING:
            self._not_before = 0.0

    # -- called by the connection

    def wait_s(self, now: float) -> float | None:
        """Seconds until `next_request` may have something; None: an answer or a record has to come first."""
        if self._asked is not None or self.phase in (Phase.FENCED, Phase.RELEASED):
            return None
        if self.phase in (Phase.DISCONNECTED, Phase.WAITING):
            return max(0.0, self._not_before - now)
        if self._pending is None and self.phase is Phase.OWNING and not self._releases:
            return max(0.0, self._proven_at + PROOF_S / 2 - now)
        return 0.0

    def next_request(self, now: float) -> Request | None:
        """The request to send now; None if one is in flight, or there is nothing to ask."""
        if self.wait_s(now) != 0.0:
            return None
        if self.phase is Phase.WAITING:
            self.phase = Phase.CHECKING
        self._asked, self._asked_at = self._request(), now
        return self._asked

    def _request(self) -> Request:
        if self.phase is Phase.DISCONNECTED:
            return Connect()
        if self.phase is Phase.CHECKING:
            return GetHolder()
        if self.phase is Phase.CLAIMING:
            return Claim(self._holder_epoch, self.token)
        if self.phase is Phase.READING:
            return Tail(self.position)
        if self._releases:
            return Release(self.epoch)
        if self._pending is None:
            return Heartbeat(self.epoch)
        return Append(self.position + 1, self.epoch, self._pending)

    def answered(self, answer: Answer, now: float) -> Sequence[Entry]:
        """Take the answer to the last request. Returns records to apply to the shard's file, in order.

        Raises Fenced and LogDamaged, after which this object must not be used.
        """
        asked, self._asked = self._asked, None
        if isinstance(answer, Uncertain):
            self._on_uncertain(answer.why, now)
        elif isinstance(answer, Connected):
            self.phase = Phase.CHECKING
        elif isinstance(answer, Holder):
            self._on_holder(answer, now)
        elif isinstance(answer, Records):
            return self._read(answer)
        elif isinstance(asked, Claim):
            self._claimed(asked, answer)
        elif isinstance(answer, Refused):
            self._on_uncertain("the epoch is another one", now)
            self._not_before = now
        elif isinstance(asked, Release):
            self.phase = Phase.RELEASED
        else:
            self._proven_at = self._asked_at
            if isinstance(asked, Append):
                self.position, self._pending = asked.position, None
        return ()

    def lost(self, why: str, now: float) -> None:
        """The connection ended, whether or not a request was in flight."""
        self._asked = None
        self._on_uncertain(why, now)

    # -- the transitions

    def _on_uncertain(self, why: str, now: float) -> None:
        self.phase, self.fault = Phase.DISCONNECTED, why
        if self._uncertain_since is None:
            self._uncertain_since = now
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, LAST_PAUSE_S)

    def _on_holder(self, holder: Holder, now: float) -> None:
        self._holder_epoch = holder.epoch
        since = self._asked_at if self._uncertain_since is None else self._uncertain_since
        waited_s, self._uncertain_since = now - since, None
        ours = holder.token == self.token
        if self._has_owned and not ours:
            self.phase = Phase.FENCED
            raise Fenced(f"another process owns the shard since epoch {holder.epoch}: {holder.token}")
        if ours or not holder.token or identity_of(holder.token) == identity_of(self.token):
            self.phase = Phase.CLAIMING
            return
        seen = holder.token, holder.epoch, holder.heartbeat
        self._seen_at = seen_since(self._seen_at, now, waited_s)
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        if now - self._seen_at >= LEASE_S:
            self.phase = Phase.CLAIMING
        else:
            self.phase = Phase.WAITING
            self._not_before = min(now + POLL_S, self._seen_at + LEASE_S)
            self.fault = f"another server has the shard: {holder.token}"

    def _claimed(self, asked: Claim, answer: Answer) -> None:
        if isinstance(answer, Refused):
            self.phase = Phase.CHECKING
            return
        self.epoch, self._has_owned = asked.epoch + 1, True
        self.phase = Phase.READING

    def _read(self, tail: Records) -> Sequence[Entry]:
        """The tail, after the claim: what other owners wrote, or this one's record that was in doubt."""
        fresh: list[Entry] = []
        for entry in tail.entries:
            if entry.epoch > self.epoch:  # after our claim, while the question was in flight
                self.phase = Phase.FENCED
                raise Fenced(
                    f"another process owns the shard since epoch {entry.epoch}: it has written position "
                    f"{entry.position}"
                )
            if entry.position != self.position + 1:
                raise LogDamaged(f"position {self.position + 1} is missing: {entry.position} came instead")
            if self._pending is not None:
                if entry.body != self._pending:
                    raise LogDamaged(f"position {entry.position} holds another record than was sent")
                self._pending = None
            else:
                fresh.append(entry)
            self.position = entry.position
        if tail.is_all:
            self._check_end(tail)
            self.phase, self.fault, self._pause = Phase.OWNING, "", FIRST_PAUSE_S
        return fresh

    def _check_end(self, tail: Records) -> None:
        """Check that the file's position fits the log, even if there are no records to compare."""
        if self.position < tail.snapshot:
            raise LogDamaged(
                f"the file ends at position {self.position}, and the records up to {tail.snapshot} are gone: "
                "they are in a snapshot"
            )
        if self.position > tail.end:
            raise LogShorter(
                f"the log ends at position {tail.end}, and the file holds {self.position}: the store was put "
                "back to an older state, or has lost what it had acknowledged; docs/store.md says what to do"
            )
