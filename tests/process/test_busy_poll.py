"""When a process polls before it sleeps, and when it does not."""

from __future__ import annotations

import asyncio

import pytest

from bunqueue.server.host import busy_poll
from bunqueue.server.host.busy_poll import LoopPoll

WINDOW_US = 200


class Loop:
    """The clock of the poll, and the number of times it gave way to others, as it had seen nothing."""

    def __init__(self) -> None:
        self.now = 1_000_000_000  # ns
        self.looks = 0

    def monotonic_ns(self) -> int:
        return self.now

    def look(self) -> None:
        self.looks += 1

    async def turn(self, times: int = 10) -> int:
        """Let the event loop turn; the number of looks meanwhile."""
        before = self.looks
        for _ in range(times):
            await asyncio.sleep(0)
        return self.looks - before


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    loop = Loop()
    monkeypatch.setattr(busy_poll, "time", loop)
    monkeypatch.setattr(busy_poll, "give_way", loop.look)
    return loop


async def test_what_is_heard_once_is_slept_on(loop: Loop) -> None:
    LoopPoll(WINDOW_US).on_read(100)
    assert await loop.turn() == 0


async def test_what_is_heard_again_at_once_is_looked_out_for_and_then_slept_on(loop: Loop) -> None:
    poll = LoopPoll(WINDOW_US)
    poll.on_read(100)
    loop.now += 1000 * WINDOW_US - 1
    poll.on_read(100)
    assert await loop.turn() > 5
    loop.now += 1000 * WINDOW_US - 1
    assert await loop.turn() > 5
    loop.now += 1
    assert await loop.turn() == 0
    poll.on_read(100)  # after the window
    assert await loop.turn() == 0


async def test_a_window_of_nothing_never_looks(loop: Loop) -> None:
    poll = LoopPoll(0)
    poll.on_read(100)
    poll.on_read(100)
    assert await loop.turn() == 0


async def test_much_at_once_is_not_looked_out_for(loop: Loop) -> None:
    poll = LoopPoll(WINDOW_US)
    for _ in range(3):
        poll.on_read(busy_poll.SMALL + 1)
    assert await loop.turn() == 0
