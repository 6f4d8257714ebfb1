"""A disk that fails for a while: what it cannot do is refused, the processes stay, and it passes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from support.bad_disk import BadDisk
from support.cli import Cli
from support.naming import queue_on
from support.server import Server, StartServer
from support.waiting import eventually, wait_until
from support.wire import Reply, Wire

from bunqueue.cli.commands.top.numbers import samples_of
from bunqueue.protocol.codes import Code


@pytest.fixture
def disk(tmp_path: Path) -> BadDisk:
    folder = tmp_path / "rules"
    folder.mkdir()
    return BadDisk(folder)


@pytest.fixture
def server(disk: BadDisk, make_server: StartServer) -> Server:
    return started(make_server, disk, shards=2)


def started(make_server: StartServer, disk: BadDisk, shards: int = 1) -> Server:
    """A server on this disk."""
    server = make_server(shards=shards)
    server.environ = disk.environ
    server.start()
    return server


async def accepted(wire: Wire, **fields: object) -> Reply:
    """The reply to a command that is refused for a while."""
    found: list[Reply] = []

    async def is_accepted() -> bool:
        found.append(await wire.call(**fields))
        return bool(found[-1]["ok"])

    await eventually(is_accepted, "it is accepted again")
    return found[-1]


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT], ids=["EIO", "EDQUOT"])
async def test_a_flush_that_fails(server: Server, disk: BadDisk, number: int) -> None:
    wire = await Wire.open(server.address)
    here = queue_on(0)
    push = {"cmd": "PUSH", "queue": here, "data": 1, "durable": True}
    before = [process.pid for process in server.shard_processes()]
    kept = (await wire.ok(**push))["id"]
    with disk.failing("sync", number, "-wal"):
        code = Code.STORAGE_FAILED if number == errno.EIO else Code.STORAGE_FULL
        for own in ("", "a", "b", "c"):  # ids of which some are the other shard's business
            reply = await wire.call(**push, **({"jobId": own} if own else {}))
            assert reply["code"] == code, reply
        assert "cannot be flushed" in reply["error"]
        assert (await wire.ok("GetJob", id=kept))["job"]["data"] == 1
    await accepted(wire, **push, jobId="d")
    assert (await wire.ok("GetJob", id="d"))["job"]["data"] == 1
    await wire.ok(**push)
    assert [process.pid for process in server.shard_processes()] == before
    assert "Traceback" not in server.log()
    await wire.close()


async def test_checkpoints_that_fail_are_told(disk: BadDisk, make_server: StartServer) -> None:
    server = started(make_server, disk)
    wire = await Wire.open(server.address)
    jobs = [{"data": "x" * 100_000}] * 40

    async def figure() -> float:
        samples = samples_of((await wire.ok("Prometheus"))["data"]["metrics"])
        return samples["sqlite_checkpoint_failures_total", frozenset({("shard", "0")})]

    async def fails() -> bool:
        await wire.ok("PUSHB", queue="q", jobs=jobs)
        return await figure() > 0

    async def works() -> bool:
        return not (await wire.ok("StorageStatus"))["data"]["warnings"]

    assert await figure() == 0
    with disk.failing("write", errno.EIO, ".db"):
        await eventually(fails, "a checkpoint fails")
        (warning,) = (await wire.ok("StorageStatus"))["data"]["warnings"]
        assert "cannot be copied into" in warning
        found = {row["check"]: row for row in Cli(server).json("doctor")}
        assert found["disk"]["status"] == "warning"
        assert "cannot be copied into" in found["disk"]["finding"]
        assert "the WAL cannot be copied into the database" in server.log()
    await eventually(works, "checkpoints work again")
    await wire.close()


async def test_a_used_up_quota_is_a_full_disk(disk: BadDisk, make_server: StartServer) -> None:
    server = started(make_server, disk)  # of several shards, one that hears of another right then starts anew
    wire = await Wire.open(server.address)
    push = {"cmd": "PUSH", "queue": queue_on(0), "data": 1}
    kept = (await wire.ok(**push))["id"]
    with disk.failing("write", errno.EDQUOT, "*"):
        reply = await wire.call(**push)
        assert reply["code"] == Code.STORAGE_FULL, reply
        assert (await wire.ok("GetJob", id=kept))["job"]["data"] == 1
        assert (await wire.ok("StorageStatus"))["data"]["diskFull"]
    await accepted(wire, **push)
    await wire.close()


async def test_reading_that_fails_is_no_damage(disk: BadDisk, make_server: StartServer) -> None:
    server = started(make_server, disk)
    wire = await Wire.open(server.address)
    jobs = [{"data": "x" * 2_000}] * 500
    ids = (await wire.ok("PUSHB", queue="q", jobs=jobs))["ids"]
    for _ in range(5):
        pulled = await wire.ok("PULLB", queue="q", count=100, owner="w")
        await wire.ok("ACKB", ids=[job["id"] for job in pulled["jobs"]], tokens=pulled["tokens"])
    await wire.close()
    server.stop()  # what was in memory has to be read
    server.start()
    before = [process.pid for process in server.shard_processes()]
    wire = await Wire.open(server.address)
    with disk.failing("read", errno.EIO, ".db"):
        for job_id in ids[::50]:
            reply = await wire.call("GetJob", id=job_id)
            assert reply["code"] == Code.STORAGE_FAILED, reply
            assert "Storage fails (" in reply["error"]
    for job_id in ids[::50]:
        assert (await wire.ok("GetJob", id=job_id))["job"]["data"] == jobs[0]["data"]
    assert [process.pid for process in server.shard_processes()] == before
    found = {row["check"]: row["status"] for row in Cli(server).json("doctor")}
    assert (found["files"], found["storage"]) == ("ok", "ok")
    await wire.close()


async def test_a_start_that_cannot_read_is_repeated(disk: BadDisk, make_server: StartServer) -> None:
    server = started(make_server, disk)
    wire = await Wire.open(server.address)
    job_id = (await wire.ok("PUSH", queue="q", data=1))["id"]
    await wire.close()
    (process,) = server.shard_processes()
    with disk.failing("read", errno.EIO, ".db"):
        process.kill()
        wait_until(lambda: "cannot open the data" in server.log(), "the shard tries to start")

    async def there() -> bool:
        return bool((await wire.call("GetJob", id=job_id))["ok"])

    wire = await Wire.open(server.address)
    await eventually(there, "the shard is back")
    assert "out of service" not in server.log()
    await wire.close()
