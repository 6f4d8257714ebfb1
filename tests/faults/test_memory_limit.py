"""A shard at its memory limit refuses what grows, lets all else go on, and takes jobs again in the end."""

from __future__ import annotations

from support.naming import queue_on
from support.procfs import resident
from support.server import StartServer
from support.waiting import eventually
from support.wire import Reply, Wire

from bunqueue.cli.commands.top.numbers import samples_of
from bunqueue.server.host.machine_memory import MIB, share_of

LIMIT_MIB = 256
SHARE = share_of(LIMIT_MIB * MIB, 2)
JOBS = [{"data": "x" * 2000, "removeOnComplete": True}] * 500
ZERO = frozenset({("shard", "0")})
QUEUE, OTHER = queue_on(0, "full"), queue_on(1, "roomy")


async def fill(wire: Wire) -> Reply:
    """Push until it is refused; the refusal."""
    for _ in range(1000):
        reply = await wire.call("PUSHB", queue=QUEUE, jobs=JOBS)
        if not reply["ok"]:
            return reply
    raise AssertionError("half a million jobs were accepted")


async def accepts(wire: Wire) -> bool:
    return bool((await wire.call("PUSH", queue=QUEUE, data=1))["ok"])


async def work_off(wire: Wire) -> int:
    """Pull and ack all there is."""
    count = 0
    while jobs := (reply := await wire.ok("PULLB", queue=QUEUE, count=1000, owner="w"))["jobs"]:
        await wire.ok("ACKB", ids=[job["id"] for job in jobs], tokens=reply["tokens"])
        count += len(jobs)
    return count


async def test_full_worked_off_and_full_again(make_server: StartServer) -> None:
    server = make_server("--memory-limit", f"{LIMIT_MIB}M")
    server.start()
    shard = server.shard(0)
    async with await Wire.open(server.address) as wire:
        for turn in range(3):
            refusal = await fill(wire)
            assert refusal["code"] == "MEMORY_LIMIT"
            assert f"of {SHARE // MIB} MiB" in refusal["error"]
            assert "raise --memory-limit" in refusal["error"]
            assert resident(shard.pid) < 1.25 * SHARE
            samples = samples_of((await wire.ok("Prometheus"))["data"]["metrics"])
            assert samples[("shard_memory_full", ZERO)] == 1
            assert samples[("shard_memory_limit_bytes", ZERO)] == SHARE
            assert (await wire.ok("PUSH", queue=OTHER, data=1))["ok"], "the other shard has room"
            if turn == 2:
                await wire.ok("Drain", queue=QUEUE)
            else:
                assert await work_off(wire) > 5000
            await eventually(lambda: accepts(wire), "jobs are accepted again")
    log = server.log()
    assert log.index("memory is getting short") < log.index("memory limit is reached")
    assert log.count("there is memory again") == log.count("memory limit is reached")
    assert server.shard(0).pid == shard.pid


async def test_a_shard_that_starts_full_serves_and_refuses(make_server: StartServer) -> None:
    server = make_server("--memory-limit", f"{LIMIT_MIB}M")
    server.start()
    async with await Wire.open(server.address) as wire:
        await fill(wire)
    server.kill_shards(only=0)
    server.shard(0)
    async with await Wire.open(server.address) as wire:

        async def up() -> bool:
            return bool((await wire.call("Count", queue=QUEUE))["ok"])

        await eventually(up, "the shard is back")
        assert await work_off(wire) > 5000
        await eventually(lambda: accepts(wire), "jobs are accepted again")
