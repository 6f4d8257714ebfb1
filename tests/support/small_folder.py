"""A small data folder with a bit of everything that one shard alone can make, without any process."""

from __future__ import annotations

import shutil
from pathlib import Path

from engine.shard_driver import START, Driver

from bunqueue.server.folder.data_folder import note_files, open_data_folder, shard_file

from .naming import queues_on


def make(folder: Path, shards: int, jobs: int = 12) -> None:
    """Make it as a crash leaves it: the last commits are in the write-ahead logs."""
    made = folder.with_name(f"{folder.name}-made")
    made.mkdir()
    open_data_folder(made, shards)
    drivers = [Driver(str(shard_file(made, number)), shard=number, shards=shards) for number in range(shards)]
    for number, driver in enumerate(drivers):
        names = queues_on(number, "small", shards)
        for queue in (next(names) for _ in range(4)):
            _use(driver, queue, jobs)
    note_files(made)
    shutil.copytree(made, folder)
    for driver in drivers:
        driver.close()
    shutil.rmtree(made)


def _use(driver: Driver, queue: str, jobs: int) -> None:
    driver.tick(START + 1000)
    driver.ask(cmd="PUSHB", queue=queue, jobs=[{"data": n, "priority": n % 2} for n in range(jobs)])
    driver.ask(cmd="PUSH", queue=queue, data="later", delay=1e9, uniqueKey="k", tags=["t"])
    pulled = driver.ask(cmd="PULLB", queue=queue, count=6, owner="w")
    for place, (job, token) in enumerate(zip(pulled["jobs"], pulled["tokens"], strict=True)):
        driver.ask(cmd="AddLog", id=job["id"], message=f"line {place}")
        if place < 3:
            driver.ask(cmd="ACK", id=job["id"], token=token, result="r" * 600 * place)
        elif place == 3:
            driver.ask(cmd="FAIL", id=job["id"], token=token, error="no", unrecoverable=True)
    driver.ask(cmd="SetDlqConfig", queue=queue, config={"maxEntries": 5})
    driver.ask(cmd="Pause", queue=queue)
    driver.ask(cmd="Cron", name=f"cron {queue}", queue=queue, repeatEvery=10**9)
