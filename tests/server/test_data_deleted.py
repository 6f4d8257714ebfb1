"""Data files that are deleted or replaced under a running server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.server import Server, StartServer
from support.waiting import wait_until
from support.wire import Wire

JOBS = 30


async def push(server: Server) -> None:
    wire = await Wire.open(server.address)
    await wire.ok("PUSHB", queue="q", jobs=[{"data": number} for number in range(JOBS)])
    wire.abort()


async def count(server: Server) -> int:
    wire = await Wire.open(server.address)
    found: int = (await wire.ok("Count", queue="q"))["count"]
    wire.abort()
    return found


@pytest.fixture
async def server(make_server: StartServer) -> Server:
    """A running server of one shard, with jobs of which some are in the log alone."""
    server = make_server(shards=1)
    server.start()
    await push(server)
    return server


def said(server: Server, text: str) -> None:
    wait_until(lambda: text in server.log(), f"the log says: {text}")


def remove(folder: Path, names: str) -> None:
    for file in sorted(folder.glob(names)):
        file.unlink()


def move(place: Path, other: Path) -> None:
    place.rename(other)


@pytest.mark.parametrize("names", ["shard-00.db", "shard-00.db-wal", "shard-00.db*"])
async def test_what_was_deleted_is_written_anew(server: Server, names: str) -> None:
    folder, before = Path(server.data_dir), server.shard(0).pid
    remove(folder, names)
    said(server, "it was written again, with all that was acknowledged")
    wait_until(lambda: "shard ready" in server.log().rpartition("written again")[2], "the shard is back")
    assert server.shard(0).pid != before
    assert await count(server) == JOBS
    await push(server)
    server.kill_all()
    server.start()
    assert await count(server) == 2 * JOBS
    assert "Traceback" not in server.whole_log()


async def test_a_folder_that_is_gone_for_a_while(server: Server, tmp_path: Path) -> None:
    folder = Path(server.data_dir)
    move(folder, tmp_path / "elsewhere")
    said(server, "pushes are refused: they would be lost")
    wire = await Wire.open(server.address)
    refused = await wire.send("PUSH", queue="q", data=1)
    assert refused["code"] == "STORAGE_FAILED"
    assert "shard-00.db was deleted while the server runs" in refused["error"]
    assert "was deleted" in (await wire.ok("StorageStatus"))["data"]["error"]
    job = await wire.ok("PULL", queue="q", owner="w")
    await wire.ok("ACK", id=job["job"]["id"], token=job["token"])
    move(tmp_path / "elsewhere", folder)
    said(server, "storage works again")
    await wire.ok("PUSH", queue="q", data=1)
    wire.abort()
    server.kill_all()
    server.start()
    assert await count(server) == JOBS + 1  # with the completed one


async def test_another_file_in_its_place_is_not_touched(server: Server, tmp_path: Path) -> None:
    folder = Path(server.data_dir)
    other = folder / "shard-00.db"
    shutil.copy(other, tmp_path / "old")
    move(tmp_path / "old", other)
    bytes_before = other.read_bytes()
    said(server, "was replaced by another file while the server runs")
    wire = await Wire.open(server.address)
    refused = await wire.send("PUSH", queue="q", data=1)
    wire.abort()
    assert refused["code"] == "STORAGE_FAILED"
    assert f"copied to {folder}/shard-00.db.rescued; stop the server" in refused["error"]
    server.kill_all()
    assert other.read_bytes() == bytes_before
    remove(folder, "shard-00.db-*")
    move(folder / "shard-00.db.rescued", other)
    server.start()
    assert await count(server) == JOBS
