"""The shards' clock on a machine that stops a process whenever it likes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from shardproc import clock
from shardproc.clock import Clock

HOUR_NS = 3_600_000_000_000
MS_NS = 1_000_000


class Machine:
    """Two clocks that go together, and a process that may be stopped between reading one and the other."""

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000_000 * MS_NS
        self.pauses: Iterator[int] = iter(())  # ns that pass after each reading

    def _read(self) -> int:
        value = self.now_ns
        self.now_ns += next(self.pauses, 0)
        return value

    def time_ns(self) -> int:
        return self._read()

    def monotonic_ns(self) -> int:
        return self._read() - HOUR_NS


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(
        clock, "time", SimpleNamespace(time_ns=machine.time_ns, monotonic_ns=machine.monotonic_ns)
    )
    return machine


@pytest.mark.parametrize("reading", range(6))
def test_a_pause_between_two_readings_leaves_no_trace(machine: Machine, reading: int) -> None:
    """A process that is stopped for an hour within ``now_ms`` must not be an hour ahead from then on."""
    machine.pauses = iter([0] * reading + [HOUR_NS])
    shard_clock = Clock()
    for _ in range(5):
        shard_clock.now_ms()
    assert shard_clock.now_ms() == machine.now_ns // MS_NS
