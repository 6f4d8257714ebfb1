"""When a shard refuses jobs for its memory, and when it takes them again."""

from __future__ import annotations

import pytest

from shardproc import pressure
from shardproc.pressure import MIB, Pressure

SHARE = 1000 * MIB


class Machine:
    """A process with so much memory."""

    def __init__(self) -> None:
        self.used = 0
        self.freed = 0
        self.pressure = Pressure(SHARE, self._free, lambda: self.used * MIB)

    def _free(self) -> None:
        self.freed += 1

    def full(self, used: int, jobs: int) -> bool:
        """Whether jobs are refused with so many MiB and jobs."""
        self.used = used
        self.pressure.check(jobs)
        return self.pressure.full


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(pressure, "CHECK_S", 0)
    return Machine()


def test_at_the_share_and_until_well_below(machine: Machine) -> None:
    assert not machine.full(999, 100)
    assert machine.full(1000, 100)
    assert machine.full(901, 99)
    assert not machine.full(899, 99)


def test_memory_that_stays_does_not_count_when_jobs_are_gone(machine: Machine) -> None:
    assert machine.full(1000, 100)
    assert machine.full(1000, 91)
    assert not machine.full(1000, 90)
    assert not machine.full(1040, 99), "new jobs fit into what is free within"
    assert machine.full(1000, 100), "as many as before"
    assert not machine.full(1000, 0)
    assert machine.full(1060, 10), "they are larger"


def test_without_jobs_it_never_refuses_for_ever(machine: Machine) -> None:
    machine.full(2000, 0)
    assert not machine.full(2000, 0)


def test_memory_is_asked_back_now_and_then(machine: Machine) -> None:
    machine.full(1000, 1000)
    before = machine.freed
    for jobs in range(1000, 900, -1):
        machine.full(950, jobs)
    assert 1 <= machine.freed - before <= 3


def test_no_limit(machine: Machine) -> None:
    machine.pressure = Pressure(0, used=lambda: 1 << 60)
    assert not machine.full(0, 5)


def test_jobs_have_room_however_much_was_there_before_them(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.pressure.started(500 * MIB)
    assert machine.pressure.share == SHARE
    machine.pressure.started(990 * MIB)
    assert not machine.full(990, 0), "a start never comes up unable to work"
    assert not machine.full(1050, 10)
    assert machine.full(1300, 1000)
    assert caplog.messages[0].startswith("settings and queues leave too little memory for jobs")
    machine.pressure = Pressure(0)
    machine.pressure.started(990 * MIB)
    assert machine.pressure.share == 0
