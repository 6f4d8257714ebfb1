"""Stories of hosts that are stopped or cut off at the worst moment, told with simulated ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, ClassVar

import msgpack
import pytest
from replication.simulation.bugs import TrustingServer
from replication.simulation.clients import Client
from replication.simulation.host import Host, Kinds
from replication.simulation.scheduler import always
from replication.simulation.world import World

from shardproc import timekeeping
from shardproc.replication.replicated_server import ReplicatedServer


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Traveller(Client):
    """Does what a story says, and says whom it asks."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "traveller")

    def to(self, host: Host, **request: Any) -> dict[str, Any] | None:
        self.scheduler.wait(lambda: host.listens)
        self._connection = host.connect()
        return self.ask(**request)


def tell(story: type[Traveller], kinds: Kinds, hosts: int) -> None:
    """Nothing goes wrong but what the story wants."""
    world = World(1, kinds, hosts)
    for log in world.logs:
        log.faults = False
    world.scheduler.kills = world.scheduler.stalls = 0.0
    with world.scheduler.instead():
        traveller = story(world)
        try:
            while traveller.task in world.scheduler.tasks:
                world.go_on()
        finally:
            for task in list(world.scheduler.tasks):
                task.kill()


class LateReads(Traveller):
    """A host is cut off, another one takes over and changes something, and the first one is asked."""

    answer: dict[str, Any] | None

    def run(self) -> None:
        first, second = self.world.hosts
        first.start()
        self.to(first, cmd="PUSH", queue="alpha", data={})
        second.start()
        self.pause(10)  # until nothing has to be written there any more, for which reads would have to wait
        first.cut_off_until = self.scheduler.now + 60
        pushed = self.to(second, cmd="PUSH", queue="alpha", data={})
        assert pushed is not None
        right = self.to(second, cmd="GetState", id=pushed["id"])
        assert right is not None
        assert right["state"] == "waiting"
        type(self).answer = self.to(first, cmd="GetState", id=pushed["id"])


@pytest.fixture
def _no_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the clock: they are writes, for which all reads have to wait."""
    monkeypatch.setattr(timekeeping, "MARK_MS", 1 << 60)


@pytest.mark.usefixtures("_no_marks")
def test_who_has_lost_a_shard_without_knowing_does_not_answer_reads() -> None:
    tell(LateReads, Kinds(), hosts=2)
    assert LateReads.answer is not None
    assert (LateReads.answer["ok"], LateReads.answer["code"]) == (False, "STORE_UNAVAILABLE")


@pytest.mark.usefixtures("_no_marks")
def test_a_seeded_bug_in_reads_is_found() -> None:
    tell(LateReads, Kinds(server=TrustingServer), hosts=2)
    assert LateReads.answer is not None
    assert LateReads.answer["state"] == "unknown"


class StopsInABatch(ReplicatedServer):
    """Stopped for long between its look at the clock and the commands."""

    naps: ClassVar[list[float]] = []

    def _begin_batch(self, now: float) -> None:
        socket: Any = self._sock
        if self.naps and self._arrived:
            socket.scheduler.current.stopped_until = socket.scheduler.now + self.naps.pop()
            socket.scheduler.wait(always, 0)
        super()._begin_batch(now)


class ReadsAfterANap(Traveller):
    answer: dict[str, Any] | None

    def run(self) -> None:
        first, second = self.world.hosts
        first.start()
        self.to(first, cmd="PUSH", queue="alpha", data={})
        second.start()
        self.pause(10)
        stopped = first.connect()
        StopsInABatch.naps.append(30.0)
        first.command(
            stopped, self._shard_of({"queue": "alpha"}), _packed(cmd="Count", queue="alpha", reqId="r")
        )
        self.scheduler.wait(lambda: not StopsInABatch.naps)
        first.cut_off_until = self.scheduler.now + 25  # so that its other shard is lost, too
        self.to(second, cmd="PUSH", queue="alpha", data={})
        self.scheduler.wait(lambda: "r" in stopped.replies or stopped.is_cut)
        type(self).answer = stopped.replies.get("r")


def _packed(**fields: Any) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed


@pytest.mark.usefixtures("_no_marks")
def test_who_was_stopped_in_a_batch_does_not_answer_reads_from_before() -> None:
    tell(ReadsAfterANap, Kinds(server=StopsInABatch), hosts=2)
    assert ReadsAfterANap.answer is None or not ReadsAfterANap.answer["ok"]


class QuietWorker(Traveller):
    """A worker holds a job and says nothing more, while others have little to say."""

    state = ""

    def run(self) -> None:
        (host,) = self.world.hosts
        host.start()
        pushed = self.to(host, cmd="PUSH", queue="alpha", data={})
        assert pushed is not None
        self.pause(8)
        self.to(host, cmd="PULL", queue="alpha", owner="w", lockTtl=3_000)
        for _ in range(5):
            self.pause(3)
            reply = self.to(host, cmd="GetState", id=pushed["id"])
            type(self).state = (reply or {}).get("state", "")


def test_locks_run_out_when_there_is_little_traffic() -> None:
    """It is the worker that is silent, and not the router, which says something each second."""
    tell(QuietWorker, Kinds(), hosts=1)
    assert QuietWorker.state == "waiting"
