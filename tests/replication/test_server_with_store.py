"""A server whose jobs are in a store: what it answers is there, whatever becomes of its own machine."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from replication.conftest import StoredServer
from support.postgres import Node, Postgres, ask
from support.server import NotStarted, Server, quiet_port
from support.waiting import wait_until
from support.wire import Reply, Wire, at_router

from bunqueue import Queue, Worker
from bunqueue.server.links.pipe_messages import LEASE_S
from bunqueue.store.setup import init

QUEUES = [f"q{number}" for number in range(8)]


def queue(server: Server, name: str = "q") -> Queue:
    return Queue(name, port=server.port)


@pytest.fixture
def store(database: str) -> str:
    init(database, 2)
    return database


def test_a_host_that_loses_its_folder_has_everything_back(store: str, stored_server: StoredServer) -> None:
    server = stored_server(store)
    server.start()
    added = {}
    for name in QUEUES:
        with queue(server, name) as some:
            added[name] = [some.add("job", {"number": number}).id for number in range(20)]
            assert some.pull() is not None
    server.kill_all()
    shutil.rmtree(server.data_dir)
    server.restart()
    for name in QUEUES:
        with queue(server, name) as some:
            counts = some.counts()
            assert (counts.waiting, counts.active) == (19, 1)
            assert [some.get_job(number) is not None for number in added[name]] == [True] * 20


def test_workers_keep_their_jobs_when_a_host_loses_its_folder(
    store: str, stored_server: StoredServer
) -> None:
    server = stored_server(store, port=quiet_port())
    server.start()
    runs: list[str] = []
    is_back = threading.Event()

    def handler(job: object) -> str:
        runs.append("begun")
        is_back.wait()
        return "done"

    with queue(server) as some:
        job_id = some.add("long", 1).id
    worker = Worker("q", handler, port=server.port)
    thread = threading.Thread(target=worker.run_forever, daemon=True)
    thread.start()
    wait_until(lambda: runs, "the job runs")
    server.kill_all()
    shutil.rmtree(server.data_dir)
    server.restart()
    is_back.set()
    with queue(server) as some:
        wait_until(lambda: some.get_state(job_id) == "completed", "the worker's answer is taken")
        assert some.get_result(job_id) == "done"
    assert runs == ["begun"]
    worker.stop_soon()
    thread.join()


def test_a_server_that_stops_gives_its_shards_up(
    store: str, stored_server: StoredServer, tmp_path: Path
) -> None:
    """Another one begins at once, and need not see whether it still lives."""
    first = stored_server(store)
    first.start()
    with queue(first) as some:
        some.add("job", 1)
    assert first.stop() == 0
    assert ask(store, "select distinct owner from bunqueue.shards") == [("",)]
    second = stored_server(store, data_dir=tmp_path / "other")
    second.start()
    assert "another server has the shard" not in second.log()
    with queue(second) as some:
        assert some.counts().waiting == 1


def test_another_folder_takes_over_from_one_that_was_killed(
    store: str, stored_server: StoredServer, tmp_path: Path
) -> None:
    first = stored_server(store)
    first.start()
    with queue(first) as some:
        some.add("job", 1)
    first.kill_all()
    second = stored_server(store, data_dir=tmp_path / "other")
    second.start()
    with queue(second) as some:
        assert some.counts().waiting == 1
    first.launch()  # it comes back, and must wait
    wait_until(lambda: "another server has the shard" in first.log(), "it says what it waits for")
    with queue(second) as some:
        some.add("job", 2)
    second.stop()
    first.until_ready()
    with queue(first) as some:
        assert some.counts().waiting == 2


def test_a_busy_server_keeps_its_shards(store: str, stored_server: StoredServer, tmp_path: Path) -> None:
    """Another one that waits for its end must not take it for dead because it is busy."""
    first = stored_server(store)
    first.start()
    second = stored_server(store, data_dir=tmp_path / "other")
    second.launch()
    added, end = 0, time.monotonic() + LEASE_S + 3
    with queue(first, QUEUES[0]) as some:
        while time.monotonic() < end:
            some.add("job", 1)
            added += 1
        assert some.counts().waiting == added
    assert ask(store, "select max(epoch) from bunqueue.shards") == [(1,)]
    first.stop()
    second.until_ready()
    with queue(second, QUEUES[0]) as some:
        assert some.counts().waiting == added


async def test_several_routers(store: str, stored_server: StoredServer) -> None:
    """What is acknowledged at any of them is in the store, and each goes on when the shards have died."""
    server = stored_server(store, "--routers", "2")
    server.start()
    wires = [await at_router(server.address, router) for router in (0, 1)]
    for number, name in product(range(10), QUEUES):
        await wires[number % 2].ok("PUSH", queue=name, data={"n": number})
    pulls = [wire.send("PULL", queue="waits", timeout=60_000) for wire in wires]
    counts = [await wire.ok("Count", queue=QUEUES[0]) for wire in wires]
    assert [each["count"] for each in counts] == [10, 10]
    assert not any(pull.done() for pull in pulls)
    await asyncio.to_thread(server.kill_all)
    await asyncio.to_thread(shutil.rmtree, server.data_dir)
    await asyncio.to_thread(server.restart)
    for wire in [await at_router(server.address, router) for router in (0, 1)]:
        for name in QUEUES:
            assert (await wire.ok("Count", queue=name))["count"] == 10
        await wire.close()


def test_a_store_that_is_away(store: str, stored_server: StoredServer, cluster: Postgres) -> None:
    """What is under way waits; what comes later is refused, and may come again."""
    server = stored_server(store)
    server.start()
    refused: dict[str, Any] = {}

    async def outage() -> None:
        assert cluster.standby is not None
        async with await Wire.open(server.address) as wire, await Wire.open(server.address) as other:
            await wire.ok("PUSH", queue="q", data={})
            try:
                under_way = await push_under_way(cluster.standby, wire, other)
                refused.update(await other.call("PUSH", queue="q", data={}))
                assert (await other.call("PULL", queue="q", timeout=1000))["code"] == refused["code"]
                assert not under_way.done()
            finally:
                cluster.standby.resume()
            assert (await under_way)["ok"], "it was never lost"
            while not (await other.call("PUSH", queue="q", data={}))["ok"]:
                pass  # until it goes on by itself
            assert (await other.ok("Count", queue="q"))["count"] == 3, "what was refused was not added"
            assert (await other.ok("StorageStatus"))["data"]["error"] is None

    asyncio.run(outage())
    assert (refused["code"], refused["retryAfter"]) == ("STORE_UNAVAILABLE", 1000)
    assert "nothing was changed" in refused["error"]


async def push_under_way(standby: Node, wire: Wire, other: Wire) -> asyncio.Future[Reply]:
    """Pause the standby, so that nothing can be acknowledged.  Returns a push that was sent just then."""
    for _ in range(10):
        standby.pause()
        pushed = wire.send("PUSH", queue="q", data={})
        while (await other.ok("StorageStatus"))["data"]["code"] != "STORE_UNAVAILABLE":
            pass
        if not pushed.done():
            return pushed
        assert (await pushed)["code"] == "STORE_UNAVAILABLE", "this process was late, and the server knew it"
        standby.resume()
        while (await other.ok("StorageStatus"))["data"]["error"] is not None:
            pass
    raise AssertionError("each push came too late")


def test_workers_keep_their_jobs_while_the_store_is_away(
    store: str, stored_server: StoredServer, cluster: Postgres
) -> None:
    server = stored_server(store)
    server.start()
    runs: list[str] = []
    assert cluster.standby is not None

    def handler(job: object) -> str:
        runs.append("begun")
        wait_until(lambda: "ended" in runs, "the outage is over")
        return "done"

    with queue(server) as some:
        job = some.add("long", 1)
        worker = Worker("q", handler, port=server.port, lock_ttl=8_000)
        thread = threading.Thread(target=worker.run_forever, daemon=True)
        thread.start()
        wait_until(lambda: runs, "the job runs")
        cluster.standby.pause()
        wait_until(lambda: "the store is unavailable" in server.log(), "the server knows")
        time.sleep(10)  # longer than the lock lasts: nobody can renew it
        cluster.standby.resume()
        wait_until(lambda: "the store is back" in server.log(), "the server goes on")
        runs.append("ended")
        assert job.result(timeout=90_000) == "done"
        assert runs.count("begun") == 1
        worker.stop_soon()
        thread.join()


@pytest.mark.parametrize(
    ("shards", "text"), [(4, "was made for 2 shards, not 4: start with --shards 2"), (2, None)]
)
def test_a_store_for_another_number_of_shards(
    store: str, stored_server: StoredServer, shards: int, text: str | None
) -> None:
    server = stored_server(store, shards=shards)
    if text is None:
        server.start()
        return
    with pytest.raises(NotStarted) as caught:
        server.start()
    assert text in caught.value.refusals[0]


def test_a_database_without_a_store(database: str, stored_server: StoredServer) -> None:
    with pytest.raises(NotStarted) as caught:
        stored_server(database).start()
    assert "run 'bunqueue store init'" in caught.value.refusals[0]
    assert "postgres@" not in caught.value.stderr


def test_a_folder_with_jobs_is_not_mixed_with_a_store(
    store: str, stored_server: StoredServer, tmp_path: Path
) -> None:
    plain = Server(tmp_path / "data")
    try:
        plain.start()
        with queue(plain) as some:
            some.add("job", 1)
        plain.stop()
        with pytest.raises(NotStarted) as caught:
            stored_server(store).start()
        assert "bunqueue store adopt" in caught.value.refusals[0]
        plain.restart()  # nothing has changed
        with queue(plain) as some:
            assert some.counts().waiting == 1
    finally:
        plain.dispose()


def test_a_folder_of_a_store_is_not_served_without_it(
    store: str, stored_server: StoredServer, tmp_path: Path
) -> None:
    server = stored_server(store)
    server.start()
    server.stop()
    plain = Server(tmp_path / "data")
    try:
        with pytest.raises(NotStarted) as caught:
            plain.start()
        assert "start with --store" in caught.value.refusals[0]
    finally:
        plain.dispose()


def test_a_damaged_file_is_built_anew(store: str, stored_server: StoredServer) -> None:
    server = stored_server(store)
    server.start()
    with queue(server) as some:
        some.add_bulk([("job", {"text": "x" * 1000})] * 500)
    server.stop()
    for file in Path(server.data_dir).glob("shard-*.db"):
        data = bytearray(file.read_bytes())
        data[8192:] = b"\xff" * (len(data) - 8192)
        file.write_bytes(data)
    server.restart()
    with queue(server) as some:
        assert some.counts().waiting == 500
