"""Identities in a cluster: each host reads its own copy of the file, and all hosts know who guesses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cluster.conftest import new_hosts
from cluster.hosts import Hosts
from support.postgres import Postgres
from support.server import Server
from support.waiting import eventually
from support.web import client, events
from support.wire import ConnectionEnded, Wire, at_router

from bunqueue.server.audit.trail import Wanted, latest
from bunqueue.server.host.auth_throttle import DELAY_S, FREE
from bunqueue.server.identities import edit
from bunqueue.server.identities.identity_file import IdentityRow

ROUTERS = (0, 1)
GUESSER = "127.0.0.9"  # not the address of the other tests
PATIENCE_S = 60.0


class Guarded:
    """Two hosts with two routers each, and a copy of the same identities at each."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.paths = {name: str(folder / f"{name}.toml") for name in "ab"}
        self.tokens: dict[str, str] = {}
        self.add("boss", IdentityRow("admin"))
        for name, path in self.paths.items():
            flags = ("--identities", path, "--routers", "2")
            hosts.make(name, *flags, http=True).launch()
        for server in hosts.servers.values():
            server.until_ready()
        hosts.until_shared("a", "b")

    def add(self, name: str, row: IdentityRow) -> None:
        """Make an identity at both hosts."""
        made = edit.make_token()
        row.tokens = [made.row]
        self.tokens[name] = made.text
        self.write(name, row)

    def write(self, name: str, row: IdentityRow | None) -> None:
        for path in self.paths.values():
            edit.change(path, name, lambda _: row)

    async def wire(self, host: str, router: int, name: str) -> Wire:
        return await at_router(self.hosts.servers[host].address, router, self.tokens[name])

    async def until_known(self, name: str) -> None:
        """Until each router and gateway of both hosts knows an identity."""
        for server in self.hosts.servers.values():
            await eventually(lambda server=server: self._is_known(server, name), f"{name} is known")  # type: ignore[misc]

    async def _is_known(self, server: Server, name: str) -> bool:
        async with AsyncExitStack() as stack:
            for router in ROUTERS:
                wire = await stack.enter_async_context(
                    await at_router(server.address, router, self.tokens["boss"])
                )
                if not (await wire.call("Auth", token=self.tokens[name]))["ok"]:
                    return False
            web = await stack.enter_async_context(client(server, self.tokens[name]))
            return bool((await web.get("/health")).json()["role"] != "nobody")


@pytest.fixture(scope="module")
def guarded(store_cluster: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("identities")
    with new_hosts(store_cluster, folder) as hosts:
        yield Guarded(hosts, folder)


async def test_an_address_that_guesses_at_one_host_waits_at_the_other(guarded: Guarded) -> None:
    """The first test of these hosts, as they count for a minute from the first wrong token on."""
    a, b = (guarded.hosts.servers[name] for name in "ab")

    async def guess(server: Server) -> float:
        begun = time.monotonic()
        async with await Wire.open(server.address, source=GUESSER) as wire:
            assert await wire.error("Auth", token="wrong") == "Invalid token"
        return time.monotonic() - begun

    for _ in range(FREE):
        await guess(a)
    tried = 1
    while await guess(b) < DELAY_S:  # the other host may not know of the last ones yet
        tried += 1
        assert tried < FREE, "one more is too many, wherever it is presented"
    transport = httpx2.AsyncHTTPTransport(local_address=GUESSER)
    async with client(b, "wrong", transport=transport) as web:
        begun = time.monotonic()
        assert (await web.get("/queues")).status_code == 401
        assert time.monotonic() - begun >= DELAY_S, "over HTTP, too"

    def counted() -> list[int]:
        found = [latest(str(server.data_dir), Wanted(who=GUESSER), 100) for server in (a, b)]
        return [sum(int(entry.count or 0) for entry in entries) for entries in found]

    await eventually(lambda: counted() == [FREE, tried + 1], "each host has what was tried at it")


async def test_a_job_has_its_identity_whichever_host_owns_its_shard(guarded: Guarded) -> None:
    guarded.add("loader", IdentityRow("producer"))
    await guarded.until_known("loader")
    for host, owner, router in product("ab", "ab", ROUTERS):
        queue = guarded.hosts.queue_of(owner)
        async with await guarded.wire(host, router, "loader") as loader:
            job = (await loader.ok("PUSH", queue=queue, data=1))["id"]
        async with await guarded.wire(owner, 0, "boss") as boss:
            assert (await boss.ok("GetJob", id=job))["job"]["addedBy"] == "loader"


async def test_a_revoked_identity_ends_at_each_router_of_each_host(guarded: Guarded) -> None:
    guarded.add("leaves", IdentityRow("admin"))
    await guarded.until_known("leaves")
    async with AsyncExitStack() as stack:
        stays = [
            await stack.enter_async_context(await guarded.wire(host, router, "boss"))
            for host, router in product("ab", ROUTERS)
        ]
        ends: list[Any] = []
        for host, router in product("ab", ROUTERS):
            wire = await stack.enter_async_context(await guarded.wire(host, router, "leaves"))
            # Waiting at a shard of this host, and at one of the other.
            polls = [
                wire.send("PULL", queue=guarded.hosts.queue_of(owner), timeout=120_000) for owner in "ab"
            ]
            await wire.ok("Ping")
            ends.append(_ended(wire, polls))
        for server in guarded.hosts.servers.values():
            web = await stack.enter_async_context(client(server, guarded.tokens["leaves"]))
            ends.append(_stream_ended(await stack.enter_async_context(events(web))))
        guarded.write("leaves", None)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*ends)
        for wire in stays:
            await wire.ok("Ping")
    for server in guarded.hosts.servers.values():
        async with await Wire.open(server.address) as wire:
            assert await wire.error("Auth", token=guarded.tokens["leaves"]) == "Invalid token"


async def _ended(wire: Wire, polls: list[Any]) -> None:
    await wire.until_ended()
    for poll in polls:
        with suppress(ConnectionEnded):
            await poll


async def _stream_ended(stream: Any) -> None:
    with suppress(EOFError, httpx2.HTTPError):
        while True:
            await stream.next()
