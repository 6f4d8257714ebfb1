"""Owners of a log in simulated time: crashes, zombies, take-overs and a log in which everything goes wrong.

A run is a seed: `SEED=123` repeats one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from replication.simulated_log import Link, SimulatedLog
from support.budget import budget

from bunqueue.server.links.pipe_messages import LEASE_S
from shardproc.replication.errors import Fenced, LogDamaged, LogShorter
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
    Owner,
    Phase,
    Records,
    Refused,
    Tail,
    Uncertain,
)

SEEDS = budget(1_000, 100_000)
PARTS = 4


class Wrong(AssertionError):
    """A promise is broken."""


@dataclass
class Bugs:
    """Mistakes that an implementation may make; the checks have to find each."""

    checks_epochs: bool = True
    ignores_notices: bool = False
    file_ahead: bool = False
    replies_early: bool = False


@dataclass
class Host:
    """A process that owns a shard, or would like to, and its file, which outlives it."""

    name: str
    log: SimulatedLog
    bugs: Bugs
    file: list[bytes] = field(default_factory=list)
    acknowledged: list[bytes] = field(default_factory=list)
    lives: int = 0
    asleep_until: float = 0.0
    _batches: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new process: memory is empty, the file is as it was committed."""
        self.lives += 1
        self.owner = Owner(f"{self.name}/{self.lives}", len(self.file))
        self._sealed: bytes | None = None
        self._link: Link | None = None

    def turn(self, now: float) -> None:
        if now < self.asleep_until:
            return
        try:
            self._hear(now)
            self._ask(now)
        except Fenced:
            self._drop()
            self.start()

    def work(self) -> None:
        """A client's command: it makes a batch, which is sealed at once."""
        if self.owner.is_idle and self._sealed is None:
            self._batches += 1
            self._sealed = f"{self.name}-{self._batches}".encode()
            self.owner.append(self._sealed)
            if self.bugs.file_ahead:
                self.file.append(self._sealed)
            if self.bugs.replies_early:
                self.acknowledged.append(self._sealed)

    def _hear(self, now: float) -> None:
        link = self._link
        if link is None:
            return
        if link.answers:
            answer = link.answers.pop(0)
            if isinstance(answer, Uncertain):
                if self.bugs.ignores_notices:
                    answer = Done()
                else:
                    self._drop()
            self._answered(answer, now)
        elif link.is_cut:
            self._drop()
            self.owner.lost("the connection ended", now)

    def _answered(self, answer: Answer, now: float) -> None:
        entries = self.owner.answered(answer, now)
        if self._sealed is not None and self.owner.position > len(self.file) - self.bugs.file_ahead:
            self._commit()
        self.file += [entry.body for entry in entries]

    def _commit(self) -> None:
        """The log has acknowledged the batch: the file's transaction commits, then the replies leave."""
        assert self._sealed is not None
        if not self.bugs.file_ahead:
            self.file.append(self._sealed)
        if not self.bugs.replies_early:
            self.acknowledged.append(self._sealed)
        self._sealed = None

    def _ask(self, now: float) -> None:
        request = self.owner.next_request(now)
        if request is None:
            return
        if isinstance(request, Connect):
            self._drop()
            self._link = self.log.connect()
        assert self._link is not None
        self.log.send(self._link, request)

    def _drop(self) -> None:
        if self._link is not None:
            self._link.is_open = False
        self._link = None


class World:
    def __init__(self, seed: int, bugs: Bugs) -> None:
        self.rng = Random(seed)
        self.log = SimulatedLog(self.rng, checks_epochs=bugs.checks_epochs)
        self.hosts = [Host(name, self.log, bugs) for name in ("a", "b")[: self.rng.randint(1, 2)]]
        self.now = 0.0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.rng.choice((0.0, 0.01, 0.05, 0.3))
            self.log.step()
            host = self.rng.choice(self.hosts)
            host.turn(self.now)
            chance = self.rng.random()
            if chance < 0.3:
                host.work()
            elif chance < 0.31:
                host._drop()  # SIGKILL: the backend may go on with what was sent
                host.start()
            elif chance < 0.32:
                host.asleep_until = self.now + self.rng.choice((1, 5, 20))  # SIGSTOP: a zombie afterwards

    def settle(self) -> None:
        """Nothing more goes wrong, and no command comes: all owners read what there is."""
        self.log.faults = False
        for host in self.hosts:
            host.asleep_until = 0.0
        for _ in range(2_000):
            self.now += 0.05
            self.log.step()
            for host in self.hosts:
                host.turn(self.now)
            if any(host.owner.is_idle for host in self.hosts) and self.log.is_quiet:
                return
        raise Wrong("nobody owns the shard although nothing is in the way")

    def check(self) -> None:
        records = self.log.final.records
        if [entry.position for entry in records] != list(range(1, len(records) + 1)):
            raise Wrong("the log has a gap, or a position twice")
        if any(one.epoch > other.epoch for one, other in pairwise(records)):
            raise Wrong("an epoch follows a later one")
        bodies = [entry.body for entry in records]
        if len(set(bodies)) != len(bodies):
            raise Wrong("a batch is in the log twice")
        for host in self.hosts:
            if lost := set(host.acknowledged) - set(bodies):
                raise Wrong(f"acknowledged, and lost: {lost}")
            if host.file != bodies[: len(host.file)]:
                raise Wrong(f"the file of {host.name} is not what the log says")


def run(seed: int, bugs: Bugs | None = None) -> World:
    world = World(seed, bugs or Bugs())
    world.run(300)
    world.settle()
    world.check()
    return world


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_acknowledged_is_lost_whatever_happens(part: int) -> None:
    seeds = [int(os.environ["SEED"])] if "SEED" in os.environ else range(part, SEEDS, PARTS)
    for seed in seeds:
        try:
            run(seed)
        except (Wrong, LogDamaged, AssertionError) as error:
            raise AssertionError(f"SEED={seed}: {error}") from error


def test_the_runs_have_what_they_are_for() -> None:
    """Take-overs, faults of every kind, and work in between: or the runs would show nothing."""
    worlds = [run(seed) for seed in range(300)]
    happened = {what for world in worlds for what in world.log.happened}
    assert happened == {"cut", "cancel", "delay", "restart", "failover"}
    assert sum(world.log.final.epoch for world in worlds) > 5 * len(worlds)
    assert sum(len(world.log.final.records) for world in worlds) > 10 * len(worlds)
    both = [world for world in worlds if len({e.body[:1] for e in world.log.final.records}) == 2]
    assert len(both) > 20  # a shard that one host wrote to, and then the other


BUGS = {
    "appends are not checked for the epoch": Bugs(checks_epochs=False),
    "a notice is taken for an acknowledgement": Bugs(ignores_notices=True),
    "the file is ahead of the log": Bugs(file_ahead=True),
    "replies leave before the log's acknowledgement": Bugs(replies_early=True),
}


@pytest.mark.parametrize("bugs", BUGS.values(), ids=BUGS.keys())
def test_a_seeded_bug_is_found(bugs: Bugs) -> None:
    for seed in range(2_000):
        try:
            run(seed, bugs)
        except (Wrong, LogDamaged, AssertionError):
            return
    pytest.fail("2,000 runs have not found it")


# -- one move at a time


def looking(token: str = "a/1", position: int = 0) -> Owner:
    """An owner that has connected and asks who has the shard."""
    owner = Owner(token, position)
    assert owner.next_request(0.0) == Connect()
    owner.answered(Connected(), 0.0)
    assert owner.next_request(0.0) == GetHolder()
    return owner


def reading(position: int = 0) -> Owner:
    """An owner that has claimed the shard and reads its tail."""
    owner = looking(position=position)
    owner.answered(Holder(0, "", 0), 0.0)
    assert owner.next_request(0.0) == Claim(0, "a/1")
    owner.answered(Done(), 0.0)
    assert owner.next_request(0.0) == Tail(position)
    return owner


def owning(position: int = 0) -> Owner:
    owner = reading(position)
    owner.answered(Records([], is_all=True, snapshot=0, end=position), 0.0)
    return owner


def entry(position: int, body: bytes = b"x", epoch: int = 1) -> Entry:
    return Entry(position, epoch, body)


def tail(*entries: Entry, is_all: bool = True, snapshot: int = 0) -> Records:
    return Records(entries, is_all, snapshot, end=entries[-1].position)


def test_a_request_is_asked_once() -> None:
    owner = Owner("a/1", 0)
    assert owner.next_request(0.0) == Connect()
    assert owner.next_request(0.0) is None
    assert owner.wait_s(0.0) is None


def test_the_tail_is_read_in_pieces_before_anything_is_appended() -> None:
    owner = reading(position=3)
    assert owner.answered(tail(entry(4), entry(5), is_all=False), 0.0) == [entry(4), entry(5)]
    assert not owner.is_idle
    assert owner.next_request(0.0) == Tail(5)
    assert owner.answered(tail(entry(6)), 0.0) == [entry(6)]
    assert owner.is_idle
    assert owner.position == 6


@pytest.mark.parametrize("positions", [[5], [4, 6], [3], [4, 4]])
def test_a_tail_with_a_gap_is_damage(positions: list[int]) -> None:
    owner = reading(position=3)
    with pytest.raises(LogDamaged, match="missing"):
        owner.answered(tail(*map(entry, positions)), 0.0)


def test_a_file_that_lacks_what_only_a_snapshot_holds_is_of_no_use() -> None:
    """Nothing is left in the log that could tell by a gap."""
    owner = reading(position=3)
    with pytest.raises(LogDamaged, match="they are in a snapshot"):
        owner.answered(Records([], is_all=True, snapshot=9, end=9), 0.0)


def test_a_log_that_ends_before_the_file_has_lost_something() -> None:
    owner = reading(position=3)
    with pytest.raises(LogShorter, match="the log ends at position 2, and the file holds 3"):
        owner.answered(Records([], is_all=True, snapshot=0, end=2), 0.0)


def test_another_owner_is_waited_for_until_its_beat_stands_still() -> None:
    owner = looking()
    now, beat = 0.0, 0
    for _ in range(20):  # it lives
        now, beat = now + 0.5, beat + 1
        owner.answered(Holder(7, "b/1", beat), now)
        assert owner.phase is Phase.WAITING
        assert "b/1" in owner.fault
        assert owner.next_request(now) is None
        assert owner.next_request(now + 0.5) == GetHolder()
    owner.answered(Holder(7, "b/1", beat), now + 0.5)
    assert owner.next_request(now + LEASE_S - 0.1) == GetHolder()
    owner.answered(Holder(7, "b/1", beat), now + LEASE_S - 0.1)
    assert owner.phase is Phase.WAITING
    assert owner.next_request(now + LEASE_S) == GetHolder()
    owner.answered(Holder(7, "b/1", beat), now + LEASE_S)
    assert owner.next_request(now + LEASE_S) == Claim(7, "a/1")


@pytest.mark.parametrize("is_lost", [True, False])
def test_while_the_log_is_away_no_owner_is_to_blame_for_its_beat(is_lost: bool) -> None:
    """Else all that wait would take the shards of owners that live as soon as the log is back."""
    owner = looking()
    owner.answered(Holder(7, "b/1", 3), 0.0)
    assert owner.next_request(0.5) == GetHolder()
    if is_lost:
        owner.lost("the connection ended", 0.6)
        assert owner.next_request(30.0) == Connect()
        owner.answered(Connected(), 30.0)
        assert owner.next_request(30.0) == GetHolder()
    owner.answered(Holder(7, "b/1", 3), 30.0)
    assert owner.phase is Phase.WAITING
    assert owner.next_request(30.5) == GetHolder()
    owner.answered(Holder(7, "b/1", 4), 30.5)
    assert owner.phase is Phase.WAITING


def test_a_folder_claims_what_its_former_process_had_at_once() -> None:
    owner = looking("a/2")
    owner.answered(Holder(7, "a/1", 3), 0.0)
    assert owner.next_request(0.0) == Claim(7, "a/2")


def test_a_claim_that_came_too_late_looks_again() -> None:
    owner = looking()
    owner.answered(Holder(0, "", 0), 0.0)
    assert owner.next_request(0.0) == Claim(0, "a/1")
    owner.answered(Refused(), 0.0)
    assert owner.next_request(0.0) == GetHolder()


def test_who_is_fenced_ends() -> None:
    owner = owning()
    owner.append(b"x")
    assert owner.next_request(1.0) == Append(1, 1, b"x")
    owner.answered(Refused(), 1.0)
    assert owner.next_request(1.0) == Connect()
    owner.answered(Connected(), 1.0)
    owner.next_request(1.0)
    with pytest.raises(Fenced, match="b/1"):
        owner.answered(Holder(2, "b/1", 0), 1.0)
    assert owner.next_request(9.0) is None
    assert not owner.owns(1.0)


def test_who_reads_what_a_later_owner_wrote_is_fenced() -> None:
    """It was stopped between its claim and the question, and the other one claimed meanwhile."""
    owner = reading(position=3)
    with pytest.raises(Fenced, match="since epoch 2"):
        owner.answered(tail(Entry(4, 2, b"theirs")), 0.0)
    assert owner.position == 3
    assert owner.next_request(9.0) is None


def test_an_append_whose_answer_was_lost_is_found_in_the_tail() -> None:
    owner = owning()
    owner.append(b"x")
    assert owner.next_request(1.0) == Append(1, 1, b"x")
    owner.lost("cut", 1.0)
    assert owner.next_request(1.0) is None  # a pause: a dead log must not be asked all the time
    for answer in (Connected(), Holder(1, "a/1", 0), Done()):
        assert owner.next_request(2.0) is not None
        owner.answered(answer, 2.0)
    assert owner.next_request(2.0) == Tail(0)
    assert owner.answered(tail(entry(1, b"x")), 2.0) == []
    assert (owner.position, owner.epoch, owner.is_idle) == (1, 2, True)


def test_an_idle_owner_proves_that_it_still_is_one() -> None:
    owner = owning()
    assert not owner.owns(0.0)
    assert owner.next_request(0.0) == Heartbeat(1)
    owner.answered(Done(), 0.9)
    assert owner.owns(1.9)
    assert not owner.owns(2.0)  # since the beat was sent, not since its answer came
    assert owner.next_request(0.9) is None
    assert owner.wait_s(0.9) == pytest.approx(0.1)
    assert owner.next_request(1.0) == Heartbeat(1)


def test_pauses_grow_while_the_log_is_away() -> None:
    owner = Owner("a/1", 0)
    pauses = []
    now = 0.0
    for _ in range(8):
        assert owner.next_request(now) == Connect()
        owner.lost("refused", now)
        pauses.append(owner.wait_s(now))
        now += 1.0
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.05, 1.0)


def test_an_append_that_was_refused_is_sent_again_by_the_next_epoch() -> None:
    log = SimulatedLog(Random(1), faults=False)
    host = Host("a", log, Bugs())
    now = settle(host, log)
    host.work()
    before = host.owner.epoch
    request = host.owner.next_request(now)
    assert isinstance(request, Append)
    host.owner.lost("cut", now)
    settle(host, log, now)
    assert host.acknowledged == [b"a-1"]
    assert host.owner.epoch > before


def settle(host: Host, log: SimulatedLog, now: float = 0.0) -> float:
    for _ in range(100):
        now += 0.05
        host.turn(now)
        log.step()
    assert host.owner.is_idle
    return now
