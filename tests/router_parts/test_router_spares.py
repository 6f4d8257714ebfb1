"""Processes that wait to be told which shard they are: there when needed, and gone with the router."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator

import pytest
from support.waiting import eventually

from router import spares
from router.spares import Spares

ECHO = (sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.read()))")  # told something, it ends


@pytest.fixture
async def two(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Spares]:
    monkeypatch.setattr(spares, "FILL_S", 0.0)
    made = Spares(ECHO, 2)
    first = await made.take()
    await eventually(lambda: len(made._waiting) == 2, "two wait")
    assert await tell(first, b"") == 0
    yield made
    await made.stop()
    await made.stop()
    assert not made._waiting


async def tell(process: asyncio.subprocess.Process, text: bytes) -> int:
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.close()
    return await process.wait()


async def test_one_that_waits_is_taken_and_replaced(two: Spares) -> None:
    waiting = list(two._waiting)
    taken = await two.take()
    assert taken is waiting[1]
    assert await tell(taken, b"shard") == 5
    await eventually(lambda: len(two._waiting) == 2, "another waits")
    assert taken not in two._waiting


async def test_one_that_has_died_is_not_taken(two: Spares) -> None:
    waiting = list(two._waiting)
    for process in waiting:
        process.kill()
        await process.wait()
    taken = await two.take()
    assert taken not in waiting
    assert await tell(taken, b"shard") == 5


async def test_they_end_when_the_router_stops(two: Spares) -> None:
    waiting = list(two._waiting)
    await two.stop()
    assert [process.returncode for process in waiting] == [-signal.SIGKILL] * 2


async def test_none_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares, "FILL_S", 0.0)
    none = Spares(ECHO, 0)
    taken = await none.take()
    assert none._timer is None
    assert await tell(taken, b"") == 0
