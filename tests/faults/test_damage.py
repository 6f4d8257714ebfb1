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
from support.cli import Cli
from support.mixed_folder import FAILED, JOBS, LIVE, NEIGHBOUR, OTHER, QUEUE
from support.pages import SIZE, damage, leaf_of_row, leaves, settle
from support.server import NotStarted, Server, StartServer, quiet_port
from support.waiting import eventually
from support.web import client
from support.wire import Wire

from bunqueue import AsyncQueue


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

    def is_settled(self) -> bool:
        """Whether no shard still asks another one what it holds: then one may read its state anew alone."""
        counts = []
        for file in sorted(self.file.parent.glob("shard-*.db")):
            with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
                keys = "select count(*) from records where kind = 'recovery' and key in ('ids', 'flows')"
                counts.append(db.execute(keys).fetchone()[0])
        return counts == [0, 0]

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
    listed = await wire.ok("GetJobs", queue=QUEUE, state="completed", limit=10_000)
    assert set(ids_of(listed)) == set(filled.completed) - set(refused)
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
    left = (await wire.ok("GetJobCounts", queue=QUEUE))["counts"]
    await wire.call("Clean", queue=QUEUE, grace=0, state="completed", limit=1000)  # it meets the damage
    for command in (
        {"cmd": "Clean", "grace": 0, "state": "completed", "limit": 1000},
        {"cmd": "Clean", "grace": 0, "state": "failed", "limit": 1000},
        {"cmd": "PurgeDlq"},
        {"cmd": "RemoveDlqJob", "jobId": filled.dead[-1]},
        {"cmd": "Obliterate"},
    ):
        reply = await wire.call(**command, queue=QUEUE)
        assert (reply["ok"], reply.get("code")) == (False, "STORAGE_DAMAGED"), (command, reply)
        assert reply["error"].startswith("no finished job is removed from a damaged file"), reply
        assert "run bunqueue doctor --repair --data-dir" in reply["error"]
        await works(wire, NEIGHBOUR)
    assert (await wire.ok("GetJobCounts", queue=QUEUE))["counts"] == left
    assert pids(filled.server) == before, "a shard has died"


async def with_large_letters(filled: Filled, count: int) -> list[str]:
    """Dead letters of a queue, of which the second one's data can no longer be read, and nothing else."""
    wire = await filled.start()
    ids = []
    for number in range(count):
        job = {"data": f"<{number}>" * 20_000, "maxAttempts": 1, "jobId": f"large-{number}"}
        ids.append((await wire.ok("PUSH", queue=NEIGHBOUR, **job))["id"])
        token = (await wire.ok("PULL", queue=NEIGHBOUR, owner="w"))["token"]
        await wire.ok("FAIL", id=ids[-1], token=token, error="no")
    filled.server.stop()
    settle(filled.file)
    content = filled.file.read_bytes()
    # A page with nothing but these data: one that has the beginning of a row is a page of the whole table.
    full = [
        at for at in range(0, len(content), SIZE) if content[at : at + SIZE].count(b"<1>") > SIZE // 3 - 4
    ]
    damage(filled.file, [full[2] // SIZE + 1])
    return ids


async def test_what_cannot_be_retried_is_told(filled: Filled) -> None:
    """All others run again."""
    ids = await with_large_letters(filled, 4)
    wire = await filled.start()
    (shown,) = [job for job in (await wire.ok("Dlq", queue=NEIGHBOUR))["jobs"] if "unreadable" in job]
    assert (shown["id"], shown["state"], shown["data"]) == (ids[1], "failed", None)
    reply = await wire.call("RetryDlq", queue=NEIGHBOUR)
    assert (reply["ok"], reply["code"]) == (False, "STORAGE_DAMAGED")
    assert reply["error"].startswith("1 jobs cannot be read, and do not run again; 3 others do: ")
    assert "run bunqueue doctor --repair --data-dir" in reply["error"]
    counts = (await wire.ok("GetJobCounts", queue=NEIGHBOUR))["counts"]
    assert (counts["waiting"], counts["failed"]) == (3, 1)


async def test_unreadable_jobs_are_in_lists_and_say_why(filled: Filled) -> None:
    pages = [leaf_of_row(filled.file, "jobs", number) for number in (300, JOBS - FAILED // 2)]
    damage(filled.file, pages)
    filled.server.http_port = quiet_port()
    wire = await filled.start()
    completed = (await wire.ok("GetJobs", queue=QUEUE, state="completed", limit=10_000))["jobs"]
    dead = await wire.ok("Dlq", queue=QUEUE, count=FAILED)
    assert (len(completed), len(dead["jobs"]), len(dead["entries"])) == (JOBS - FAILED, FAILED, FAILED)
    for jobs, state in ((completed, "completed"), (dead["jobs"], "failed")):
        unreadable = [job for job in jobs if "unreadable" in job]
        assert 0 < len(unreadable) < FAILED
        for job in unreadable:
            assert (job["state"], job["queue"], job["data"]) == (state, QUEUE, None)
            assert "cannot be read: shard-00.db is damaged in jobs" in job["unreadable"]
            assert "run bunqueue doctor --repair --data-dir" in job["unreadable"]
    async with AsyncQueue(QUEUE, port=filled.server.port) as queue:
        found = [job async for job in queue.iter_jobs("completed", page=100)]
        assert len(found) == JOBS - FAILED, "the list ends at a page with damage"
        assert sum(job.unreadable is not None for job in found) == sum(
            "unreadable" in job for job in completed
        )
        assert len(await queue.dlq(FAILED)) == FAILED
    async with client(filled.server) as web:
        shown = (await web.get(f"/queues/{QUEUE}/jobs/list?limit=1000&state=completed")).json()["jobs"]
        assert [job["id"] for job in shown] == [job["id"] for job in completed[:1000]]
        letters = (await web.get(f"/queues/{QUEUE}/dlq?count={FAILED}")).json()
        assert len(letters["entries"]) == FAILED
    cli = Cli(filled.server)
    listed = cli("queue", "jobs", QUEUE, "--state", "failed", "--limit", "1000", "--json").out
    assert "cannot be read: shard-00.db is damaged in jobs" in listed
    assert "cannot be read" in cli("dlq", "list", QUEUE, "--limit", "1000").out
    lost = sum("unreadable" in job for job in (*completed, *dead["jobs"]))
    assert f"shard 0 has met damage ({lost} jobs cannot be read" in cli("doctor", status=1).out
    filled.server.stop()
    offline = cli("doctor", "--data-dir", str(filled.file.parent), status=1).out
    assert f"{lost} jobs cannot be read: {filled.ids[290][:8]}" in offline


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
    """Those of the jobs that can be read."""
    return [job["id"] for job in reply["jobs"] if "unreadable" not in job]


async def test_a_search_goes_around_damage_and_counts_what_it_has_left_out(filled: Filled) -> None:
    damage(filled.file, leaves(filled.file, "jobs")[5:9])
    wire = await filled.start()
    refused = await filled.refused(wire, filled.ids)
    found: list[str] = []
    unreadable, cursor = 0, {}
    while True:
        page = await wire.ok("FindJobs", queue=QUEUE, state="completed", limit=1000, **cursor)
        found += [job["id"] for job in page["jobs"]]
        unreadable += page["progress"]["unreadable"]
        if page["cursor"] is None:
            break
        cursor = {"cursor": page["cursor"]}
    assert set(found) == set(filled.completed) - set(refused)
    assert unreadable >= len(set(filled.completed) & set(refused)) > 0
    await works(wire, NEIGHBOUR)


@pytest.mark.parametrize("table", ["search_blocks", "search_finishes"])
async def test_what_is_kept_for_searches_may_be_damaged(filled: Filled, table: str) -> None:
    """It is done without: nothing is missed, and jobs go on."""
    wire = await filled.start()
    wanted = {"queue": QUEUE, "finishedAfter": 0, "limit": 0, "scan": 10_000_000}
    before = (await wire.ok("FindJobs", **wanted))["progress"]["found"]
    filled.server.stop()
    settle(filled.file)
    damage(filled.file, leaves(filled.file, table))
    wire = await filled.start()
    assert (await wire.ok("FindJobs", **wanted))["progress"]["found"] == before
    await works(wire, NEIGHBOUR, 3)
    assert (await wire.ok("FindJobs", **wanted))["progress"]["found"] == before


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
    await eventually(filled.is_settled, "the shards have told each other what they hold")
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


@pytest.mark.nightly
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
