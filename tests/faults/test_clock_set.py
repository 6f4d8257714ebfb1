"""A wall clock that was ahead and is set right: while the server runs, while a shard is down, while all is.

The clock is the server's alone (`support.wall_clock`); the tests themselves live in true time.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.server import Server, StartServer
from support.waiting import PATIENCE_S, eventually
from support.wall_clock import DAY, HOUR, MINUTE, SECOND, WallClock
from support.wire import ConnectionEnded, Reply, Wire, now_ms

SOON = 1_500  # ms, of all that is to end soon; the tests wait longer on a slow machine, but not an hour
LATE = 2 * HOUR
BROUGHT_BACK = "the clock was ahead: times taken from it were brought back"


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path)


@pytest.fixture
def server(make_server: StartServer, clock: WallClock) -> Server:
    server = make_server(shards=1)
    server.environ = clock.environ
    server.start()
    return server


async def ask(server: Server, cmd: str, **fields: Any) -> Reply:
    """An answer that is ok, however long the shard needs to come back."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with await Wire.open(server.address) as wire:
                    reply = await wire.call(cmd, **fields)
            except (ConnectionEnded, ConnectionError):
                reply = {"ok": False}
            if reply["ok"]:
                return reply
            await asyncio.sleep(0.05)  # until it is worth asking again


async def pull(server: Server, queue: str) -> Reply | None:
    """The next job, which goes on when this connection has ended; acked, so that nothing comes back."""
    reply = await ask(server, "PULL", queue=queue, owner="w", detach=True)
    if reply["job"]:
        await ask(server, "ACK", id=reply["job"]["id"], token=reply["token"])
    return reply["job"]


async def gives(server: Server, queue: str, count: int = 1) -> None:
    """A queue gives its jobs, and soon."""
    found: list[Any] = []

    async def look() -> bool:
        if (job := await pull(server, queue)) is not None:
            found.append(job)
        return len(found) == count

    await eventually(look, f"{queue} gives {count} jobs")


async def metric(server: Server, name: str) -> float:
    text = (await ask(server, "Prometheus"))["data"]["metrics"]
    found = re.search(rf"^bunqueue_{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.M)
    assert found, name
    return float(found[1])


async def use(server: Server) -> None:
    """Something of all that has a time."""
    await ask(server, "PUSHB", queue="plain", jobs=[{"data": n} for n in range(3)])
    await ask(server, "PUSH", queue="delayed", data=1, delay=SOON)
    moved = (await ask(server, "PUSH", queue="moved", data=1, delay=LATE))["id"]
    await ask(server, "ChangeDelay", id=moved, delay=SOON)
    await ask(server, "PUSH", queue="retry", data=1, backoff={"type": "fixed", "delay": SOON})
    job = await ask(server, "PULL", queue="retry", owner="w", detach=True)
    await ask(server, "FAIL", id=job["job"]["id"], token=job["token"], error="no")
    await ask(server, "PUSH", queue="locked", data=1)
    await ask(server, "PULL", queue="locked", owner="gone", detach=True, lockTtl=SOON)
    await ask(server, "PUSH", queue="timeout", data=1, timeout=SOON, backoff=1)
    await ask(server, "PULL", queue="timeout", owner="slow", detach=True, lockTtl=HOUR)
    await ask(server, "PUSH", queue="unique", data=1, uniqueKey="k", dedup={"ttl": SOON})
    await ask(server, "RateLimit", queue="rate", limit=1, duration=SOON)
    await ask(server, "PUSHB", queue="rate", jobs=[{"data": n} for n in range(3)])
    assert await pull(server, "rate")
    await ask(server, "RateLimit", queue="ending", limit=0, duration=1000, ttl=SOON)
    await ask(server, "PUSH", queue="ending", data=1)
    await ask(server, "PUSH", queue="group", data=1, groupId="g")
    await ask(server, "RateLimitGroup", queue="group", groupId="g", duration=SOON)
    await ask(server, "Cron", name="every", queue="every", repeatEvery=1000, preventOverlap=False)
    await ask(server, "Cron", name="minute", queue="minute", schedule="* * * * *")
    await ask(server, "PUSH", queue="dead", data=1)
    await ask(
        server, "SetDlqConfig", queue="dead", config={"autoRetry": True, "autoRetryInterval": 10 * MINUTE}
    )
    job = await ask(server, "PULL", queue="dead", owner="w", detach=True)
    await ask(server, "FAIL", id=job["job"]["id"], token=job["token"], error="no", unrecoverable=True)


async def goes_on(server: Server) -> None:
    """All of that ends soon, in true time."""
    await gives(server, "plain", 3)
    for queue in ("delayed", "moved", "retry", "ending", "group", "locked", "timeout"):
        await gives(server, queue)
    await gives(server, "rate", 2)
    await gives(server, "every", 2)

    async def freed() -> bool:
        """The push is a new one: the first job is there, too."""
        await ask(server, "PUSH", queue="unique", data=2, uniqueKey="k")
        return len((await ask(server, "GetJobs", queue="unique"))["jobs"]) == 2

    await eventually(freed, "the unique key is free")
    assert (await ask(server, "CronGet", name="minute"))["cron"]["nextRun"] < now_ms() + 2 * MINUTE
    (entry,) = (await ask(server, "Dlq", queue="dead"))["entries"]
    assert entry["enteredAt"] < now_ms() + SECOND
    assert entry["nextRetryAt"] < now_ms() + 11 * MINUTE


def last_event_at(server: Server) -> int:
    """Of the file."""
    with closing(sqlite3.connect(Path(server.data_dir) / "shard-00.db")) as db:
        return int(db.execute("select max(at) from events").fetchone()[0])


def restarted(server: Server, clock: WallClock) -> None:
    server.kill_all()
    clock.set(0)
    server.restart()


def killed_later(server: Server, clock: WallClock) -> None:
    clock.set(0)
    server.kill_shards()


def set_right(server: Server, clock: WallClock) -> None:
    clock.set(0)


@pytest.mark.parametrize("how", [set_right, killed_later, restarted])
async def test_an_hour_ahead_and_set_right_nothing_stands_still(
    server: Server, clock: WallClock, how: Any
) -> None:
    early = (await ask(server, "PUSH", queue="early", data=1, delay=LATE))["id"]
    due = now_ms() + LATE
    clock.set(HOUR)
    await use(server)
    how(server, clock)
    await goes_on(server)
    assert last_event_at(server) < now_ms() + SECOND
    job = (await ask(server, "GetJob", id=early))["job"]
    assert job["runAt"] > due - SECOND * 30, "what was put off by the true clock stays so"
    log = server.whole_log()
    assert "the clock was set forward" in log
    told = log.count(BROUGHT_BACK)
    most = 2 if how is killed_later else 1  # a kill may come between the line and its commit
    assert 1 <= told <= most, log


async def test_a_clock_set_back_below_the_truth_is_followed(server: Server, clock: WallClock) -> None:
    await use(server)
    clock.set(-HOUR)
    await gives(server, "delayed")
    await gives(server, "rate", 2)
    await gives(server, "every", 2)
    assert await metric(server, "clock_jumps_total") == 1
    assert -HOUR / 1000 - 5 < await metric(server, "clock_last_jump_seconds") < -HOUR / 1000 + 5
    cron = (await ask(server, "CronGet", name="minute"))["cron"]
    assert cron["nextRun"] < clock.now_ms() + 2 * MINUTE, "a cron expression means the wall clock"


async def test_eight_days_ahead_delete_nothing(make_server: StartServer, clock: WallClock) -> None:
    server = make_server("--completed-max-age", str(24 * 3600), shards=1)
    server.environ = clock.environ
    server.start()
    await ask(server, "PUSHB", queue="q", jobs=[{"data": n} for n in range(4)])
    await ask(server, "PUSH", queue="q", data="short-lived", ttl=DAY, delay=1)
    await gives(server, "q", 3)
    job = await ask(server, "PULL", queue="q", owner="w", detach=True)
    await ask(server, "FAIL", id=job["job"]["id"], token=job["token"], error="no", unrecoverable=True)
    events = await retained_events(server)

    clock.set(8 * DAY)
    await ask(server, "PUSH", queue="other", data=1)
    await gives(server, "other")
    assert await metric(server, "clock_doubt_seconds") == pytest.approx(8 * DAY / 1000, abs=60)
    server.kill_all()  # a start that knows it from the file only
    server.restart()
    # Rounds of retention begin 10 s after a start, of the event log with the first batch.
    await asyncio.sleep(12)  # in which a round would remove something
    assert (await ask(server, "GetJobCounts", queue="q"))["counts"]["completed"] == 3
    assert (await ask(server, "CountDlq", queue="q"))["count"] == 1
    assert await retained_events(server) >= events
    await gives(server, "q")  # the one with a time to live
    clock.set(0)
    await ask(server, "Ping")
    assert (await ask(server, "GetJobCounts", queue="q"))["counts"]["completed"] == 4

    async def trusted() -> bool:
        return await metric(server, "clock_doubt_seconds") == 0

    await eventually(trusted, "the shard has seen that the clock is right again")


async def retained_events(server: Server) -> int:
    with closing(sqlite3.connect(Path(server.data_dir) / "shard-00.db")) as db:
        return int(db.execute("select sum(count) from events").fetchone()[0])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
async def test_a_clock_that_jumps_at_random(make_server: StartServer, clock: WallClock, seed: int) -> None:
    """Jobs are pushed, put off, failed and abandoned, and shards killed, while the clock is set to and fro.

    When it is right again, every accepted job comes once, and soon; what was put off by a true clock keeps
    its time.
    """
    rng = random.Random(seed)
    server = make_server()
    server.environ = clock.environ
    server.start()
    queues = ["one", "two", "three", "four"]
    for queue in queues:
        await ask(server, "PUSH", queue=queue, data=1, removeOnComplete=True)
        assert await pull(server, queue)
        await ask(server, "SetStallConfig", queue=queue, config={"maxStalls": 1000})
    accepted: set[str] = set()
    true: dict[str, float] = {}  # when jobs are due that were put off while the clock was right
    for _ in range(40):
        queue = rng.choice(queues)
        match rng.randrange(6):
            case 0:
                clock.set(rng.choice([0, 0, rng.randrange(HOUR), rng.randrange(9 * DAY)]))
            case 1 if rng.random() < 0.5:
                server.kill_shards(rng.randrange(2))
            case 2:
                fields = {"queue": "late", "data": 1, "delay": 30 * DAY}
                if clock.ahead == 0:
                    true[(await ask(server, "PUSH", **fields))["id"]] = now_ms() + 30 * DAY
            case 3:
                job = await ask(server, "PULL", queue=queue, owner="w", detach=True, lockTtl=SOON)
                if job["job"] and rng.random() < 0.7:
                    await ask(server, "FAIL", id=job["job"]["id"], token=job["token"], error="no")
            case _:
                jobs = [
                    {"data": n, "maxAttempts": 1000, "backoff": SOON, "delay": rng.choice([0, 0, SOON])}
                    for n in range(rng.randrange(1, 20))
                ]
                accepted.update((await ask(server, "PUSHB", queue=queue, jobs=jobs))["ids"])
    clock.set(0)
    if rng.random() < 0.5:
        server.kill_all()
        server.restart()
    done: list[str] = []

    async def all_done() -> bool:
        for queue in queues:
            while (job := await pull(server, queue)) is not None:
                done.append(job["id"])
        return len(done) >= len(accepted)

    await eventually(all_done, "all jobs come")
    assert len(done) == len(set(done))
    assert set(done) == accepted
    for job_id, due in true.items():
        job = (await ask(server, "GetJob", id=job_id))["job"]
        assert abs(job["runAt"] - due) < MINUTE, "no jump moves what a true clock put off"


async def test_a_jump_forward_costs_no_lock_and_forgets_no_push(server: Server, clock: WallClock) -> None:
    push = {"queue": "q", "data": 1, "idempotencyKey": "once"}
    first = (await ask(server, "PUSH", **push))["id"]
    job = await ask(server, "PULL", queue="q", owner="w", detach=True, lockTtl=10 * SECOND)
    for _ in range(2):  # while it runs, and at a start
        clock.set(clock.ahead + HOUR)
        assert (await ask(server, "PUSH", **push))["id"] == first, "known by its key"
        server.kill_all()
        clock.set(clock.ahead + HOUR)
        server.restart()
        assert (await ask(server, "PUSH", **push))["id"] == first, "known by its key"
    await ask(server, "ACK", id=first, token=job["token"])
    assert (await ask(server, "GetJobCounts", queue="q"))["counts"]["completed"] == 1
    assert server.whole_log().count("the clock was set forward") == 4


EMBEDDED = """
import sys
from bunqueue import Queue
with Queue("q", embedded=True, data_path=sys.argv[1]) as queue:
    if sys.argv[2] == "add":
        queue.add("job", 1)
    else:
        print(queue.count())
"""


def test_an_embedded_file_was_written_ahead_of_the_time(tmp_path: Path, clock: WallClock) -> None:
    """Without delay, pushed an hour ahead: it waits, and is not put off."""
    path = tmp_path / "queue.db"
    clock.set(HOUR)
    for what in ("add", "count"):
        run = [sys.executable, "-c", EMBEDDED, str(path), what]
        ran = subprocess.run(run, env=os.environ | clock.environ, capture_output=True, text=True, check=True)
        clock.set(0)
    with closing(sqlite3.connect(path)) as db:
        ((run_at,),) = db.execute("select run_at from jobs")
    assert run_at < now_ms() + SECOND, ran.stderr


MANY = 20_000


def moves(server: Server) -> bool:
    """Whether the shard's file says that times are still being brought back."""
    path = Path(server.data_dir) / "shard-00.db"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        return db.execute("select 1 from meta where key = 'set_back'").fetchone() is not None


async def kill_while_it_moves(server: Server, clock: WallClock, kills: int, seed: int) -> int:
    """Set the clock right, and kill the shard again and again; how often that was in the middle of it."""
    chance, hit, before = random.Random(seed), 0, server.log().count(BROUGHT_BACK)

    def moves_or_has() -> bool:
        return moves(server) or server.log().count(BROUGHT_BACK) > before

    async with await Wire.open(server.address) as wire:
        for _ in range(MANY // 1000):
            jobs = [{"data": 1, "delay": LATE if number % 2 else 1} for number in range(1000)]
            await wire.ok("PUSHB", queue="q", jobs=jobs)
        pulled = await wire.ok("PULLB", queue="q", count=1000, owner="w")
        await wire.ok("ACKB", ids=[job["id"] for job in pulled["jobs"]], tokens=pulled["tokens"])
        clock.set(0)
        await wire.ok("Count", queue="q")  # it looks at the clock now
    for number in range(kills):
        await eventually(moves_or_has, "times are being brought back")
        await asyncio.sleep(chance.random() * 0.2 if number else 0)  # a moment of its own for each kill
        server.kill_shards()
        hit += moves(server)
        if not moves(server):
            break
    return hit


async def check_all_moved(server: Server, turns: int = 1) -> None:
    await ask(server, "Count", queue="q")
    await eventually(lambda: not moves(server), "all times are brought back")
    with closing(sqlite3.connect(Path(server.data_dir) / "shard-00.db")) as db:
        now = now_ms() + SECOND
        for table, times in (("jobs", "created_at"), ("completed", "finished_at"), ("events", "at")):
            ((late,),) = db.execute(f"select count(*) from {table} where {times} > ?", (now,))
            assert late == 0, table
        ((early, late),) = db.execute(
            "select sum(run_at < ?), sum(run_at > ?) from jobs where run_at > ?",
            (now + LATE - 10 * MINUTE, now + LATE, now),
        )
        assert not early, "a job was moved twice"
        assert not late, "a job was not moved"
    assert (await ask(server, "GetJobCounts", queue="q"))["counts"]["delayed"] == turns * MANY // 2


async def test_a_shard_that_is_killed_while_it_brings_times_back_goes_on_with_it(
    server: Server, clock: WallClock
) -> None:
    hits: list[int] = []
    while not any(hits):  # this process may be late
        assert len(hits) < 5, "it was never in the middle of it"
        clock.set(HOUR)
        hits.append(await kill_while_it_moves(server, clock, 1, seed=1))
    await check_all_moved(server, len(hits))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
async def test_a_shard_that_is_killed_again_and_again(server: Server, clock: WallClock, seed: int) -> None:
    clock.set(HOUR)
    assert await kill_while_it_moves(server, clock, 6, seed)
    await check_all_moved(server)


async def test_others_do_not_wait_until_all_times_are_brought_back(server: Server, clock: WallClock) -> None:
    """Counted in commands, as a slow machine takes long for everything; once at least, as this process may be
    late."""
    async with await Wire.open(server.address) as wire:
        for turn in range(1, 6):
            clock.set(HOUR)
            for _ in range(MANY // 1000):
                await wire.ok("PUSHB", queue="q", jobs=[{"data": 1, "delay": LATE}] * 1000)
            clock.set(0)
            served = 0
            while server.log().count(BROUGHT_BACK) < turn:
                await wire.ok("PUSH", queue="other", data=served)
                served += 1
            if served > 5:
                break
        assert served > 5
    assert await metric(server, "clock_times_moved_total") >= MANY
