"""The bounds of a namespace at the router: what is refused, and that nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from server.test_namespaces import Tenants
from support.server import dispose
from support.waiting import eventually
from support.wire import Wire

from bunqueue import Job, Worker

BOUNDS = """
[namespaces.acme]
connections = 3
commands = 40
payload = 2000
"""


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    made = Tenants(tmp_path_factory.mktemp("bounds"), routers=1)
    made.write(made.text + BOUNDS)
    try:
        made.server.start()
        yield made
    finally:
        dispose(made.server)


async def test_commands_beyond_the_bound_are_refused_until_the_next_second(bounded: Tenants) -> None:
    async with bounded.wires("acme", "beta") as (acme, beta):
        refused = []
        while not refused:  # a busy machine may take so long for some that a second passes
            replies = await asyncio.gather(*(acme.call("Ping") for _ in range(200)))
            refused = [reply for reply in replies if not reply["ok"]]
        for reply in refused:
            assert (reply["code"], reply["field"], reply["bound"]) == ("QUOTA", "commands", 40)
            assert reply["value"] == 40
            assert 1 <= reply["retryAfter"] <= 1000
            assert reply["error"].startswith("the namespace acme has sent 40 commands within this second")
        assert all(reply["ok"] for reply in await asyncio.gather(*(beta.call("Ping") for _ in range(200))))
        await eventually(lambda: pings(acme), "another second has begun")


async def pings(wire: Wire) -> bool:
    return bool((await wire.call("Ping"))["ok"])


async def test_a_command_that_is_too_large_is_refused(bounded: Tenants) -> None:
    async with bounded.wires("acme", "beta") as (acme, beta):
        fields = {"queue": "big", "data": "x" * 3000}
        await eventually(lambda: pings(acme), "another second has begun")
        reply = await acme.call("PUSH", **fields)
        assert (reply["code"], reply["field"], reply["bound"]) == ("QUOTA", "payload", 2000)
        assert reply["value"] > 3000
        assert "retryAfter" not in reply
        await beta.ok("PUSH", **fields)


async def test_connections_beyond_the_bound_are_refused(bounded: Tenants) -> None:
    async with bounded.wires("acme", "acme", "beta") as (*_, third):

        async def enters() -> bool:
            async with await Wire.open(bounded.server.address) as wire:
                reply = await wire.call("Auth", token=bounded.tokens["acme"])
                if not reply["ok"]:
                    assert (reply["code"], reply["field"]) == ("QUOTA", "connections")
                    assert (reply["value"], reply["bound"]) == (3, 3)
                    assert (await wire.call("Ping"))["code"] == "NOT_AUTHENTICATED"
                return bool(reply["ok"])

        async with await Wire.open(bounded.server.address) as wire:
            await eventually(lambda: authenticates(wire, bounded), "connections of other tests have ended")
            assert not await enters()
            await third.ok("Ping")
        await eventually(enters, "one has ended")


async def authenticates(wire: Wire, bounded: Tenants) -> bool:
    return bool((await wire.call("Auth", token=bounded.tokens["acme"]))["ok"])


async def test_requests_over_http_count_as_well(bounded: Tenants) -> None:
    async with bounded.web("acme") as acme, bounded.web("beta") as beta:
        refused = []
        while not refused:
            replies = await asyncio.gather(*(acme.get("/queue-names") for _ in range(100)))
            refused = [reply for reply in replies if reply.status_code != 200]
        assert {(reply.status_code, reply.json()["code"]) for reply in refused} == {(429, "QUOTA")}
        assert refused[0].json()["retryAfter"] >= 1
        replies = await asyncio.gather(*(beta.get("/queue-names") for _ in range(100)))
        assert {reply.status_code for reply in replies} == {200}


async def test_a_worker_reports_what_was_refused_again(bounded: Tenants) -> None:
    """All jobs complete, though more of their outcomes come in a second than are accepted."""
    host, port = bounded.server.address
    where = {"host": host, "port": port, "token": bounded.tokens["acme"]}
    async with bounded.wires("root") as (root,):
        for _ in range(60):
            await root.ok("PUSH", queue="acme/many", data=1)

        async def handle(job: Job) -> None:
            await asyncio.gather(*(job.log(f"line {number}") for number in range(3)), return_exceptions=True)

        async def all_done() -> bool:
            counts = (await root.ok("GetJobCounts", queue="acme/many"))["counts"]
            return bool(counts["completed"] == 60)

        async with Worker("many", handle, concurrency=10, **where):
            await eventually(all_done, "all jobs have completed")


async def test_a_change_of_the_file_counts_for_open_connections(bounded: Tenants) -> None:
    async with bounded.wires("acme") as (acme,):
        bounded.write(bounded.text.replace("commands = 40", "commands = 100000"))

        async def all_pass() -> bool:
            replies = await asyncio.gather(*(acme.call("Ping") for _ in range(300)))
            return all(reply["ok"] for reply in replies)

        await eventually(all_pass, "the router has read the file")
