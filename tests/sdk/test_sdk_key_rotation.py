"""A key of encryption is retired: what repeats, and what the server copies, moves to the new one as it runs,
and `list_keys` says what does not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.cli import Cli
from support.server import Server
from support.waiting import eventually

from bunqueue import (
    ActiveJob,
    Admin,
    AsyncQueue,
    Bunqueue,
    Codec,
    Encryption,
    Flow,
    NewJob,
    Queue,
    Worker,
    current_job,
)
from bunqueue.client.connection.caller import Caller
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.errors import LockLost
from bunqueue.protocol.commands.keys import Reencode, ReencodeReply
from bunqueue.testing import Sandbox

OLD, NEW, HASH_KEY = b"o" * 32, b"n" * 32, b"h" * 32
BEFORE = Codec(encryption=Encryption({"k1": OLD}, hash_key=HASH_KEY))
ROTATED = Codec(encryption=Encryption({"k2": NEW, "k1": OLD}, hash_key=HASH_KEY))
AFTER = Codec(encryption=Encryption({"k2": NEW}, hash_key=HASH_KEY))


def uses(key: str, admin: Admin | None = None, queue: str = "patients") -> dict[str, int]:
    """What of a queue needs a key, and how many."""
    found: Counter[str] = Counter()
    for use in (admin or Admin()).list_keys():
        if use.key == key and use.queue in (queue, None):
            found[use.what] += use.count
    return dict(found)


def echo(job: ActiveJob) -> Any:
    return job.data


def test_schedules_repetitions_and_dead_letters_move_with_their_next_run(bunqueue: Sandbox) -> None:
    before = Queue("patients", codec=BEFORE)
    before.upsert_cron("nightly", every=timedelta(days=1), job_name="nightly", data={"n": 1})
    before.upsert_cron("changed", every=timedelta(days=1), job_name="changed", data={"n": 1})
    before.add("again", {"n": 2}, repeat=timedelta(hours=1))
    dead = before.add("dead", {"n": 3}, max_attempts=1)
    broken = Worker("patients", {"dead": lambda job: 1 // 0}, codec=BEFORE)
    bunqueue.drain(broken)
    found = uses("k1")
    assert (found.pop("error") > 0, found) == (True, {"schedule": 2, "data": 2})
    worker = Worker(
        "patients", {"dead": echo, "nightly": echo, "changed": echo, "again": echo}, codec=ROTATED
    )
    bunqueue.advance(timedelta(days=1))  # its job is there, with the old key; then the schedule changes
    before.upsert_cron("changed", every=timedelta(days=1), job_name="changed", data={"n": 7})
    dead.retry()
    runs = bunqueue.drain(worker, within=timedelta(minutes=5))
    assert {run.name for run in runs} == {"dead", "nightly", "changed", "again"}
    assert uses("k1").keys() <= {"schedule", "error"}
    assert uses("k1")["schedule"] == 1, "what a schedule has been given since then stays"
    bunqueue.drain(worker, within=timedelta(days=1, minutes=5))
    assert "schedule" not in uses("k1")
    after = Worker("patients", echo, codec=AFTER)
    runs = bunqueue.drain(after, within=timedelta(days=2))
    assert {run.outcome for run in runs} == {"completed"}
    found = {run.name: run.result for run in runs}
    assert (found["nightly"], found["changed"], found["again"]) == ({"n": 1}, {"n": 7}, {"n": 2})


def test_on_dead_jobs_move_too(bunqueue: Sandbox) -> None:
    before = Queue("patients", codec=BEFORE)
    for data in ({"n": 1}, None):
        before.add("fails", data, max_attempts=2, backoff=1_000, on_dead=NewJob("told", {"why": "it failed"}))
    broken = Worker("patients", {"fails": lambda job: 1 // 0}, codec=ROTATED)
    assert uses("k1") == {"data": 1, "on-dead": 2}
    bunqueue.drain(broken)
    assert uses("k1") == {}, "both were stored again before the first attempt"
    bunqueue.drain(broken, within=timedelta(hours=1))
    runs = bunqueue.drain(Worker("patients", {"told": echo}, codec=AFTER), within=timedelta(minutes=1))
    assert [run.result for run in runs] == [{"why": "it failed"}] * 2


@pytest.mark.parametrize("asynchronous", [True, False])
def test_workflows_move_when_they_go_on(bunqueue: Sandbox, asynchronous: bool) -> None:
    def app_with(codec: Codec) -> tuple[Bunqueue, Callable[..., Any]]:
        app = Bunqueue("patients", codec=codec)
        if asynchronous:

            @app.workflow
            async def treat(flow: Flow, name: str) -> list[object]:
                first = await flow.step("first", lambda: {"for": name})
                if not flow.state:
                    flow.state = {"at": "first"}
                told = await flow.wait_for("told")
                return [first, told]
        else:

            @app.workflow
            def treat(flow: Any, name: str) -> list[object]:
                first = flow.step("first", lambda: {"for": name})
                flow.state = {"at": "first"}
                return [first, flow.wait_for("told")]

        return app, treat

    before, started = app_with(BEFORE)
    handle = started.start("ada")  # type: ignore[attr-defined]
    bunqueue.drain(before)
    assert uses("k1") == {"data": 1, "step": 2, "other": 1}, "also the schema that the app has declared"
    handle.signal("told", {"by": "eve"})
    rotated, _ = app_with(ROTATED)
    bunqueue.drain(rotated)
    assert uses("k1") == {}
    after, _ = app_with(AFTER)
    assert after.admin.find_workflow(handle.id).result() == [{"for": "ada"}, {"by": "eve"}]


def test_nothing_is_said_while_there_is_one_key(bunqueue: Sandbox) -> None:
    queue = Queue("patients", codec=BEFORE)
    queue.add("n", 1, on_dead=NewJob("told", 2))
    bunqueue.faults.refuse("Reencode", "it must not be asked for", times=None)
    seen: list[object] = []

    def handler(job: ActiveJob) -> None:
        seen.append(job.outdated)

    bunqueue.drain(Worker("patients", handler, codec=BEFORE))
    queue.add("n", 1)
    bunqueue.drain(Worker("patients", handler, codec=ROTATED))  # refused: it runs all the same
    assert seen[0] is None
    assert seen[1] is not None
    assert uses("k1")["data"] == 2


async def test_workers_of_servers_and_embedded_ones(where: EndpointOptions, name: str) -> None:
    async with AsyncQueue(name, codec=BEFORE, **where) as before:
        await before.upsert_cron(f"nightly-{name}", every=timedelta(days=1), job_name="nightly", data=[1])
        await before.add("large", ["x" * 50_000], tags=["large"])
        first = await before.run_cron(f"nightly-{name}")
    ran: list[Any] = []

    async def handler(job: ActiveJob) -> None:
        assert current_job().id == job.id
        ran.append(job.data)

    assert await asyncio.to_thread(_uses, "k1", name, where) == {"schedule": 1, "data": 2}
    async with Worker(name, handler, codec=ROTATED, concurrency=5, **where):
        await eventually(lambda: len(ran) == 2, "both have run")
    assert await asyncio.to_thread(_uses, "k1", name, where) == {}
    assert (await asyncio.to_thread(_uses, "k2", name, where))["schedule"] == 1
    async with AsyncQueue(name, codec=AFTER, **where) as after:
        assert (await after.handle(first.id).job()).data == [1]
        again = await after.run_cron(f"nightly-{name}")
        assert (await again.job()).data == [1]


def _uses(key: str, queue: str, where: EndpointOptions) -> dict[str, int]:
    with Admin(**where) as admin:
        return uses(key, admin, queue)


def test_the_command_line_says_what_needs_a_key(shared_server: Server, name: str) -> None:
    cli = Cli(shared_server)
    with Queue(name, codec=BEFORE, host=shared_server.host, port=shared_server.port) as queue:
        job = queue.add("n", 1)
    rows = cli.json("keys", "k1", status=1)
    assert {"key": "k1", "what": "data", "count": 1, "example": job.id, "queue": name} in rows
    assert name in cli("keys").out
    assert cli("keys", "k3").out == ""


def test_only_who_holds_a_job_may_store_it_again(bunqueue: Sandbox) -> None:
    queue = Queue("patients")
    job = queue.add("n", 1)

    def handler(held: ActiveJob) -> None:
        for token in ("", "another"):
            with pytest.raises(LockLost):
                queue._caller.call(Reencode(id=held.id, token=token), ReencodeReply)

    assert isinstance(queue._caller, Caller)
    bunqueue.drain(handler)
    assert job.job().data == 1
