"""Damaged pages in a shard's file: what stands in them is refused, and everything else goes on."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.mixed_folder import FAILED, JOBS, LIVE, NEIGHBOUR, OTHER, QUEUE
from support.pages import damage, leaf_of_row, leaves, settle
from support.server import NotStarted, Server, StartServer
from support.wire import Wire


class Filled:
    """A server that was stopped, with jobs in every state on its first shard."""

    def __init__(self, server: Server, ids: list[str]) -> None:
        self.server = server
        self.file = Path(server.data_dir) / "shard-00.db"
        self.completed = ids[: JOBS - FAILED]
        self.dead = ids[JOBS - FAILED : JOBS]
        self.live = ids[JOBS:]
        self.ids = ids
        self.wires: list[Wire] = []

    async def start(self) -> Wire:
        self.server.restart()
        self.wires.append(await Wire.open(self.server.address))
        return self.wires[-1]

    async def refused(self, wire: Wire, ids: list[str]) -> list[str]:
        """Those of the jobs that cannot be read; the others must be there."""
        found = []
        for job_id in ids:
            reply = await wire.call("GetJob", id=job_id)
            if not reply["ok"]:
                assert reply["code"] == "STORAGE_DAMAGED", reply
                assert "shard-00.db is damaged in " in reply["error"]
                assert f"bunqueue doctor --repair --data-dir {self.file.parent}" in reply["error"]
                found.append(job_id)
        return found


@pytest.fixture
async def filled(
    template: tuple[Path, list[str]], make_server: StartServer, tmp_path: Path
) -> AsyncIterator[Filled]:
    folder, ids = template
    shutil.copytree(folder, tmp_path / "data")
    found = Filled(make_server(data_dir=tmp_path / "data", shards=2), ids)
    yield found
    for wire in found.wires:
        await wire.close()


async def works(wire: Wire, queue: str, jobs: int = 5) -> None:
    """Others' jobs go their way."""
    for number in range(jobs):
        job_id = (await wire.ok("PUSH", queue=queue, data=number))["id"]
        pulled = await wire.ok("PULL", queue=queue, owner="w")
        assert pulled["job"]["id"] == job_id
        await wire.ok("ACK", id=job_id, token=pulled["token"])


def pids(server: Server) -> list[int]:
    return sorted(process.pid for process in server.shard_processes())


async def test_unreadable_finished_jobs_are_refused_and_nothing_else(filled: Filled) -> None:
    pages = leaves(filled.file, "jobs")
    damage(filled.file, pages[5:25])
    wire = await filled.start()
    before = pids(filled.server)
    refused = await filled.refused(wire, filled.ids)
    assert 200 < len(refused) < 1200
    assert not set(refused) & set(filled.live)
    for _ in range(3):  # whoever asks again and again harms nobody
        await filled.refused(wire, refused[:50])
        await works(wire, NEIGHBOUR, 2)
    listed = (await wire.ok("GetJobs", queue=QUEUE, state="completed", limit=10_000))["jobs"]
    assert {job["id"] for job in listed} == set(filled.completed) - set(refused)
    pulled = await wire.ok("PULLB", queue=QUEUE, count=LIVE, owner="w")
    assert [job["id"] for job in pulled["jobs"]] == filled.live
    metrics = (await wire.ok("Prometheus"))["data"]["metrics"]
    assert f'bunqueue_storage_unreadable_jobs{{shard="0"}} {len(refused)}.0' in metrics
    assert pids(filled.server) == before, "a shard has died"
    log = filled.server.log()
    assert "file=shard-00.db table=jobs" in log
    assert "run bunqueue doctor --repair" in log


async def test_nothing_is_purged_from_a_damaged_file(filled: Filled) -> None:
    """Deleting joins pages with their neighbours, and would make it worse."""
    damage(filled.file, leaves(filled.file, "jobs")[3:6])
    wire = await filled.start()
    before = pids(filled.server)
    for _ in range(5):
        reply = await wire.call("Clean", queue=QUEUE, grace=0, state="completed", limit=1000)
        assert reply["ok"] or reply["code"] == "STORAGE_DAMAGED"
        await works(wire, NEIGHBOUR)
    assert pids(filled.server) == before, "a shard has died"


@pytest.mark.parametrize(
    "name", ["dead_letters", "dead_letters_by_age", "dead_letters_by_arrival", "completed"]
)
async def test_lists_go_around_damage(filled: Filled, name: str) -> None:
    damage(filled.file, leaves(filled.file, name)[:1])
    wire = await filled.start()
    before = pids(filled.server)
    for state in ("completed", "failed"):
        for asc in (True, False):
            reply = await wire.ok("GetJobs", queue=QUEUE, state=state, limit=10_000, asc=asc)
            assert set(ids_of(reply)) <= set(filled.ids)
    await wire.ok("Dlq", queue=QUEUE, count=500)
    await works(wire, NEIGHBOUR)
    assert pids(filled.server) == before, "a shard has died"


def ids_of(reply: Any) -> list[str]:
    return [job["id"] for job in reply["jobs"]]


async def test_the_event_log_is_read_around_damage(filled: Filled) -> None:
    pages = leaves(filled.file, "events")
    damage(filled.file, pages[2:4])
    wire = await filled.start()
    before = pids(filled.server)
    places, told = None, 0
    for _ in range(50):
        reply = await wire.ok("GetEvents", limit=5000, **({"after": places} if places else {}))
        told += len(reply["events"])
        at = [place["after"] for place in reply["places"]]
        if at == places:
            break
        places = at
    assert told > 1000
    await works(wire, NEIGHBOUR)
    assert pids(filled.server) == before, "a shard has died"


async def test_an_ack_that_cannot_be_stored_harms_no_other(filled: Filled) -> None:
    wire = await filled.start()
    pulled = await wire.ok("PULLB", queue=QUEUE, count=3, owner="w")
    filled.server.kill_all()
    settle(filled.file)
    damage(filled.file, [leaf_of_row(filled.file, "completed", JOBS - FAILED)])
    wire = await filled.start()
    before = pids(filled.server)
    victim, token = pulled["jobs"][0]["id"], pulled["tokens"][0]
    for _ in range(3):
        reply = await wire.call("ACK", id=victim, token=token)
        assert (reply["ok"], reply.get("code")) == (False, "STORAGE_DAMAGED"), reply
        await works(wire, NEIGHBOUR)
    assert pids(filled.server) == before, "a shard has died"


async def test_a_shard_with_unreadable_live_jobs_is_set_aside(filled: Filled) -> None:
    with closing(sqlite3.connect(filled.file)) as db:
        (count,) = db.execute("select count(*) from jobs where seq > ?", (JOBS - 40,)).fetchone()
    assert count == LIVE + 40 + 1000
    damage(filled.file, [leaf_of_row(filled.file, "jobs", JOBS + LIVE // 2)])
    wire = await filled.start()
    assert " damaged=0 " in filled.server.ready
    reply = await wire.call("PUSH", queue=QUEUE, data=1)
    assert reply["code"] == "STORAGE_DAMAGED"
    assert reply["error"].startswith("Shard unavailable: shard 0 is out of service: ")
    assert "bunqueue doctor --repair --data-dir" in reply["error"]
    await works(wire, OTHER)
    metrics = (await wire.ok("Prometheus"))["data"]["metrics"]
    assert 'bunqueue_shard_damaged{shard="0"} 1.0' in metrics
    assert len(pids(filled.server)) == 1
    filled.server.stop()

    filled.server.flags = ("--damaged-shard", "stop")
    with pytest.raises(NotStarted) as refused:
        filled.server.start()
    assert "shard-00.db is damaged in jobs" in refused.value.refusals[0]

    filled.server.flags = ("--damaged-shard", "serve")
    wire = await filled.start()
    await works(wire, OTHER)
    got = (await wire.ok("PULLB", queue=QUEUE, count=100, owner="w"))["jobs"]
    assert {job["id"] for job in got} <= set(filled.live)
    assert "serving without jobs that cannot be read" in filled.server.log()


@pytest.mark.parametrize("content", [bytes(8192), b"minutes of the meeting" * 1000])
async def test_a_file_without_its_first_page_keeps_no_other_shard_from_serving(
    filled: Filled, content: bytes
) -> None:
    with filled.file.open("r+b") as file:
        file.write(content)
    wire = await filled.start()
    assert " damaged=0 " in filled.server.ready
    reply = await wire.call("PUSH", queue=QUEUE, data=1)
    assert reply["code"] == "STORAGE_DAMAGED"
    assert "shard-00.db is damaged in its header" in reply["error"]
    await works(wire, OTHER)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(12))
async def test_random_damage(filled: Filled, seed: int) -> None:
    """Whatever is damaged: the shard serves with what it has, or is out of service; it does not die."""
    chance = random.Random(seed)
    size = filled.file.stat().st_size // 8192
    pages = chance.sample(range(2, size + 1), chance.choice([1, 3, 20]))
    damage(filled.file, pages, garbage=chance if seed % 2 else None)
    wire = await filled.start()
    before = pids(filled.server)
    await works(wire, OTHER)
    if " damaged=0 " not in filled.server.ready:
        await filled.refused(wire, filled.ids)
        for state in ("completed", "failed", "waiting"):
            await wire.call("GetJobs", queue=QUEUE, state=state, limit=10_000)
        for number in range(20):
            reply = await wire.call("PUSH", queue=NEIGHBOUR, data=number)
            assert reply["ok"] or reply["code"] == "STORAGE_DAMAGED"
        await wire.call("Clean", queue=QUEUE, grace=0, state="completed", limit=1000)
    assert pids(filled.server) == before, "a shard has died"
