"""A folder full of everything, made by the server, under other numbers of shards: nobody notices.

The servers that made the folders were killed, so that the files are as untidy as they can be.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.budget import budget
from support.everything import QUEUES, Made, fill, shown, work_off
from support.folders import check_directory, contents, is_sound, opened
from support.server import NotStarted, Server, StartServer
from support.warm import COMMAND, ROOT, run
from support.wire import Wire

from bunqueue.server.folder.data_folder import RESHARD, read_identified
from shardproc.resharding import swap
from shardproc.resharding.build import build
from shardproc.resharding.inventory import Inventory

COUNTED = ("waiting", "delayed", "active", "waiting-children")


def reshard(folder: Path, shards: int, *flags: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    arguments = ["reshard", "--data-dir", str(folder), "--shards", str(shards), *flags]
    result = run([*COMMAND, *arguments], env={"PYTHONPATH": str(ROOT)}, cwd=folder.parent)
    assert result.returncode == status, result
    return result


async def client(server: Server) -> Wire:
    wire = await Wire.open(server.address)
    await wire.ok("Hello", protocolVersion=3)
    return wire


@pytest.mark.parametrize("numbers", [(4, 2, 4), *budget([], [(2, 4), (1, 8), (8, 1)])], ids=str)
async def test_nobody_notices(make_server: StartServer, tmp_path: Path, numbers: tuple[int, ...]) -> None:
    folder = tmp_path / "data"
    server = make_server(data_dir=folder, shards=numbers[0])
    server.start()
    async with await client(server) as wire:
        made = await fill(wire)
        before = await shown(wire, made)
        server.kill_all()
    server.until_gone()
    stored = contents(folder)

    for shards in numbers[1:]:
        reshard(folder, shards)
        assert contents(folder) == stored
        assert is_sound(folder)
        assert can_shrink(folder)
        check_directory(folder)

    server = make_server(data_dir=folder, shards=numbers[-1])
    server.start()
    async with await client(server) as wire:
        after = await shown(wire, made)
        for key in before:
            assert after[key] == before[key], key
        await check_repeats(wire, made)
        await check_work(wire, made)
        await check_ids(wire)


def can_shrink(folder: Path) -> bool:
    """Whether all files can return free pages to the disk."""
    with opened(folder) as shards:
        return all(db.execute("pragma auto_vacuum").fetchone()[0] == 2 for db in shards)


async def check_repeats(wire: Wire, made: Made) -> None:
    """A push that is repeated because its reply was lost adds nothing."""
    for queue in QUEUES:
        key, count = f"key of {queue}", await wire.ok("Count", queue=queue)
        again = await wire.ok("PUSH", queue=queue, data={}, idempotencyKey=key, idempotencyAge=200_000)
        assert again["id"] == made.once[key]
        assert (await wire.ok("Count", queue=queue))["count"] == count["count"]


async def check_work(wire: Wire, made: Made) -> None:
    """Everything is done once, nothing before what it needs, and nothing waits for what is done."""
    done = await work_off(wire, made)
    assert len(done) == len(set(done))
    at = {job_id: place for place, job_id in enumerate(done)}
    for job_id, needs in made.needs.items():
        assert all(at[need] < at[job_id] for need in needs)
    for job_id in made.ids:
        if job_id not in at:
            state = (await wire.ok("GetState", id=job_id))["state"]
            assert (state == "waiting-children") == job_id.startswith("own-stuck"), job_id
            assert state not in COUNTED or job_id.startswith("own-stuck"), job_id


async def check_ids(wire: Wire) -> None:
    """Ids that clients chose are taken over the whole server, wherever their jobs were before."""
    for number in range(8):
        (first,) = (await wire.ok("PUSHB", queue=f"new-{number}", jobs=[{"jobId": f"own-stuck-{number}"}]))[
            "ids"
        ]
        assert first == f"own-stuck-{number}"
        assert (await wire.ok("Count", queue=f"new-{number}"))["count"] == 0
        await wire.ok("PUSH", queue=f"new-{number}", jobId=f"own-done-{number}")  # that one may come again
        assert (await wire.ok("GetJob", id=f"own-done-{number}"))["job"]["queue"] == f"new-{number}"


async def test_a_server_on_what_an_interruption_leaves(make_server: StartServer, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    server = make_server(data_dir=folder, shards=1)
    server.start()
    async with await client(server) as wire:
        ids = (await wire.ok("PUSHB", queue="q", jobs=[{"data": n} for n in range(3)]))["ids"]
        assert "is in use by another server" in reshard(folder, 2, status=1).stderr
    server.stop()

    # The new files are not whole: the server does not mind them.
    make(folder, 2)
    server.restart()
    async with await client(server) as wire:
        done = await wire.ok("PULL", queue="q", owner="w")
        await wire.ok("ACK", id=done["job"]["id"], token=done["token"])
    server.stop()

    # They are: no server runs on files of which some may be new and some old.
    make(folder, 2)
    swap.complete(folder, 1, read_identified(folder).resharded(2))
    with pytest.raises(NotStarted) as refused:
        server.restart()
    assert "run bunqueue reshard again to finish it" in refused.value.refusals[0]
    assert "finished an interrupted reshard from 1 to 2 shards" in reshard(folder, 2).stdout
    assert not (folder / RESHARD).exists()
    with pytest.raises(NotStarted) as refused:
        server.restart()
    assert "change it with bunqueue reshard --shards 1, or" in refused.value.refusals[0]

    server = make_server(data_dir=folder, shards=2)
    server.start()
    async with await client(server) as wire:
        assert [(await wire.ok("GetState", id=job_id))["state"] for job_id in ids] == [
            "completed", "waiting", "waiting",
        ]  # fmt: skip


def make(folder: Path, shards: int) -> None:
    """The new files, and no more."""
    with Inventory(folder, 1, shards, lambda progress: None) as inventory:
        build(swap.begin(folder), inventory, read_identified(folder).resharded(shards), lambda progress: None)
