"""Another program holds the write lock of a shard's file: changes are refused, and it passes by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import Cli
from support.naming import queue_on
from support.server import StartServer
from support.waiting import eventually, wait_until
from support.wire import Wire
from support.write_lock import write_locked

from bunqueue import Queue
from bunqueue.errors import CommandFailed, StorageError
from bunqueue.protocol.codes import Code


async def test_changes_are_refused_reads_go_on_and_it_passes(
    tmp_path: Path, make_server: StartServer
) -> None:
    server = make_server(shards=2)
    server.start()
    wire = await Wire.open(server.address)
    here, there = queue_on(0), queue_on(1)
    parent = (await wire.ok("PUSH", queue=here, data=1))["id"]
    # Work between both shards is under way: one waits for a job of the other, and a pull waits.
    await wire.ok("PUSH", queue=there, data=2, dependsOn=[parent])
    own = [f"own-{number}" for number in range(4)]  # ids of which some are the other shard's business
    for number, job_id in enumerate(own):
        await wire.ok("PUSH", queue=here, data=number, jobId=job_id)
    waiting = await Wire.open(server.address)
    parked = waiting.send("PULL", queue=queue_on(0, "empty"), owner="w", timeout=60_000)
    await waiting.ok("Ping")
    before = [process.pid for process in server.shard_processes()]
    file = Path(server.data_dir) / "shard-00.db"
    with write_locked(file) as holder:
        for command in (
            {"cmd": "PUSH", "queue": here, "data": 1},
            {"cmd": "PUSH", "queue": here, "data": 1, "durable": True},
            {"cmd": "PULL", "queue": here},
            {"cmd": "Pause", "queue": here},
        ):
            reply = await wire.call(**command)
            assert reply["code"] == Code.STORAGE_LOCKED, reply
            assert str(file) in reply["error"]
            assert f"process {holder} (python" in reply["error"]
        assert (await parked)["code"] == Code.STORAGE_LOCKED
        for _ in range(20):
            assert (await wire.ok("GetJob", id=parent))["job"]["data"] == 1
            assert (await wire.ok("GetJobs", queue=here))["jobs"]
        for number, job_id in enumerate(own):
            assert (await wire.ok("GetJob", id=job_id))["job"]["data"] == number
            assert (await wire.ok("GetState", id=job_id))["state"] == "waiting"
            assert (await wire.call("Cancel", id=job_id))["code"] == Code.STORAGE_LOCKED
        await wire.ok("PUSH", queue=there, data=4)
        status = (await wire.ok("StorageStatus"))["data"]
        assert (status["code"], status["diskFull"]) == (Code.STORAGE_LOCKED, False)
        found = {row["check"]: row for row in Cli(server).json("doctor", status=1)}
        assert f"process {holder}" in found["storage"]["finding"]
        assert "another program has locked the file" in server.log()

    async def accepted() -> bool:
        return bool((await wire.call("PUSH", queue=here, data=1))["ok"])

    await eventually(accepted, "pushes are accepted again")
    pulled = await wire.ok("PULL", queue=here, owner="w")
    await wire.ok("ACK", id=pulled["job"]["id"], token=pulled["token"])
    assert (await wire.ok("GetJobCounts", queue=there))["counts"][
        "waiting"
    ] == 2  # one waited for the other shard
    assert [process.pid for process in server.shard_processes()] == before
    assert "Traceback" not in server.log()
    await wire.close()
    await waiting.close()


def test_a_server_starts_when_the_lock_has_gone(tmp_path: Path, make_server: StartServer) -> None:
    server = make_server(shards=2)
    server.start()
    server.stop()
    with write_locked(Path(server.data_dir) / "shard-00.db") as holder:
        server.launch()
        wait_until(lambda: f"process {holder}" in server.log(), "the log says who holds it")
    server.until_ready()


def test_an_embedded_queue_refuses_changes(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    with Queue("q", embedded=True, data_path=file) as queue:
        job = queue.add("n", 1)
        with write_locked(file) as holder:
            with pytest.raises(CommandFailed, match=f"process {holder}") as refused:
                queue.add("n", 2)
            assert refused.value.code == Code.STORAGE_LOCKED
            assert job.state() == "waiting"
        assert queue.add("n", 3).state() == "waiting"
        assert queue.count() == 2
    with write_locked(file), pytest.raises(StorageError, match="locked for writing"):
        Queue("q", embedded=True, data_path=file).count()
