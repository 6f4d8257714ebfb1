"""A client that closes its side after its commands gets its answers: `printf ... | nc -N`, one-shot scripts.

Nobody can tell it from a client whose process has ended, so it is given no job, and its jobs return at once.
"""

from __future__ import annotations

import asyncio

from support.server import Server
from support.waiting import eventually
from support.web import fresh_queue
from support.wire import Wire

LONG_MS = 3_600_000
MANY = 20_000  # commands: some are still on their way when the end comes


async def test_everything_is_answered_before_the_connection_ends(shared_server: Server) -> None:
    queues = [fresh_queue(0), fresh_queue(1)]
    asked = [
        *({"cmd": "PUSH", "queue": queues[number % 2], "data": number} for number in range(MANY)),
        {"cmd": "Stats"},
        {"cmd": "GetEvents", "limit": 1000},
        {"cmd": "Ping"},
        {"cmd": "Nonsense"},
        *({"cmd": "Count", "queue": queue} for queue in queues),
    ]
    async with await Wire.open(shared_server.address) as wire:
        answers = wire.send_many(asked)
        wire.write(b"\0\0\0\x10half a frame")
        wire.end_writing()
        found = await asyncio.gather(*answers)
        await wire.until_ended()
    assert [each["ok"] for each in found] == [*[True] * (MANY + 3), False, True, True]
    assert [each["count"] for each in found[-2:]] == [MANY // 2, MANY // 2]


async def test_a_poll_is_answered_at_once_and_gets_no_job_later(shared_server: Server) -> None:
    """Also those that had to wait for others, and what was sent behind them."""
    queue = fresh_queue()
    poll = {"cmd": "PULL", "queue": queue, "timeout": 60_000, "owner": "w"}
    async with (
        await Wire.open(shared_server.address) as wire,
        await Wire.open(shared_server.address) as other,
    ):
        answers = wire.send_many([*[poll] * 120, {"cmd": "Count", "queue": queue}])
        wire.end_writing()
        assert [each.get("job") for each in await asyncio.gather(*answers)] == [None] * 121
        await wire.until_ended()
        await other.ok("PUSH", queue=queue, data=1)
        assert (await other.ok("PULL", queue=queue))["job"]["data"] == 1


async def test_its_jobs_return_and_its_waits_are_answered(shared_server: Server) -> None:
    queue = fresh_queue()
    async with (
        await Wire.open(shared_server.address) as wire,
        await Wire.open(shared_server.address) as other,
    ):
        ids = [(await other.ok("PUSH", queue=queue, data=number))["id"] for number in range(2)]
        assert (await wire.ok("PULL", queue=queue, owner="w", lockTtl=LONG_MS))["job"]["id"] == ids[0]
        await wire.ok("SubscribeEvents", queue=queue)
        waits = wire.send_many({"cmd": "WaitJob", "id": each, "timeout": 60_000} for each in ids)
        wire.end_writing()

        async def is_back() -> bool:
            return bool((await other.ok("GetState", id=ids[0]))["state"] == "waiting")

        await eventually(is_back, "the job is not held any more")
        for job_id in ids:
            job = (await other.ok("PULL", queue=queue))["job"]
            assert job["id"] == job_id
            assert wire.alive
            await other.ok("ACK", id=job_id, result=job["data"])
        assert [each["result"] for each in await asyncio.gather(*waits)] == [0, 1]
        await wire.until_ended()
