"""Watching an event loop from another thread."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading

import pytest
from support.waiting import eventually

from bunqueue.worker.locks import loop_monitor
from bunqueue.worker.locks.loop_monitor import BLOCKED, LoopMonitor, place_of


class Clock:
    """The time that the monitor sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(loop_monitor, "time", self)

    def monotonic(self) -> float:
        return self.now


async def test_a_loop_that_answers_owes_nothing() -> None:
    looking = LoopMonitor(asyncio.get_running_loop())
    looking.check(0.0)
    assert looking.lag >= 0
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert looking.lag == 0


async def test_a_blocked_loop_is_told_again_after_twice_the_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(monkeypatch)
    looking = LoopMonitor(asyncio.get_running_loop())
    told: list[float] = []

    def look() -> None:
        for tenth in range(200):
            clock.now = tenth / 10
            before = len(caplog.records)
            looking.check(0.0)
            told.extend([clock.now] * (len(caplog.records) - before))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()  # the loop is blocked
    assert told == [BLOCKED, 2 * BLOCKED, 4 * BLOCKED, 8 * BLOCKED]
    assert looking.lag == clock.now == 19.9
    await eventually(lambda: "loop continues after 19.9 s" in caplog.records[-1].getMessage(), "it goes on")


async def test_a_process_that_stood_still_is_not_a_blocked_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(monkeypatch)
    looking = LoopMonitor(asyncio.get_running_loop())
    looking.check(0.0)
    clock.now = 2 * BLOCKED  # nobody could answer, and nobody could look
    looking.check(2 * BLOCKED)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Python stood still for 4.0 s: the process was stopped, or native code"
    )
    assert looking.lag == 0


async def test_a_loop_that_was_closed_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    looking = LoopMonitor(loop)
    loop.close()
    with caplog.at_level(logging.DEBUG):
        looking.check(0.0)
    assert looking.lag == 0
    assert not caplog.records


def test_the_place_is_the_programs_own() -> None:
    seen = []

    def default(value: object) -> str:
        seen.append(place_of(sys._getframe().f_back or sys._getframe()))  # as if it were within the library
        return ""

    json.dumps({"x": object()}, default=default)
    (place,) = seen
    assert place.startswith(f"{__name__}.test_the_place_is_the_programs_own:")
