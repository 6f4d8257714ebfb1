"""Watching an event loop from another thread."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time

import pytest
from support.waiting import eventually

from bunqueue.worker.locks import loop_monitor
from bunqueue.worker.locks.loop_monitor import LoopMonitor, place_of


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
    monkeypatch.setattr(loop_monitor, "BLOCKED", 0.05)
    looking = LoopMonitor(asyncio.get_running_loop())
    told: list[int] = []

    def look() -> None:
        end = time.monotonic() + 0.35
        while time.monotonic() < end:
            looking.check(0.0)
            told.append(len(caplog.records))
            time.sleep(0.005)  # between two looks

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()  # the loop is blocked
    assert 2 <= told[-1] <= 3  # at 0.05, 0.1 and 0.2 s
    assert looking.lag > 0.2
    await eventually(lambda: "loop continues after" in caplog.records[-1].getMessage(), "it goes on")


async def test_a_process_that_stood_still_is_not_a_blocked_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_monitor, "BLOCKED", 0.05)
    looking = LoopMonitor(asyncio.get_running_loop())
    looking.check(0.0)
    time.sleep(0.1)  # noqa: ASYNC251  # nobody can answer, and nobody can look
    looking.check(0.1)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Python stood still for 0.1 s: the process was stopped, or native code"
    )
    assert looking.lag < 0.05


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
