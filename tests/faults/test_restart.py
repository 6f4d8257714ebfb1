"""What is left of a job when processes end between two steps of its life, and how the server ends and starts.

Every way to end is tried at every step: the router and all shards killed, the shards killed below a living
router, and the orderly stop.  A client's connection survives the second only.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.budget import budget
from support.naming import queue_on
from support.procfs import Process
from support.server import NotStarted, Server, StartServer, dispose, quiet_port
from support.waiting import eventually, wait_until
from support.wire import ConnectionEnded, Reply, Wire, now_ms

from router.process import AGAIN_S

QUEUES = ["", ""]  # of the running test, one on each shard
LONG_MS = 60_000
SHORT_MS = 8_000  # of a lock: more than a busy machine needs for some commands


def kill_everything(server: Server) -> None:
    server.kill_all()
    server.restart()


def kill_the_shards(server: Server) -> None:
    """The router stays, and with it the connections that have nothing in flight."""
    server.kill_shards()
    wait_until(lambda: len(server.shard_processes()) == server.shards, "the shards are started again")


def kill_the_router(server: Server) -> None:
    server.kill_router()
    server.restart()


def stop_in_order(server: Server) -> None:
    assert server.stop() == 0
    server.until_gone()
    server.restart()


ENDS = (kill_everything, kill_the_shards, stop_in_order, *budget((), (kill_the_router,)))
ends = pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
End = Callable[[Server], None]


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("restart") / "data", port=quiet_port())
    yield server
    dispose(server)


@pytest.fixture
def server(one_server: Server) -> Server:
    """A server that all tests here end and start again."""
    if not one_server.running:
        one_server.restart()
    return one_server


@pytest.fixture(autouse=True)
def queues(request: pytest.FixtureRequest) -> None:
    prefix = str(request.node.name).translate(str.maketrans("[]", "--"))
    QUEUES[:] = [queue_on(0, prefix), queue_on(1, prefix)]


@pytest.fixture
def own_server(make_server: StartServer) -> Server:
    """A server of the test's own."""
    server = make_server(port=quiet_port())
    server.start()
    return server


@asynccontextmanager
async def again(server: Server, end: End) -> AsyncIterator[Wire]:
    """End the server in that way; a new connection to it when all shards are back."""
    await asyncio.to_thread(end, server)
    async with await Wire.open(server.address) as wire:

        async def all_back() -> bool:
            return bool((await wire.call("Stats"))["ok"])

        await eventually(all_back, "all shards answer")
        yield wire


async def state(wire: Wire, job_id: str) -> str:
    return str((await wire.ok("GetState", id=job_id))["state"])


async def job_of(wire: Wire, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = (await wire.ok("GetJob", id=job_id))["job"]
    return job


async def push(wire: Wire, queue: str = "", **options: Any) -> str:
    return str((await wire.ok("PUSH", queue=queue or QUEUES[0], **({"data": {"n": 1}} | options)))["id"])


async def pull(wire: Wire, queue: str = "", **options: Any) -> Reply:
    """Take a job that must be there."""
    reply = await wire.ok("PULL", queue=queue or QUEUES[0], **options)
    assert reply["job"] is not None
    return reply


# The steps of a job's life


@ends
async def test_waiting_jobs_keep_everything_and_their_order(server: Server, end: End) -> None:
    options: list[dict[str, Any]] = [
        {"data": {"text": "é\u0000", "list": [1, 2.5, None, True, b"\x00\xff"], "deep": {"a": {"b": [[]]}}}},
        {"data": None, "priority": 5, "name": "named"},
        {"data": 1, "lifo": True, "tags": ["a", "b"]},
        {"data": 2, "lifo": True, "durable": True},
        {"data": 3, "priority": -3, "timeout": 5000, "ttl": 600_000, "maxAttempts": 7, "backoff": 1234},
        {"data": 4, "removeOnComplete": True, "removeOnFail": True, "uniqueKey": "k"},
        {"data": 5, "backoff": {"type": "fixed", "delay": 77}},
        {"data": 6},
    ]
    async with await Wire.open(server.address) as wire:
        ids = [await push(wire, **job) for job in options]
        before = [await job_of(wire, job_id) for job_id in ids]
    async with again(server, end) as wire:
        assert [await job_of(wire, job_id) for job_id in ids] == before
        out = [(await pull(wire))["job"]["id"] for _ in ids]
        assert out == [ids[i] for i in (1, 3, 2, 0, 5, 6, 7, 4)]
        assert (await wire.ok("PULL", queue=QUEUES[0]))["job"] is None


@ends
async def test_a_delayed_job_comes_when_it_is_due(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        soon, late = await push(wire, delay=2000), await push(wire, delay=LONG_MS)
        due = (await job_of(wire, soon))["runAt"]
    async with again(server, end) as wire:
        assert await state(wire, late) == "delayed"
        assert (await job_of(wire, soon))["runAt"] == due
        reply = await pull(wire, timeout=60_000)
        assert reply["job"]["id"] == soon
        assert due <= reply["job"]["startedAt"]
        assert await state(wire, late) == "delayed"


@ends
async def test_a_job_that_became_due_while_the_server_was_away_is_ready(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        job_id = await push(wire, delay=300)
        due = (await job_of(wire, job_id))["runAt"]

    def end_and_wait(server: Server) -> None:
        end(server)
        wait_until(lambda: now_ms() > due, "the delay is over")

    async with again(server, end_and_wait) as wire:
        assert (await pull(wire))["job"]["id"] == job_id


@ends
async def test_a_locked_job_stays_with_its_worker(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        job_id = await push(wire, maxAttempts=1)
        token = (await pull(wire, owner="w", lockTtl=LONG_MS))["token"]
        before = await job_of(wire, job_id)
        async with again(server, end) as other:
            after = await job_of(other, job_id)
            assert after | {"lastHeartbeat": 0} == before | {"lastHeartbeat": 0}
            assert (await other.ok("PULL", queue=QUEUES[0], timeout=200))["job"] is None
            assert await other.error("ACK", id=job_id) == f"Lock token required for job {job_id}"
            assert "Invalid or expired lock token" in await other.error("ACK", id=job_id, token="wrong")
            await other.ok("ACK", id=job_id, token=token, result={"done": 1})
            assert await state(other, job_id) == "completed"
            assert (await other.ok("GetResult", id=job_id))["result"] == {"done": 1}


@ends
async def test_locks_run_anew_after_a_restart(server: Server, end: End) -> None:
    """A long one outlives the first sweep; short ones run out, as their worker does not come back.

    An attempt is used up only where the worker had shown that it had the job, or is still connected: other
    deliveries may have been lost.
    """
    async with await Wire.open(server.address) as wire:
        held, lost, dead = await push(wire), await push(wire), await push(wire, maxAttempts=1)
        kept = (await pull(wire, owner="w", lockTtl=600_000))["token"]
        late = (await pull(wire, owner="w", lockTtl=SHORT_MS))["token"]
        seen = (await pull(wire, owner="w", lockTtl=SHORT_MS))["token"]
        await wire.ok("JobHeartbeat", id=dead, token=seen)
        async with again(server, end) as other:
            assert [await state(other, job_id) for job_id in (held, lost, dead)] == ["active"] * 3

            async def swept() -> bool:
                return [await state(other, job_id) for job_id in (lost, dead)] == ["waiting", "failed"]

            await eventually(swept, "the short locks are taken back")
            job = await job_of(other, lost)
            charged = 1 if end is kill_the_shards else 0
            assert (job["attempts"], job["stallCount"]) == (charged, charged)
            await other.ok("ACK", id=lost, token=late)  # late, but nobody had taken it
            assert await state(other, lost) == "completed"
            assert [job["id"] for job in (await other.ok("Dlq", queue=QUEUES[0]))["jobs"]] == [dead]
            assert await state(other, held) == "active"
            assert (await other.ok("PULL", queue=QUEUES[0]))["job"] is None
            await other.ok("ACK", id=held, token=kept)


@ends
async def test_the_token_of_a_lost_lock_still_completes_the_waiting_job(server: Server, end: End) -> None:
    """the reference server, Restart; here the lock had been taken back before the end."""
    async with await Wire.open(server.address) as wire:
        job_id = await push(wire)
        token = (await pull(wire, owner="w", lockTtl=1))["token"]

        async def lost() -> bool:
            return await state(wire, job_id) == "waiting"

        await eventually(lost, "the lock is taken back")
        async with again(server, end) as other:
            assert await state(other, job_id) == "waiting"
            await other.ok("ACK", id=job_id, token=token)
            assert await state(other, job_id) == "completed"


@ends
async def test_an_unlocked_job_returns_when_its_connection_is_gone(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        first, second = await push(wire), await push(wire)
        assert (await pull(wire))["job"]["id"] == first
        await wire.ok("Progress", id=first, progress=30)
    async with again(server, end) as wire:
        job = await job_of(wire, first)
        assert (job["state"], job["attempts"], job["stallCount"]) == ("waiting", 0, 0)
        assert (job["startedAt"], job["progress"]) == (None, 0)
        assert [(await pull(wire))["job"]["id"] for _ in range(2)] == [first, second]


async def test_an_unlocked_job_stays_with_a_connection_that_survived(server: Server) -> None:
    async with await Wire.open(server.address) as wire:
        jobs = {queue: await push(wire, queue) for queue in QUEUES}
        for queue in QUEUES:
            await pull(wire, queue)
        async with again(server, kill_the_shards) as other:
            for queue, job_id in jobs.items():
                assert await state(other, job_id) == "active"
                assert (await other.ok("PULL", queue=queue, timeout=200))["job"] is None
            await wire.ok("ACK", id=jobs[QUEUES[0]], result=1)
            assert await state(other, jobs[QUEUES[0]]) == "completed"
            await wire.close()  # and still its end gives back what it holds

            async def released() -> bool:
                return await state(other, jobs[QUEUES[1]]) == "waiting"

            await eventually(released, "the closed connection's job is back")


async def test_a_locked_job_returns_when_the_surviving_connection_closes(server: Server) -> None:
    async with await Wire.open(server.address) as wire:
        job_id = await push(wire)
        token = (await pull(wire, owner="w", lockTtl=LONG_MS))["token"]
        async with again(server, kill_the_shards) as other:
            await wire.close()

            async def released() -> bool:
                return await state(other, job_id) == "waiting"

            await eventually(released, "the closed connection's job is back")
            job = await job_of(other, job_id)
            assert (job["attempts"], job["stallCount"]) == (0, 0)
            await other.ok("ACK", id=job_id, token=token)  # it was not its worker that closed the connection
            assert await state(other, job_id) == "completed"


async def test_a_renewed_lock_outlives_a_crash_and_then_its_connection(server: Server) -> None:
    """Disconnect: a lock that was renewed stays, as its worker lives on another connection."""
    async with await Wire.open(server.address) as wire:
        job_id = await push(wire)
        token = (await pull(wire, owner="w", lockTtl=LONG_MS))["token"]
        await wire.ok("JobHeartbeat", id=job_id, token=token)
        async with again(server, kill_the_shards) as other:
            await wire.close()
            assert (await other.ok("PULL", queue=QUEUES[0], timeout=500))["job"] is None
            assert await state(other, job_id) == "active"
            await other.ok("ACK", id=job_id, token=token)


@pytest.mark.parametrize(
    "end", [kill_everything, kill_the_router, stop_in_order], ids=lambda end: end.__name__
)
async def test_connections_of_an_earlier_router_are_not_those_of_this_one(
    own_server: Server, end: End
) -> None:
    """Routers number their connections from the start; a lock must not pass to whoever has its number now."""
    async with await Wire.open(own_server.address) as wire:
        job_id = await push(wire)
        token = (await pull(wire, owner="w", lockTtl=LONG_MS))["token"]
        await asyncio.to_thread(end, own_server)
        strangers = [await Wire.open(own_server.address) for _ in range(5)]
        await asyncio.to_thread(kill_the_shards, own_server)
        for stranger in strangers:

            async def back(wire: Wire = stranger) -> bool:
                return bool((await wire.call("Stats"))["ok"])

            await eventually(back, "all shards answer")
            for queue in QUEUES:
                await stranger.ok("GetJobCounts", queue=queue)  # a shard hears only of the end of who used it
            await stranger.close()
        async with await Wire.open(own_server.address) as other:
            assert (await other.ok("PULL", queue=QUEUES[0], timeout=500))["job"] is None
            await other.ok("ACK", id=job_id, token=token)


@pytest.mark.parametrize("end", [kill_everything, kill_the_shards], ids=lambda end: end.__name__)
async def test_a_lock_renewed_for_longer_lasts_as_long(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        job_id = await push(wire)
        token = (await pull(wire, owner="w", lockTtl=SHORT_MS))["token"]
        await wire.ok("JobHeartbeat", id=job_id, token=token, duration=LONG_MS)
        async with again(server, end) as other:
            assert (await other.ok("PULL", queue=QUEUES[0], timeout=14_000))["job"] is None  # over a sweep
            assert await state(other, job_id) == "active"


@ends
async def test_a_retry_that_waits(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        later = await push(wire, backoff=LONG_MS)
        soon = await push(wire, backoff={"type": "fixed", "delay": 1000}, timeout=LONG_MS)
        for job_id in (later, soon):
            token = (await pull(wire, owner="w"))["token"]
            await wire.ok("FAIL", id=job_id, token=token, error=f"broke {job_id}", stack="line 1\nline 2")
        before = [await job_of(wire, job_id) for job_id in (later, soon)]
        assert before[0]["state"] == "delayed"
    async with again(server, end) as wire:
        assert await job_of(wire, later) == before[0]
        reply = await pull(wire, owner="w", timeout=60_000)
        job = reply["job"]
        assert (job["id"], job["attempts"]) == (soon, 1)
        assert job["startedAt"] >= before[1]["runAt"]
        await wire.ok("FAIL", id=soon, token=reply["token"], error="again")
        assert (await job_of(wire, soon))["attempts"] == 2


@ends
async def test_a_job_in_its_second_attempt(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        job_id = await push(wire, backoff=0)
        token = (await pull(wire, owner="w"))["token"]
        await wire.ok("FAIL", id=job_id, token=token, error="first")
        token = (await pull(wire, owner="w", timeout=60_000, lockTtl=LONG_MS))["token"]
        before = await job_of(wire, job_id)
        async with again(server, end) as other:
            after = await job_of(other, job_id)
            assert after | {"lastHeartbeat": 0} == before | {"lastHeartbeat": 0}
            await other.ok("ACK", id=job_id, token=token)
            moments = [moment["state"] for moment in (await job_of(other, job_id))["timeline"]]
            assert moments == ["waiting", "active", "failed", "waiting", "active", "completed"]


@ends
async def test_completed_jobs_and_their_results(server: Server, end: End) -> None:
    results: list[Any] = [{"text": "ü", "bytes": b"\x00", "list": [1, [2.5, None]]}, None, 0, "", [], False]
    async with await Wire.open(server.address) as wire:
        ids = [await push(wire, removeOnComplete=False) for _ in results]
        for job_id, result in zip(ids, results, strict=True):
            await pull(wire)
            await wire.ok("Progress", id=job_id, progress=99, message="nearly")
            await wire.ok("ACK", id=job_id, result=result)
        removed = await push(wire, removeOnComplete=True)
        await pull(wire)
        await wire.ok("ACK", id=removed, result=1)
        before = [await job_of(wire, job_id) for job_id in ids]
    async with again(server, end) as wire:
        assert [await job_of(wire, job_id) for job_id in ids] == before
        for job_id, result in zip(ids, results, strict=True):
            assert (await wire.ok("GetResult", id=job_id))["result"] == result
            assert "not in processing state" in await wire.error("ACK", id=job_id)
        assert await state(wire, removed) == "unknown"
        counts = (await wire.ok("GetJobCounts", queue=QUEUES[0]))["counts"]
        assert (counts["completed"], counts["waiting"], counts["active"]) == (len(ids), 0, 0)


@ends
async def test_dead_letters(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        dead = await push(wire, maxAttempts=1, uniqueKey="k")
        await pull(wire)
        await wire.ok("FAIL", id=dead, error="no")
        removed = await push(wire, maxAttempts=1, removeOnFail=True)
        await pull(wire)
        await wire.ok("FAIL", id=removed, error="no")
        before = await job_of(wire, dead)
        listed = (await wire.ok("Dlq", queue=QUEUES[0]))["jobs"]
        assert before["state"] == "failed"
    async with again(server, end) as wire:
        assert await job_of(wire, dead) == before
        assert await state(wire, removed) == "unknown"
        assert (await wire.ok("Dlq", queue=QUEUES[0]))["jobs"] == listed
        assert (await wire.ok("RetryDlq", queue=QUEUES[0]))["count"] == 1
        assert (await pull(wire))["job"]["attempts"] == 0


@ends
async def test_a_retried_dead_letter_is_alive(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        dead = await push(wire, maxAttempts=1)
        await pull(wire)
        await wire.ok("FAIL", id=dead, error="no")
        assert (await wire.ok("RetryDlq", queue=QUEUES[0], jobId=dead))["count"] == 1
        before = await job_of(wire, dead)
    async with again(server, end) as wire:
        assert await job_of(wire, dead) == before
        assert (await wire.ok("Dlq", queue=QUEUES[0]))["jobs"] == []
        assert (await pull(wire))["job"]["id"] == dead


@ends
async def test_progress(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        job_id = await push(wire)
        await pull(wire, owner="w", lockTtl=LONG_MS)
        await wire.ok("Progress", id=job_id, progress=40.5, message="halfway")
        await wire.ok("Progress", id=job_id, progress=41.5)
        async with again(server, end) as other:
            reply = await other.ok("GetProgress", id=job_id)
            assert (reply["progress"], reply["message"]) == (41.5, "halfway")


@ends
async def test_unique_keys_still_hold(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        active = await push(wire, uniqueKey="active")
        await pull(wire, owner="w", lockTtl=LONG_MS)
        done = await push(wire, uniqueKey="done")
        await pull(wire)
        await wire.ok("ACK", id=done)
        retried = await push(wire, uniqueKey="retried", backoff=LONG_MS)
        await pull(wire)
        await wire.ok("FAIL", id=retried, error="no")  # every FAIL gives the key up
        waiting = await push(wire, uniqueKey="waiting")
        delayed = await push(wire, uniqueKey="delayed", delay=LONG_MS)
        async with again(server, end) as other:
            assert await push(other, uniqueKey="active") == active
            assert await push(other, uniqueKey="waiting") == waiting
            assert await push(other, uniqueKey="delayed") == delayed
            assert await push(other, uniqueKey="done") != done
            successor = await push(other, uniqueKey="retried")
            assert successor != retried
            assert await push(other, uniqueKey="retried") == successor
            assert await push(other, QUEUES[1], uniqueKey="waiting") != waiting  # a key is its queue's


@pytest.mark.parametrize("end", ENDS[:1], ids=lambda end: end.__name__)
async def test_a_full_queue_is_full_again(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        await wire.ok("SetBounds", queue=QUEUES[0], config={"maxWaiting": 2, "maxWaitingBytes": 1_000})
        first, _ = await push(wire), await push(wire, delay=LONG_MS)
        space = (await wire.ok("GetBounds", queue=QUEUES[0]))["space"]
    async with again(server, end) as wire:
        assert (await wire.call("PUSH", queue=QUEUES[0], data=3))["code"] == "QUEUE_FULL"
        assert (await wire.ok("GetBounds", queue=QUEUES[0]))["space"] == {**space, "refused": 1}
        await wire.ok("SetBounds", queue=QUEUES[0], config={"whenFull": "drop-oldest"})
        await push(wire)
        assert await state(wire, first) == "unknown"
        assert (await wire.ok("GetBounds", queue=QUEUES[0]))["space"]["waiting"] == 2


@pytest.mark.parametrize("end", ENDS[:2], ids=lambda end: end.__name__)
async def test_unique_keys_outlast_their_jobs(server: Server, end: End) -> None:
    keep = {"ttl": LONG_MS, "onConflict": "keep"}
    async with await Wire.open(server.address) as wire:
        first = await push(wire, uniqueKey="k", dedup=keep)
        token = (await pull(wire, owner="w"))["token"]
        await wire.ok("ACK", id=first, token=token)
    async with again(server, end) as wire:
        assert (await wire.ok("PUSH", queue=QUEUES[0], uniqueKey="k", dedup=keep))["id"] == first
        other = await push(wire, uniqueKey="l")
        assert (await pull(wire, owner="w"))["job"]["id"] == other
        supersede = {"onConflict": "supersede", "grace": 5_000}
        new = await push(wire, uniqueKey="l", dedup=supersede)
    async with again(server, end) as wire:

        async def has_ended() -> bool:
            return await state(wire, other) == "cancelled"

        await eventually(has_ended, "the other one has ended, at the latest when its time is over")
        assert (await pull(wire))["job"]["id"] == new


@ends
async def test_a_late_answer_after_a_timeout_is_still_ignored(server: Server, end: End) -> None:
    """the reference server, Retry: ok with ``applied: false``, whether a retry waits or the job is dead."""
    async with await Wire.open(server.address) as wire:
        tokens = {}
        for attempts in (1, 3):
            job_id = await push(wire, timeout=100, backoff=LONG_MS, maxAttempts=attempts)
            tokens[job_id] = (await pull(wire, owner="w", lockTtl=LONG_MS))["token"]

        async def timed_out() -> bool:
            return {await state(wire, job_id) for job_id in tokens} == {"failed", "delayed"}

        await eventually(timed_out, "both ran into their timeout")
        async with again(server, end) as other:
            for job_id, token in tokens.items():
                reply = await other.ok("ACK", id=job_id, token=token)
                assert reply.get("data") == {"applied": False, "reason": "already-finalized"}


@ends
async def test_a_processing_timeout_still_runs_out(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        job_id = await push(wire, timeout=2000, maxAttempts=1)
        await pull(wire, owner="w", lockTtl=LONG_MS)
        async with again(server, end) as other:

            async def dead() -> bool:
                return await state(other, job_id) == "failed"

            await eventually(dead, "the timeout ends the job")
            assert (await job_of(other, job_id))["failedReason"] == "Job timeout exceeded"


@ends
async def test_numbers_about_the_server(own_server: Server, end: End) -> None:
    async with await Wire.open(own_server.address) as wire:
        for queue in QUEUES:
            await wire.ok("PUSHB", queue=queue, jobs=[{"data": n, "maxAttempts": 1} for n in range(10)])
            await push(wire, queue, delay=LONG_MS)
            jobs = await wire.ok("PULLB", queue=queue, count=6, owner="w", lockTtl=LONG_MS)
            await wire.ok("ACKB", ids=[job["id"] for job in jobs["jobs"][:3]], tokens=jobs["tokens"][:3])
            await wire.ok("FAIL", id=jobs["jobs"][3]["id"], token=jobs["tokens"][3])

        async def numbers(wire: Wire) -> list[Any]:
            stats = (await wire.ok("Stats"))["stats"]
            return [
                {key: stats[key] for key in ("queued", "processing", "delayed", "dlq", "completed")},
                sorted((await wire.ok("ListQueues"))["queues"], key=lambda queue: str(queue["name"])),
                [(await wire.ok("GetJobCounts", queue=queue))["counts"] for queue in QUEUES],
                [(await wire.ok("Count", queue=queue))["count"] for queue in QUEUES],
                [(await wire.ok("GetJobs", queue=queue, state="failed"))["jobs"] for queue in QUEUES],
            ]

        before = await numbers(wire)
        assert before[0] == {"queued": 8, "processing": 4, "delayed": 2, "dlq": 2, "completed": 6}
        async with again(own_server, end) as other:
            assert await numbers(other) == before


@ends
async def test_ids_and_tokens_go_on_ascending(server: Server, end: End) -> None:
    async with await Wire.open(server.address) as wire:
        old = [await push(wire, removeOnComplete=True) for _ in range(3)]
        for job_id in old:
            await pull(wire)
            await wire.ok("ACK", id=job_id)
        token = (await pull(wire, owner="w"))["token"] if await push(wire) else ""
    async with again(server, end) as wire:
        new = [await push(wire) for _ in range(3)]
        assert len({*old, *new}) == 6
        assert max(old) < min(new)
        assert token < (await pull(wire, owner="w"))["token"]


# The end of the server


async def test_sigterm_under_load_answers_or_cuts_and_loses_nothing(server: Server) -> None:
    acked: list[str] = []
    async with await Wire.open(server.address) as wire, await Wire.open(server.address) as waiting:
        parked = waiting.send("PULL", queue="nothing-here", timeout=60_000)

        async def load(queue: str) -> None:
            while wire.alive:
                replies = wire.send_many({"cmd": "PUSH", "queue": queue, "data": n} for n in range(50))
                for reply in replies:
                    try:
                        acked.append((await reply)["id"])
                    except ConnectionEnded:
                        return

        loads = [asyncio.create_task(load(queue)) for queue in QUEUES]
        await eventually(lambda: len(acked) > 500, "the load runs")
        server.signal(signal.SIGTERM)
        status = await asyncio.to_thread(server.wait)
        await asyncio.gather(*loads)
        with pytest.raises(ConnectionEnded):
            await parked
    assert status == 0
    assert "did not stop in time" not in server.log(), "idle polls and a busy client must not keep it"
    server.until_gone()
    await asyncio.to_thread(server.restart)
    async with await Wire.open(server.address) as wire:
        states = wire.send_many({"cmd": "GetState", "id": job_id} for job_id in acked)
        assert {(await reply)["state"] for reply in states} == {"waiting"}


async def test_sigterm_with_a_client_that_does_not_read(own_server: Server) -> None:
    async with await Wire.open(own_server.address) as wire:
        await wire.ok("PUSHB", queue=QUEUES[0], jobs=[{"data": "x" * 10_000} for _ in range(1000)])
        deaf = await Wire.open(own_server.address, deaf=True)
        deaf.send_many({"cmd": "GetJobs", "queue": QUEUES[0], "limit": 1000} for _ in range(3))
        await wire.ok("GetJobCounts", queue=QUEUES[0])  # behind the answers to the deaf one
        own_server.signal(signal.SIGTERM)
        assert await asyncio.to_thread(own_server.wait) == 0
        own_server.until_gone()
        deaf.abort()


async def test_sigint_ends_it_in_order_too(server: Server) -> None:
    async with await Wire.open(server.address) as wire:
        await push(wire)
    server.signal(signal.SIGINT)
    assert await asyncio.to_thread(server.wait) == 0
    server.until_gone()


async def test_the_second_sigterm_ends_it_at_once(server: Server) -> None:
    async with await Wire.open(server.address) as wire:
        job_id = await push(wire)
        shard = server.shard(0)
        shard.kill(signal.SIGSTOP)  # it would be waited for
        server.signal(signal.SIGTERM)
        await eventually(lambda: "stopping" in server.log(), "the first signal was noticed")
        await asyncio.sleep(2 * AGAIN_S)  # sooner, it would be taken for the first one
        server.signal(signal.SIGTERM)
        status = await asyncio.to_thread(server.wait)
        assert status == 1, "it has not waited"
    server.until_gone()
    await asyncio.to_thread(server.restart)
    async with await Wire.open(server.address) as wire:
        assert await state(wire, job_id) == "waiting"


async def test_a_shard_that_hangs_cannot_keep_the_server_from_ending(server: Server) -> None:
    server.shard(1).kill(signal.SIGSTOP)
    assert await asyncio.to_thread(server.stop) == 0
    server.until_gone()


async def test_sigterm_while_a_shard_is_being_restarted(own_server: Server) -> None:
    for _ in range(4):  # so that the pause before the next start grows
        own_server.kill_shards()
        await eventually(lambda: len(own_server.shard_processes()) == 2, "the shards are started again")
    own_server.kill_shards()
    assert await asyncio.to_thread(own_server.stop) == 0
    own_server.until_gone()


# The router alone


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_shards_end_by_themselves_when_the_router_is_killed(own_server: Server, busy: bool) -> None:
    acked: list[str] = []

    def note(reply: asyncio.Future[Reply]) -> None:
        if not reply.exception():
            acked.extend(reply.result()["ids"])

    async with await Wire.open(own_server.address) as wire:
        if busy:
            for _ in range(200):
                jobs = [{"data": n} for n in range(100)]
                for reply in wire.send_many({"cmd": "PUSHB", "queue": q, "jobs": jobs} for q in QUEUES):
                    reply.add_done_callback(note)
            await eventually(lambda: acked, "it has begun to answer")
        shards = await asyncio.to_thread(own_server.kill_router)
        assert len(shards) == 2
        await wire.until_ended()
    await eventually(lambda: not any(shard.alive for shard in shards), "the shards have ended")
    assert "Traceback" not in own_server.log()
    await asyncio.to_thread(own_server.restart)
    async with await Wire.open(own_server.address) as wire:
        states = wire.send_many({"cmd": "GetState", "id": job_id} for job_id in acked)
        assert {(await reply)["state"] for reply in states} <= {"waiting"}


async def test_the_data_can_be_opened_at_once_after_the_router_was_killed(server: Server) -> None:
    async with await Wire.open(server.address) as wire:
        job_id = await push(wire)
    old: list[Process] = await asyncio.to_thread(server.kill_router)
    await asyncio.to_thread(server.restart)  # the old shards may still be there
    assert not any(shard.alive for shard in old)
    async with await Wire.open(server.address) as wire:
        assert await state(wire, job_id) == "waiting"


# Starts that are refused


def refusal(server: Server) -> str:
    """The one line with which the start is refused."""
    with pytest.raises(NotStarted) as refused:
        server.start()
    assert refused.value.status not in (0, None)
    assert refused.value.stdout == ""
    assert "Traceback" not in refused.value.stderr, refused.value.stderr
    (line,) = refused.value.refusals
    server.until_gone()
    return line


async def test_a_second_server_on_the_same_data_is_refused(make_server: StartServer, tmp_path: Path) -> None:
    first, second = make_server(), make_server()
    first.start()
    async with await Wire.open(first.address) as wire:
        job_id = await push(wire)
        shards = first.shard_processes()
        begun = time.monotonic()
        line = await asyncio.to_thread(refusal, second)
        took = time.monotonic() - begun
        assert str(tmp_path / "data") in line
        assert "in use" in line
        assert took < 30, f"refused, but only after {took:.0f} s"
        assert await state(wire, job_id) == "waiting"  # the first has noticed nothing
        assert first.shard_processes() == shards


@pytest.mark.parametrize("shards", [1, 4])
async def test_another_number_of_shards_is_refused(make_server: StartServer, shards: int) -> None:
    first = make_server(shards=2)
    first.start()
    async with await Wire.open(first.address) as wire:
        job_id = await push(wire)
    assert first.stop() == 0
    line = refusal(make_server(shards=shards))
    assert "choose another --data-dir" in line
    assert "2 shards" in line
    await asyncio.to_thread(first.restart)
    async with await Wire.open(first.address) as wire:
        assert await state(wire, job_id) == "waiting"


async def test_a_port_in_use_is_refused(make_server: StartServer, tmp_path: Path) -> None:
    first = make_server()
    first.start()
    line = refusal(make_server(data_dir=tmp_path / "other", port=first.port))
    assert "Address already in use" in line
    assert str(first.port) in line


async def test_a_shard_that_cannot_open_its_file_ends_the_start(
    make_server: StartServer, tmp_path: Path
) -> None:
    server = make_server("--damaged-shard", "stop")
    server.start()
    assert server.stop() == 0
    file = tmp_path / "data" / "shard-01.db"
    file.write_bytes(b"this is no database, and long enough to be looked at" * 100)
    with pytest.raises(NotStarted) as refused:
        server.start()
    assert refused.value.status == 1
    assert len(refused.value.refusals) == 1
    server.until_gone()
