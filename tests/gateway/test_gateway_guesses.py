"""Wrong tokens over HTTP: whoever guesses waits, however many guesses are under way."""

from __future__ import annotations

import asyncio

import pytest

from bunqueue.gateway.http import access
from bunqueue.gateway.http.connections import Connection, Waiting
from bunqueue.server.host.auth_throttle import FREE
from bunqueue.server.settings.settings import Settings


async def test_every_guess_beyond_the_first_few_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, over = 0, asyncio.Event()

    async def sleep(seconds: float) -> None:
        nonlocal slept
        slept += 1
        await over.wait()

    monkeypatch.setattr(access.asyncio, "sleep", sleep)
    rules, spared = access.Access(Settings(auth_token=("right",))), 0

    def spare() -> None:
        nonlocal spared
        spared += 1

    guesses = [asyncio.ensure_future(rules.wrong_token("192.0.2.1", spare)) for _ in range(2000)]
    await asyncio.gather(*guesses[:FREE])
    assert (slept, spared) == (len(guesses) - FREE, len(guesses) - FREE)
    over.set()
    await asyncio.gather(*guesses)


def test_a_connection_that_is_slowed_down_gives_way() -> None:
    waiting = Waiting()
    slowed = Connection.__new__(Connection)
    slowed._waiting = waiting
    slowed._make_evictable()
    assert list(waiting.connections) == [slowed]
