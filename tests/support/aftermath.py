"""What is left when the kills are over: jobs that are to be finished, and files that must be whole."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from .actors import Actor, Watcher, Worker
from .file_rules import check_folder
from .waiting import eventually
from .wire import Address, Wire

PAGE = 2000
DRAIN_S = 240.0
LIVE = ("waiting", "prioritized", "delayed", "active", "waiting-children")


async def read_all(wire: Wire, queues: Sequence[str]) -> list[dict[str, Any]]:
    """Every job that the server has, page by page."""
    found: list[dict[str, Any]] = []
    for queue in queues:
        offset = 0
        while True:
            page = (await wire.ok("GetJobs", queue=queue, limit=PAGE, offset=offset))["jobs"]
            found += page
            offset += PAGE
            if len(page) < PAGE:
                break
    return found


async def no_live_jobs(wire: Wire, queues: Sequence[str]) -> bool:
    """Whether all jobs are finished."""
    for queue in queues:
        counts = (await wire.ok("GetJobCounts", queue=queue))["counts"]
        if any(counts.get(state) for state in LIVE):
            return False
    return True


async def drain(address: Address, actors: list[Actor], queues: Sequence[str]) -> None:
    """Let pushers stop, and workers go on until there is no job left."""
    for actor in actors:
        if isinstance(actor, Worker):
            actor.careful = True
        elif not isinstance(actor, Watcher):
            actor.stopping.set()
    async with await Wire.open(address) as wire:
        await eventually(lambda: no_live_jobs(wire, queues), "all jobs are finished", DRAIN_S, step_s=0.2)
    for actor in actors:
        actor.stopping.set()


def check_files(folder: Path) -> None:
    """The files are whole and keep their rules; read when no server has them open."""
    check_folder(folder)
    files = sorted(folder.glob("shard-*.db"))
    assert files
    for file in files:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
