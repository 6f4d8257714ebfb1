"""A small history of jobs with everything that can become of one, made by a real server; and copies of it at
other times, faster or slower."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
from support.server import Server
from support.waiting import eventually
from support.wire import Reply, Wire

HOUR_MS = 3_600_000
STALLED = "slow-mail"  # its lock runs out: the next sweep takes it back
# How long each job of the queue "race" runs, ms, in the order of their ends: more than are listed as slowest.
# The last place in that list is shared by two, the later of which has the smaller id.
RACE = dict(zip("lkjihgfedcba", (60, 50, 9, 40, 35, 12, 30, 25, 9, 20, 15, 7), strict=True))
REVIVED = "revived"  # at once
EDGES = tuple(f"edge-{number}" for number in range(8))  # see `put_at`


class Past:
    """What happened on one server: made by the commands that workers send."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def push(self, queue: str, name: str, **options: Any) -> str:
        fields = {"data": {"name": name}, "maxAttempts": 3, "backoff": 0, **options}
        return str((await self._wire.ok("PUSH", queue=queue, name=name, **fields))["id"])

    async def pull(self, queue: str, worker: str, **options: Any) -> tuple[str, str]:
        """The id and token of the next job, which there must be."""
        reply = await self._wire.ok("PULL", queue=queue, owner=worker, timeout=60_000, **options)
        assert reply["job"] is not None, queue
        return reply["job"]["id"], reply["token"]

    async def ack(self, job: str, token: str) -> bool:
        """Complete a job; whether that counted."""
        reply = await self._wire.ok("ACK", id=job, token=token, result="done")
        return bool(reply.get("data", {}).get("applied", True))

    async def fail(self, job: str, token: str, error: str, **options: Any) -> None:
        await self._wire.ok("FAIL", id=job, token=token, error=error, **options)

    async def work(self, queue: str, worker: str, takes_ms: int = 0) -> None:
        """Take the next job, be at it for a while, and complete it."""
        job, token = await self.pull(queue, worker)
        await asyncio.sleep(takes_ms / 1000)  # that is what this job's run time is
        await self.ack(job, token)

    async def lose(self, queue: str, worker: str, error: str, takes_ms: int = 0, **options: Any) -> None:
        """Take the next job, be at it for a while, and fail."""
        job, token = await self.pull(queue, worker)
        await asyncio.sleep(takes_ms / 1000)  # that is what this job's run time is
        await self.fail(job, token, error, **options)

    async def ok(self, command: str, **fields: Any) -> Reply:
        return await self._wire.ok(command, **fields)

    async def state(self, job: str) -> str:
        return str((await self._wire.ok("GetState", id=job))["state"])


async def live_through(server: Server, worker: str = "ada") -> None:
    """Have all of it happen on a server; takes ten seconds, as a stalled job has to be noticed."""
    async with await Wire.open(server.address) as wire:
        await wire.ok("Hello", protocolVersion=3)
        past = Past(wire)
        await past.push(STALLED, "letter")
        stalled, _ = await past.pull(STALLED, f"{worker}-silent", lockTtl=1000, detach=True)
        await _plain(past, worker)
        await _exact(past, worker)
        await _troubled(past, worker)
        await _removed(past, worker)
        await _family(past, worker)
        await _unfinished(past, worker)

        async def is_back() -> bool:
            return await past.state(stalled) == "waiting"

        await eventually(is_back, "the silent worker's job is taken back")
        await past.work(STALLED, worker, 5)


async def _plain(past: Past, worker: str) -> None:
    for number in range(6):
        await past.push("mail", "welcome" if number % 2 else "digest")
    first, second = await past.pull("mail", worker), await past.pull("mail", worker)  # two at a time
    await past.work("mail", f"{worker}-2", 30)
    await past.ack(*second)
    await past.ack(*first)
    for takes_ms in (0, 10, 60):
        await past.work("mail", f"{worker}-2", takes_ms)
    await past.push("mail", "later", delay=80)
    await past.work("mail", worker)
    await past.push("mail", "unowned")
    pulled = await past.ok("PULL", queue="mail")  # without an owner
    await past.ok("ACK", id=pulled["job"]["id"])


async def _exact(past: Past, worker: str) -> None:
    """Jobs whose times `settle` and `put_at` make exact."""
    jobs = {"race": tuple(RACE), "relay": ("first", "second"), "edge": EDGES}
    for queue, ids in jobs.items():
        for job in ids:
            await past.push(queue, queue, jobId=job)
    await asyncio.sleep(max(RACE.values()) / 1000)  # none began before it was there
    for queue, ids in jobs.items():
        for _ in ids:
            await past.work(queue, f"{worker}-{queue}")


async def _troubled(past: Past, worker: str) -> None:
    """Jobs of which attempts fail, in each of the ways."""
    await past.push("pay", "charge")
    await past.lose("pay", worker, "HTTPError: 503 for order 1234567\nat line 7", 20)
    await past.lose("pay", worker, "HTTPError: 503 for order 7654321", 10)
    await past.work("pay", worker, 10)
    dead = await past.push("pay", "charge", maxAttempts=2)
    await past.lose("pay", worker, "HTTPError: 404 for order 99")
    await past.lose("pay", f"{worker}-2", "HTTPError: 404 for order 100", 15)
    await past.push("pay", "refund", timeout=1000, maxAttempts=50)
    await past.pull("pay", worker)  # runs into its timeout, and again
    again, token = await past.pull("pay", worker, lockTtl=HOUR_MS)
    while not await past.ack(again, token):  # on a busy machine this attempt ran into its timeout, too
        again, token = await past.pull("pay", worker, lockTtl=HOUR_MS)
    await past.push("pay", "refund")
    await past.lose("pay", worker, "", 20, interrupted=True)
    await past.work("pay", worker, 5)
    cancelled = await past.push("pay", "charge")
    _, token = await past.pull("pay", worker)
    await past.ok("Cancel", id=cancelled, running=True, reason="not wanted")
    await past.ok("FAIL", id=cancelled, token=token, error="stopped")
    revived = await past.push("pay", "charge", maxAttempts=1)
    await past.lose("pay", worker, "Boom")
    await past.ok("RetryDlq", queue="pay", jobId=revived)
    await past.work("pay", worker, 5)
    await past.push("pay", "once", maxAttempts=1)
    await past.lose("pay", worker, "Boom", 5)
    await past.ok("Discard", id=await past.push("pay", "unwanted", delay=60_000))  # its time comes later
    assert [await past.state(job) for job in (dead, revived)] == ["failed", "completed"]


async def _removed(past: Past, worker: str) -> None:
    """Jobs that leave nothing but events."""
    for name in ("once", "once", "again"):
        await past.push("short", name, removeOnComplete=True, jobId=f"own-{name}")
        await past.work("short", worker, 10)  # the same id lives twice
    await past.push("short", "doomed", removeOnComplete=True, backoff=0)
    await past.lose("short", worker, "Boom 1", 5)
    await past.work("short", worker, 5)
    await past.push("short", "doomed", removeOnFail=True, maxAttempts=2)
    await past.lose("short", worker, "Boom 2", 5)
    await past.lose("short", worker, "Boom 3")
    stopped = await past.push("short", "stopped", removeOnFail=True)
    _, token = await past.pull("short", worker)
    await past.ok("Cancel", id=stopped, running=True)
    await past.ok("FAIL", id=stopped, token=token, error="stopped")
    await _revive(past, worker, removeOnComplete=True)
    await past.work("short", worker, 5)
    await past.ok("Cancel", id=await _revive(past, worker, jobId=REVIVED))
    await past.push("short", "late", ttl=1)
    await asyncio.sleep(0.05)  # its ttl is over
    assert (await past.ok("PULL", queue="short", owner=worker))["job"] is None
    await past.ok("Cancel", id=await past.push("short", "unwanted"))
    await _revive(past, worker)
    await past.push("short", "drained")
    await past.push("short", "drained", delay=HOUR_MS)
    await past.ok("Drain", queue="short")


async def _revive(past: Past, worker: str, **options: Any) -> str:
    """A job that had failed for good, and waits again."""
    job = await past.push("short", "revived", maxAttempts=1, **options)
    await past.lose("short", worker, "Boom 4", 5)
    await past.ok("RetryDlq", queue="short", jobId=job)
    return job


async def _family(past: Past, worker: str) -> None:
    """A parent that waits for its children, on both shards."""
    children = [("kid-1", "mail"), ("kid-2", "pay")]
    jobs = [
        {"id": child, "queue": queue, "input": {"data": {}, "name": "part", "parentId": "parent"}}
        for child, queue in children
    ]
    names = [child for child, _ in children]
    whole = {"data": {}, "name": "whole", "dependsOn": names, "childrenIds": names}
    jobs.append({"id": "parent", "queue": "mail", "input": whole})
    await past.ok("PUSHF", jobs=jobs)
    await past.work("mail", worker, 20)
    await past.work("pay", worker, 60)
    await past.work("mail", worker, 10)


async def _unfinished(past: Past, worker: str) -> None:
    """Jobs that have not ended when it is over."""
    for _ in range(3):
        await past.push("mail", "waiting")
    await past.push("mail", "delayed", delay=24 * HOUR_MS)
    active = await past.push("pay", "active")
    await past.pull("pay", worker, lockTtl=HOUR_MS, detach=True)
    await past.push("pay", "blocked", dependsOn=[active])


TIMES = {
    "jobs": ("created_at", "run_at"),
    "completed": ("started_at", "finished_at"),
    "dead_letters": ("started_at", "finished_at"),
    "attempts": ("started_at", "ended_at"),
    "locks": ("started_at",),
    "events": ("at",),
}


def shards_of(folder: Path) -> Iterator[sqlite3.Connection]:
    """The databases of a folder, one after the other."""
    for path in sorted(folder.glob("shard-*.db")):
        with closing(sqlite3.connect(path)) as database:
            yield database


def begin_of(folder: Path) -> int:
    """When the first event was; epoch ms."""
    return min(
        int(database.execute("select min(at) from events").fetchone()[0]) for database in shards_of(folder)
    )


def at_another_time(folder: Path, to: Path, begin: int, slower: int = 1) -> Path:
    """A copy of a folder whose history begins then (epoch ms) and takes so many times as long."""
    shutil.copytree(folder, to)
    began = begin_of(folder)
    for database in shards_of(to):
        for table, columns in TIMES.items():
            new = ", ".join(f"{name} = {begin} + ({name} - {began}) * {slower}" for name in columns)
            database.execute(f"update {table} set {new}")
        database.commit()
    return to


def settle(folder: Path) -> None:
    """Have things happen in the same millisecond, or take equally long, that do so only by luck."""
    for database in shards_of(folder):
        for job, ms in RACE.items():
            _update(database, "completed", job, f"started_at = finished_at - {ms}")
        first = "select finished_at from completed c join jobs j on j.seq = c.seq where j.id = 'first'"
        _update(database, "completed", "second", f"started_at = ({first})")
        _revive_at_once(database)
        database.commit()


def _revive_at_once(database: sqlite3.Connection) -> None:
    """Have the events say that it was revived in the millisecond in which it failed."""
    rows = database.execute("select first_seq, at, payload from events order by first_seq")
    told = [(seq, at) for seq, at, events in rows for event in msgpack.unpackb(events) if event[2] == REVIVED]
    if told:
        _, _, (_, failed_at), (revived, _), _ = told  # pushed, pulled, failed, revived, removed
        database.execute("update events set at = ? where first_seq = ?", (failed_at, revived))


def put_at(folder: Path, moments: Sequence[int]) -> None:
    """Have as many of EDGES end at these moments (epoch ms), after 999 ms of waiting and 1001 of work."""
    for database in shards_of(folder):
        for job, at in zip(EDGES, moments, strict=True):
            _update(database, "jobs", job, f"created_at = {at - 2000}, run_at = {at - 2000}")
            _update(database, "completed", job, f"started_at = {at - 1001}, finished_at = {at}")
        database.commit()


def _update(database: sqlite3.Connection, table: str, job: str, new: str) -> None:
    database.execute(f"update {table} set {new} where seq = (select seq from jobs where id = ?)", (job,))
