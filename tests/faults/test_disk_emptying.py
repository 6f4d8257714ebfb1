"""Queues that have filled their own disk are emptied, whatever happens meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.server import Server, StartServer, quiet_port
from support.small_disks import small_disk
from support.waiting import eventually
from support.wire import Wire

DATA = "x" * 2000
SHORT = [("tmpfs", 40, 1), ("ext4", 40, 1)]
LONG = [
    (kind, size, shards)
    for kind in ("tmpfs", "ext4")
    for size in (20, 40, 64, 160)
    for shards in (1, 2, 4)
    if size >= 16 * shards  # less leaves next to nothing for jobs: see below
]


async def fill(wire: Wire, queues: list[str]) -> int:
    """Push until every queue is refused for good; how many jobs were accepted."""
    pushed, open_queues = 0, set(queues)
    while open_queues:
        for queue in sorted(open_queues):
            reply = await wire.call("PUSHB", queue=queue, jobs=[{"data": DATA}] * 20)
            if reply["ok"]:
                pushed += 20
                continue
            assert reply["error"].startswith("Storage is full ("), reply
            assert reply["code"] == "STORAGE_FULL"
            open_queues.discard(queue)
    return pushed


class Emptying:
    """Works the queues off, and has the server killed and stopped on the way."""

    def __init__(self, server: Server, queues: list[str], total: int) -> None:
        self.server, self.queues, self.total = server, queues, total
        self.done = 0
        ends = (server.kill_all, server.stop, server.kill_all)
        self.breaks = [(part * total // 4, end) for part, end in enumerate(ends, 1)]

    async def run(self, finish: str) -> None:
        wire = await Wire.open(self.server.address)
        for queue in self.queues:
            while True:
                pulled = await wire.ok("PULLB", queue=queue, count=200, owner="w")
                if not pulled["jobs"]:
                    break
                await self._finish(wire, finish, pulled)
                if self.breaks and self.done >= self.breaks[0][0]:
                    await wire.close()
                    self.breaks.pop(0)[1]()
                    self.server.restart()
                    wire = await Wire.open(self.server.address)
        assert self.done == self.total
        await wire.close()

    async def _finish(self, wire: Wire, finish: str, pulled: dict) -> None:  # type: ignore[type-arg]
        ids = [job["id"] for job in pulled["jobs"]]
        if finish == "ack":
            await wire.ok("ACKB", ids=ids, tokens=pulled["tokens"], results=["r" * 100] * len(ids))
        else:
            for job, token in zip(ids, pulled["tokens"], strict=True):
                await wire.ok("FAIL", id=job, token=token, error="e" * 100, unrecoverable=True)
        self.done += len(ids)


async def accepted_again(server: Server, queue: str) -> None:
    wire = await Wire.open(server.address)

    async def accepted() -> bool:
        return bool((await wire.call("PUSH", queue=queue, data=1))["ok"])

    await eventually(accepted, "pushes are accepted again")
    await wire.close()


async def empties(folder: Path, make_server: StartServer, disk: tuple[str, int, int], finish: str) -> None:
    kind, size, shards = disk
    with small_disk(folder, kind, size) as mounted:
        server = make_server(data_dir=mounted / "data", shards=shards, port=quiet_port())
        server.start()
        queues = [f"q{number}" for number in range(1 if shards == 1 else 4 * shards)]
        wire = await Wire.open(server.address)
        total = await fill(wire, queues)
        assert total > 0
        warned, refused = "the disk is getting full", "the disk is almost full"
        assert server.log().index(warned) < server.log().index(refused)
        if finish in ("Drain", "Obliterate"):
            for queue in queues:
                await wire.ok(finish, queue=queue)
            await wire.close()
        else:
            await wire.close()
            await Emptying(server, queues, total).run(finish)
        if finish == "fail":  # dead letters are kept until somebody purges them
            wire = await Wire.open(server.address)
            for queue in queues:
                await wire.ok("PurgeDlq", queue=queue)
            await wire.close()
        await accepted_again(server, queues[0])
        server.dispose()


@pytest.mark.parametrize("disk", SHORT, ids=str)
async def test_all_jobs_can_be_worked_off(
    tmp_path: Path, make_server: StartServer, disk: tuple[str, int, int]
) -> None:
    await empties(tmp_path, make_server, disk, "ack")


@pytest.mark.parametrize("finish", ["Drain", "Obliterate"])
async def test_all_jobs_can_be_removed(tmp_path: Path, make_server: StartServer, finish: str) -> None:
    await empties(tmp_path, make_server, ("tmpfs", 40, 1), finish)


async def test_shards_share_a_disk(tmp_path: Path, make_server: StartServer) -> None:
    await empties(tmp_path, make_server, ("tmpfs", 64, 4), "Drain")


@pytest.mark.nightly
@pytest.mark.parametrize("finish", ["ack", "fail", "Drain", "Obliterate"])
@pytest.mark.parametrize("disk", LONG, ids=str)
async def test_whatever_the_size_of_the_disk(
    tmp_path: Path, make_server: StartServer, disk: tuple[str, int, int], finish: str
) -> None:
    await empties(tmp_path, make_server, disk, finish)


async def test_a_disk_that_is_too_small_is_named(tmp_path: Path, make_server: StartServer) -> None:
    """The server runs, says what it needs, and takes no jobs."""
    with small_disk(tmp_path, "tmpfs", 6) as mounted:
        server = make_server(data_dir=mounted / "data", shards=1)
        server.start()
        wire = await Wire.open(server.address)
        reply = await wire.call("PUSH", queue="q", data=1)
        assert reply["code"] == "STORAGE_FULL"
        assert "MB are kept" in reply["error"]
        assert "the disk is almost full" in server.log()
        assert (await wire.ok("PULL", queue="q"))["job"] is None
        await wire.close()
        assert server.stop() == 0
