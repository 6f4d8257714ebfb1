"""A disk that is really full, under a server that really runs.

Needs the right to mount a small file system; without it the tests are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.server import StartServer, quiet_port
from support.small_disks import small_disk
from support.waiting import eventually
from support.wire import Wire

DATA = "x" * 2000
DONE = 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    with small_disk(tmp_path, "tmpfs", 20) as folder:
        yield folder


async def push_until_refused(wire: Wire, queue: str) -> tuple[list[str], str]:
    """Ids of the jobs that were accepted, and the refusal."""
    ids: list[str] = []
    while True:
        reply = await wire.call("PUSHB", queue=queue, jobs=[{"data": DATA}] * 20)
        if not reply["ok"]:
            return ids, reply["error"]
        ids += reply["ids"]


async def test_a_full_disk_and_its_end(disk: Path, make_server: StartServer) -> None:
    filler = disk / "filler"
    filler.write_bytes(bytes(8 << 20))
    server = make_server(data_dir=disk / "data", shards=1, port=quiet_port())
    server.start()
    before = [process.pid for process in server.shard_processes()]
    wire = await Wire.open(server.address)
    small = (await wire.ok("PUSH", queue="small", data=1))["id"]
    ids, error = await push_until_refused(wire, "big")
    assert len(ids) > 100
    assert error.startswith("Storage is full (")
    assert f"free space on {disk}" in error

    # Pushes are refused, and say why; what is there can be read, and worked on.
    assert (await wire.error("PUSH", queue="big", data=1)).startswith("Storage is full")
    status = (await wire.ok("StorageStatus"))["data"]
    assert (status["diskFull"], status["code"]) == (True, "STORAGE_FULL")
    assert status["error"].startswith("Storage is full (")
    assert (await wire.ok("GetJob", id=small))["job"]["data"] == 1
    for job in ids[:DONE]:
        pulled = await wire.ok("PULL", queue="big", owner="w")
        assert pulled["job"]["id"] == job
        await wire.ok("ACK", id=job, token=pulled["token"])

    # It passes when there is space again.
    filler.unlink()

    async def accepted() -> bool:
        return bool((await wire.call("PUSH", queue="small", data=2))["ok"])

    await eventually(accepted, "pushes are accepted again")
    status = (await wire.ok("StorageStatus"))["data"]
    assert (status["diskFull"], status["error"], status["since"]) == (False, None, None)
    assert [process.pid for process in server.shard_processes()] == before, "no shard has died"
    assert "storage works again" in server.log()

    # All of it is stored.
    await wire.close()
    server.kill_all()
    server.restart()
    wire = await Wire.open(server.address)
    counts = (await wire.ok("GetJobCounts", queue="big"))["counts"]
    assert (counts["waiting"], counts["completed"], counts["active"]) == (len(ids) - DONE, DONE, 0)
    assert (await wire.ok("GetState", id=ids[DONE - 1]))["state"] == "completed"
    assert (await wire.ok("GetState", id=ids[-1]))["state"] == "waiting"
    await wire.close()


async def test_a_disk_without_any_room_can_still_be_read(disk: Path, make_server: StartServer) -> None:
    """Somebody else takes even the space that was set aside."""
    server = make_server(data_dir=disk / "data", shards=1, port=quiet_port())
    server.start()
    wire = await Wire.open(server.address)
    ids = (await wire.ok("PUSHB", queue="q", jobs=[{"data": n} for n in range(100)]))["ids"]
    reserve = disk / "data" / "shard-00.reserve"
    filler = disk / "filler"
    reserve.unlink()
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    poll = wire.send("PULL", queue="empty", timeout=60_000)
    assert (await wire.error("PUSHB", queue="q", jobs=[{"data": DATA}] * 200)).startswith("Storage is full")
    assert (await wire.error("PULLB", queue="q", count=100)).startswith("Storage is full")
    assert (await poll)["error"].startswith("Storage is full")
    assert (await wire.error("ACK", id=ids[0])) != ""
    jobs = (await wire.ok("GetJobs", queue="q"))["jobs"]
    assert [job["data"] for job in jobs] == list(range(100))
    filler.unlink()

    async def accepted() -> bool:
        return bool((await wire.call("PUSH", queue="q", data=100))["ok"])

    await eventually(accepted, "pushes are accepted again")
    pulled = await wire.ok("PULLB", queue="q", count=1000)
    assert [job["data"] for job in pulled["jobs"]] == list(range(101))
    assert "shard ended" not in server.log()
    await wire.close()
