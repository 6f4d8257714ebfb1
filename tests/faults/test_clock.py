"""The shards' clock on a machine that stops a process whenever it likes, and whose time somebody sets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardproc import clock
from shardproc.clock import JUMP_MS, Clock

HOUR_NS = 3_600_000_000_000
MS_NS = 1_000_000


class Machine:
    """Two clocks that go together, and a process that may be stopped between reading one and the other."""

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000_000 * MS_NS
        self.set_ns = 0  # by which the wall clock was set forward
        self.pauses: Iterator[int] = iter(())  # ns that pass after each reading

    def _read(self) -> int:
        value = self.now_ns
        self.now_ns += next(self.pauses, 0)
        return value

    def time_ns(self) -> int:
        return self._read() + self.set_ns

    def elapsed_ns(self) -> int:
        return self._read() - HOUR_NS


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(clock.time, "time_ns", machine.time_ns)
    monkeypatch.setattr(clock, "_elapsed_ns", machine.elapsed_ns)
    return machine


@pytest.mark.parametrize("reading", range(9))
def test_a_pause_between_two_readings_leaves_no_trace(machine: Machine, reading: int) -> None:
    """A process that is stopped for an hour while it reads the clocks must not be an hour ahead from then on,
    nor take it for a jump."""
    machine.pauses = iter([0] * reading + [HOUR_NS])
    shard_clock = Clock()
    for _ in range(4):
        shard_clock.now_ms()
        assert shard_clock.check_jump() == 0
    assert shard_clock.now_ms() == machine.now_ns // MS_NS


def test_a_jump_is_told_once_and_followed(machine: Machine) -> None:
    shard_clock = Clock()
    begin = shard_clock.now_ms()
    machine.set_ns = HOUR_NS
    assert shard_clock.now_ms() == begin + 3_600_000, "forward at once"
    assert [shard_clock.check_jump(), shard_clock.check_jump()] == [3_600_000, 0]
    machine.set_ns = 0
    assert shard_clock.now_ms() == begin + 3_600_000, "it runs on until it has told"
    assert [shard_clock.check_jump(), shard_clock.check_jump()] == [-3_600_000, 0]
    assert shard_clock.now_ms() == begin


def test_small_steps_are_no_jumps_and_add_up(machine: Machine) -> None:
    shard_clock = Clock()
    begin = shard_clock.now_ms()
    step = JUMP_MS * MS_NS * 2 // 3
    machine.set_ns = -step
    assert shard_clock.check_jump() == 0
    assert shard_clock.now_ms() == begin, "it does not go back"
    machine.set_ns = -2 * step
    assert shard_clock.check_jump() == -(2 * step // MS_NS)
    machine.set_ns = -step
    assert shard_clock.check_jump() == 0
    machine.set_ns = 0
    assert shard_clock.check_jump() == 0, "what was followed in small steps, as by NTP, is no jump"
    assert shard_clock.now_ms() == begin
