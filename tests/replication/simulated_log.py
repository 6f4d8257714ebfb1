"""A log as PostgreSQL with a synchronous standby keeps it, in memory, with everything that can go wrong.

A commit is first written by the leader (`_written`), then replicated, then visible, then acknowledged, and a
fault may come between any two of these.  All that happens is decided by one random generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

from shardproc.replication.owner import (
    Answer,
    Append,
    Claim,
    Connect,
    Connected,
    Done,
    Entry,
    GetHolder,
    Heartbeat,
    Holder,
    Records,
    Refused,
    Release,
    Request,
    Tail,
    Uncertain,
)


@dataclass(slots=True)
class State:
    """What a transaction sees."""

    epoch: int = 0
    token: str = ""
    records: list[Entry] = field(default_factory=list)  # the trimmed ones, too, for those who check
    beat: int = 0
    trimmed: int = 0  # up to this position nobody can read
    snapshot: Snapshot | None = None


class Snapshot(NamedTuple):
    """A shard's file with all records up to a position."""

    position: int
    image: bytes


Change = Callable[[State], None]


@dataclass(slots=True, eq=False)
class Link:
    """One connection.  ``answers`` are on their way to the client."""

    answers: list[Answer] = field(default_factory=list)
    request: Request | None = None  # has not reached the leader yet
    commit: Commit | None = None  # waits for its standby
    is_open: bool = True  # the client still has it
    is_cut: bool = False  # nothing passes any more
    is_slow: bool = False  # what was sent is still on its way, whatever happens meanwhile


@dataclass(slots=True, eq=False)
class Commit:
    change: Change
    link: Link


class SimulatedLog:
    """Every `step` lets one thing happen, or, as often as ``fault_rate`` says, a fault.  ``checks_epochs``
    false is a seeded bug."""

    def __init__(
        self, rng: Random, *, checks_epochs: bool = True, faults: bool = True, fault_rate: float = 0.03
    ) -> None:
        self.rng = rng
        self.faults = faults
        self.fault_rate = fault_rate
        self.checks_epochs = checks_epochs
        self.visible = State()
        self._replicated: list[Change] = []  # what a standby has
        self._written: list[Change] = []  # what the leader has besides
        self._waiting: Commit | None = None  # holds the row lock
        self._links: list[Link] = []
        self.happened: list[str] = []

    def connect(self) -> Link:
        link = Link()
        self._links.append(link)
        return link

    def send(self, link: Link, request: Request) -> None:
        assert link.request is None
        assert link.commit is None
        link.request = request

    def step(self) -> None:
        """One thing happens, or, rarely, a fault."""
        if self.faults and self.rng.random() < self.fault_rate:
            self.rng.choice(self._possible_faults())()
            return
        self._links = [link for link in self._links if link.is_open or link.request is not None]
        for link in self._links:
            link.is_slow &= self.faults and self.rng.random() > 0.02
        arriving = [link for link in self._links if link.request is not None and not link.is_slow]
        moves = [partial(self._arrive, link) for link in arriving]
        if self._waiting is not None:
            moves.append(self._replicate)
        if moves:
            self.rng.choice(moves)()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way."""
        return self._waiting is None and all(link.request is None for link in self._links if link.is_open)

    @property
    def final(self) -> State:
        """What is replicated: all that any future holds for certain."""
        state = State()
        for change in self._replicated:
            change(state)
        return state

    # -- what the leader does

    def _arrive(self, link: Link) -> None:
        """A request is carried out; one that writes waits for the row first, and then for a standby."""
        request = link.request
        assert request is not None
        if isinstance(request, Connect):
            link.request = None
            self._answer(link, Connected())
        elif isinstance(request, GetHolder):
            link.request = None
            holder = self.visible
            self._answer(link, Holder(holder.epoch, holder.token, holder.beat))
        elif isinstance(request, Tail):
            link.request = None
            after = max(request.after, self.visible.trimmed)
            found = [entry for entry in self.visible.records if entry.position > after]
            some = found[: self.rng.randint(1, 3)]
            self._answer(link, self._tail(some, is_all=len(some) == len(found)))
        elif self._waiting is None:
            link.request = None
            self._write(link, request)

    def _tail(self, some: list[Entry], *, is_all: bool) -> Records:
        now = self.visible
        last = now.records[-1].position if now.records else 0
        snapshot = now.snapshot.position if now.snapshot else 0
        return Records(some, is_all, snapshot, max(snapshot, last if last > now.trimmed else 0))

    def _write(self, link: Link, request: Request) -> None:
        change = self._change(request)
        if change is None:
            self._answer(link, Refused())
        else:
            link.commit = self._waiting = Commit(change, link)
            self._written.append(change)

    def _change(self, request: Request) -> Change | None:
        now = self.visible
        if isinstance(request, Claim):
            if request.epoch != now.epoch:
                return None

            def claim(state: State) -> None:
                state.epoch, state.token = request.epoch + 1, request.token

            return claim
        assert isinstance(request, Append | Heartbeat | Release)
        if self.checks_epochs and request.epoch != now.epoch:
            return None
        if isinstance(request, Release):

            def release(state: State) -> None:
                state.token = ""

            return release
        if isinstance(request, Heartbeat):

            def beat(state: State) -> None:
                state.beat += 1

            return beat
        if any(entry.position == request.position > now.trimmed for entry in now.records):
            return None  # a unique violation

        def append(state: State) -> None:
            state.beat += 1
            state.records.append(Entry(request.position, request.epoch, request.body))

        return append

    def _replicate(self) -> None:
        assert self._waiting is not None
        self._replicated += self._written
        self._written.clear()
        self._show(Done())

    def _show(self, answer: Answer) -> None:
        """The commit that waited is visible, and its client hears of it."""
        commit, self._waiting = self._waiting, None
        assert commit is not None
        commit.change(self.visible)
        commit.link.commit = None
        self._answer(commit.link, answer)

    def _answer(self, link: Link, answer: Answer) -> None:
        if link.is_open and not link.is_cut:
            link.answers.append(answer)

    # -- snapshots

    def keep(self, snapshot: Snapshot, *, trim: bool) -> None:
        """Keep a snapshot, and perhaps drop what it holds.  That is replicated with all that was before."""

        def change(state: State) -> None:
            if state.snapshot is None or state.snapshot.position < snapshot.position:
                state.snapshot = snapshot
            if trim:
                state.trimmed = max(state.trimmed, snapshot.position)

        if self._waiting is None:
            self._replicated += [*self._written, change]
            self._written.clear()
            change(self.visible)

    # -- what goes wrong

    def _possible_faults(self) -> list[Callable[[], None]]:
        found = [self._cut, self._cut, self.fail_over, self._restart]
        if self._waiting is not None:
            found += [self._cancel, self._cancel]
        if any(link.request is not None for link in self._links):
            found.append(self._delay)
        return found

    def _cut(self) -> None:
        """A connection passes nothing any more; its backend goes on with what has arrived."""
        links = [link for link in self._links if link.is_open and not link.is_cut]
        if links:
            link = self.rng.choice(links)
            self.happened.append("cut")
            link.is_cut = True
            if self.rng.random() < 0.5:
                link.answers.clear()  # lost on the way
            if self.rng.random() < 0.5 and link.request is not None:
                link.request = None

    def _delay(self) -> None:
        """A request is under way for long: its client may have given up, or be dead, when it arrives."""
        self.happened.append("delay")
        self.rng.choice([link for link in self._links if link.request is not None]).is_slow = True

    def _cancel(self) -> None:
        """The wait for the standby is cancelled: visible, acknowledged with a notice, and not replicated."""
        self.happened.append("cancel")
        self._show(Uncertain("WARNING 01000: canceling wait for synchronous replication"))

    def _restart(self) -> None:
        """The leader is killed and comes back with all that it has written, replicated or not."""
        self.happened.append("restart")
        if self._waiting is not None:
            self._waiting.change(self.visible)
            self._waiting.link.commit = None
            self._waiting = None
        self._drop_links()

    def fail_over(self) -> None:
        """The standby takes over: what it does not have is gone."""
        self.happened.append("failover")
        self._written.clear()
        if self._waiting is not None:
            self._waiting.link.commit = None
            self._waiting = None
        self.visible = self.final
        self._drop_links()

    def _drop_links(self) -> None:
        for link in self._links:
            link.is_cut = True
            link.request = None
