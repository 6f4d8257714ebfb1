"""The power fails under a real server, at any moment: what the disk then holds is rebuilt, and started on.

A library below SQLite logs each write and each flush of the shards (support/disk_log.c).  So one run of a
server gives as many power cuts as one likes.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engine.power_world import PowerLife, PowerWorld
from engine.shard_world import QUEUES
from support import disk_log
from support.server import Server, StartServer
from support.wire import Wire

from shardproc.core import Shard

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

SHARDS = 4


class Promises:
    """What clients have pushed, and how long the log was when the answer was there."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.durable: list[tuple[int, list[str]]] = []
        self.flows: list[list[str]] = []
        self.begun: set[str] = set()

    def made(self, ids: list[str]) -> None:
        self.durable.append((self.log.stat().st_size, ids))


async def push(server: Server, promises: Promises, name: str, seconds: float, size: int, full: bool) -> None:
    """Push all that concerns several shards, until the time is over; some of it durable."""
    rng, end, serial = random.Random(name), time.monotonic() + seconds, 0
    async with await Wire.open(server.address) as wire:
        while time.monotonic() < end or not promises.durable:
            serial += 1
            durable = rng.random() < 0.4
            parent, *rest = [f"{name}-{serial}-{place}" for place in range(rng.randrange(2, 5))]
            data = {"x": "x" * rng.randrange(size)}
            if serial % 2:
                entries: list[dict[str, Any]] = [{"data": data, "jobId": own} for own in [parent, *rest]]
                entries[0]["durable"] = durable
                await wire.ok("PUSHB", queue=rng.choice(QUEUES), jobs=entries)
            else:
                promises.flows.append([*rest, parent])
                jobs = [
                    {"id": own, "queue": rng.choice(QUEUES), "input": {"data": data, "parentId": parent}}
                    for own in rest
                ]
                fields = {"data": {}, "dependsOn": rest, "childrenIds": rest, "durable": durable}
                jobs.append({"id": parent, "queue": rng.choice(QUEUES), "input": fields})
                await wire.ok("PUSHF", jobs=jobs)
            if durable or full:
                promises.made([parent, *rest])


async def work(server: Server, promises: Promises) -> None:
    """Complete a job now and then."""
    rng = random.Random(1)
    async with await Wire.open(server.address) as wire:
        while True:
            pulled = await wire.call("PULL", queue=rng.choice(QUEUES), owner="w", lockTtl=3_600_000)
            if pulled.get("job"):
                promises.begun.add(pulled["job"]["id"])
                await wire.call("ACK", id=pulled["job"]["id"], token=pulled["token"])
            await asyncio.sleep(0.01)  # a slow worker, so that jobs of all kinds are there


async def load(server: Server, promises: Promises, seconds: float, size: int, *, full: bool) -> None:
    worker = asyncio.create_task(work(server, promises))
    pushes = (push(server, promises, f"c{number}", seconds, size, full) for number in range(4))
    try:
        await asyncio.gather(*pushes)
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


class Aftermath(PowerWorld):
    """The shards of a disk image."""

    def _open(self, number: int) -> Shard:
        self.now = max(self.now, time.time_ns() // 1_000_000)
        return super()._open(number)

    def _files(self, number: int) -> tuple[Path, Path]:
        database = self.folder / f"shard-{number:02d}.db"
        return database, database.with_name(database.name + "-wal")


def check(folder: Path, promises: Promises, seed: int, cut: int) -> None:
    """Start on an image, and look whether everything is as it was promised."""
    with closing(Aftermath(folder, SHARDS, seed)) as world:
        life = PowerLife(world)
        life.promised = {own for size, ids in promises.durable if size <= cut for own in ids}
        life.flows, life.done = promises.flows, promises.begun
        life.check()


def cut_often(tmp_path: Path, promises: Promises, cuts: int, seed: int) -> None:
    print("seed", seed)
    rng, disk = random.Random(seed), disk_log.Disk()
    records = list(disk_log.read(promises.log))
    first = next(end for end, _ in promises.durable)
    ends = [number for number, record in enumerate(records) if record.end >= first]
    places = sorted(rng.sample(ends, min(cuts, len(ends))))
    for number, record in enumerate(records):
        disk.take(record)
        if places and number == places[0]:
            places.pop(0)
            folder = tmp_path / f"image-{number}"
            folder.mkdir()
            disk.image(folder, rng)
            check(folder, promises, seed, record.end)
            shutil.rmtree(folder)


async def run(
    make_server: StartServer, tmp_path: Path, sync: str, cuts: int, seconds: float, size: int = 100
) -> None:
    server = make_server("--sync", sync, shards=SHARDS)
    server.environ = disk_log.preload(tmp_path)
    server.start()
    promises = Promises(tmp_path / "disk.log")
    await load(server, promises, seconds, size, full=sync == "full")
    server.kill_all()
    assert promises.durable
    cut_often(tmp_path, promises, cuts, int.from_bytes(random.randbytes(3)))


@pytest.mark.parametrize("sync", ["normal", "full"])
async def test_power_cuts_under_load(make_server: StartServer, tmp_path: Path, sync: str) -> None:
    await run(make_server, tmp_path, sync, cuts=8, seconds=1)


@pytest.mark.nightly
@pytest.mark.parametrize("sync", ["normal", "full"])
async def test_hundreds_of_power_cuts_under_load(make_server: StartServer, tmp_path: Path, sync: str) -> None:
    """Long enough for checkpoints: 32 MiB of log in each shard."""
    await run(make_server, tmp_path, sync, cuts=150, seconds=20, size=60_000)
