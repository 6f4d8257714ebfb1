"""Wrong tokens over HTTP: whoever guesses waits, however many guesses are under way."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.server import StartServer, quiet_port
from support.web import client
from support.wire import Wire

from bunqueue.gateway.http import access
from bunqueue.gateway.http.connections import Connection, Waiting
from bunqueue.server.host.auth_throttle import DELAY_S, FREE
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


async def test_who_guesses_is_slowed_down_over_http_and_tcp_together(make_server: StartServer) -> None:
    flags = ("--auth-token", "right", "--routers", "2")
    server = make_server(*flags, http_port=quiet_port(), shards=1)

    async def over_tcp(count: int) -> None:
        for _ in range(count):
            async with await Wire.open(server.address) as wire:
                await wire.call("Auth", token="wrong")

    async def over_http(count: int) -> None:
        async with client(server, "wrong") as web:
            for _ in range(count):
                assert (await web.get("/queues")).status_code == 401

    for first, second in ((over_tcp, over_http), (over_http, over_tcp)):
        server.start()
        await first(FREE)
        begun = time.monotonic()
        await second(3)
        assert time.monotonic() - begun >= DELAY_S, "guesses at the other port count"
        server.stop()
