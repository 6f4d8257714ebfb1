"""Who looks out before it sleeps, and who does not."""

from __future__ import annotations

import asyncio
import time

import pytest

from bunqueue.server.host import busy_poll
from bunqueue.server.host.busy_poll import LoopPoll

WINDOW_US = 200_000  # long, so that a slow machine changes nothing


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When it gave way to others, as it does each time that it has seen nothing."""
    moments: list[float] = []
    monkeypatch.setattr(busy_poll, "give_way", lambda: moments.append(time.monotonic()))
    return moments


async def test_what_is_heard_once_is_slept_on(looks: list[float]) -> None:
    LoopPoll(WINDOW_US).on_read(100)
    await asyncio.sleep(0.01)  # in which it would look
    assert looks == []


async def test_what_is_heard_again_at_once_is_looked_out_for_and_then_slept_on(looks: list[float]) -> None:
    poll = LoopPoll(WINDOW_US)
    begun = time.monotonic()
    poll.on_read(100)
    poll.on_read(100)
    await asyncio.sleep(2 * WINDOW_US / 1e6)  # the window
    assert looks
    seen = len(looks)
    assert looks[-1] - begun >= WINDOW_US / 1e6 / 2
    await asyncio.sleep(0.01)  # in which it would look
    assert len(looks) == seen


async def test_a_window_of_nothing_never_looks(looks: list[float]) -> None:
    poll = LoopPoll(0)
    poll.on_read(100)
    poll.on_read(100)
    await asyncio.sleep(0.01)  # in which it would look
    assert looks == []


async def test_much_at_once_is_not_looked_out_for(looks: list[float]) -> None:
    poll = LoopPoll(WINDOW_US)
    for _ in range(3):
        poll.on_read(busy_poll.SMALL + 1)
    await asyncio.sleep(0.01)  # in which it would look
    assert looks == []
