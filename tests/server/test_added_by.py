"""Who added a job: shown with it where clients have identities, and kept; nothing is stored elsewhere."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cli import Cli
from support.server import Server, StartServer, dispose, quiet_port
from support.web import client
from support.wire import Wire, at_router

from bunqueue import arrow
from bunqueue.server.identities import edit
from bunqueue.server.identities.identity_file import IdentityRow

IDENTITIES = {
    "boss": IdentityRow("admin"),
    "shop": IdentityRow("producer", queues=["in.*"]),
    "loader": IdentityRow("producer"),
    "runner": IdentityRow("worker"),
    "watcher": IdentityRow("viewer"),
}


class Named:
    """A server with identities, two routers and two shards."""

    def __init__(self, folder: Path) -> None:
        self.data_dir, path = folder / "data", str(folder / "identities.toml")
        self.tokens: dict[str, str] = {}
        for name, row in IDENTITIES.items():
            made = edit.make_token()
            row.tokens = [made.row]
            edit.change(path, name, lambda _, row=row: row)  # type: ignore[misc]
            self.tokens[name] = made.text
        flags = ("--identities", path, "--routers", "2", "--shards", "2", "--auth-token", "all")
        self.server = Server(self.data_dir, *flags, http_port=quiet_port())

    @asynccontextmanager
    async def wires(self, *names: str, router: int = 0) -> AsyncIterator[list[Wire]]:
        """Connections of these identities, or with these tokens."""
        async with AsyncExitStack() as stack:
            found = []
            for name in names:
                token = self.tokens.get(name, name)
                wire = await stack.enter_async_context(await at_router(self.server.address, router, token))
                await wire.ok("Hello", protocolVersion=3)
                found.append(wire)
            yield found


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Named]:
    made = Named(tmp_path_factory.mktemp("named"))
    try:
        made.server.start()
        yield made
    finally:
        dispose(made.server)


async def added_by(wire: Wire, job_id: str) -> Any:
    return (await wire.ok("GetJob", id=job_id))["job"].get("addedBy")


async def push_all(wire: Wire, queue: str, other: str) -> list[str]:
    """Jobs of each kind of push; their ids."""
    ids = [(await wire.ok("PUSH", queue=queue, data=1))["id"]]
    ids += (await wire.ok("PUSHB", queue=queue, jobs=[{"data": 1}] * 3))["ids"]
    ids.append((await wire.ok("PUSH", queue=queue, data=1, tags=["a"], maxAttempts=7))["id"])
    ids += (await wire.ok("PUSHB", queue=queue, jobs=[{"data": 1, "groupId": "g"}, {"data": 2}]))["ids"]
    ids.append((await wire.ok("PUSH", queue=queue, data=1, jobId=f"own-{queue}", delay=10**6))["id"])
    ids.append((await wire.ok("PUSH", queue=queue, data=1, dependsOn=[ids[0]]))["id"])
    flow = [{"id": f"f-{name}", "queue": name, "input": {"data": {}}} for name in (queue, other)]
    ids += [job["id"] for job in (await wire.ok("PUSHF", jobs=flow))["data"]["jobs"]]
    return ids


async def test_each_push_of_each_identity(named: Named) -> None:
    for name in ("boss", "shop", "loader"):
        for router in (0, 1):
            async with named.wires("boss", name, router=router) as (boss, wire):
                ids = await push_all(wire, f"in.{name}{router}", f"in.{name}{router}-x")
                assert [await added_by(boss, job_id) for job_id in ids] == [name] * len(ids)
    async with named.wires("boss", "all") as (boss, shared):
        for job_id in await push_all(shared, "in.all", "in.all-x"):
            view = (await boss.ok("GetJob", id=job_id))["job"]
            assert "addedBy" not in view, "the shared token is nobody in particular"


async def test_it_is_shown_wherever_a_job_is(named: Named) -> None:
    async with named.wires("boss", "loader", "watcher", "runner") as (boss, loader, watcher, runner):
        plain = (await loader.ok("PUSH", queue="seen", data={"n": 1}))["id"]
        other = (await loader.ok("PUSH", queue="seen", data={"n": 2}, backoff=5, maxAttempts=1))["id"]
        listed = (await boss.ok("GetJobs", queue="seen"))["jobs"]
        both = {plain: "loader", other: "loader"}
        assert {job["id"]: job["addedBy"] for job in listed} == both
        seen = (await watcher.ok("GetJob", id=plain))["job"]
        assert (seen["data"], seen["addedBy"]) == ("hidden", "loader")
        pulled = [await runner.ok("PULL", queue="seen", owner="w") for _ in both]
        assert {each["job"]["id"]: each["job"]["addedBy"] for each in pulled} == both
        tokens = {each["job"]["id"]: each["token"] for each in pulled}
        await runner.ok("ACK", id=plain, token=tokens[plain])
        await runner.ok("FAIL", id=other, token=tokens[other], error="no")
        assert await added_by(boss, plain) == await added_by(boss, other) == "loader"
        (dead,) = (await boss.ok("Dlq", queue="seen"))["jobs"]
        assert dead["addedBy"] == "loader"
        async with client(named.server, named.tokens["boss"]) as web:
            assert (await web.get(f"/jobs/{plain}")).json()["job"]["addedBy"] == "loader"
            pushed = (await web.post("/queues/over-http/jobs", json={"data": 1})).json()["id"]
        assert await added_by(boss, pushed) == "boss"
    token = ("--token", named.tokens["boss"])
    assert Cli(named.server).json("job", "get", plain, *token)["addedBy"] == "loader"


async def test_jobs_that_follow_from_a_job_have_its_identity(named: Named) -> None:
    async with named.wires("boss", "loader", "runner") as (boss, loader, runner):
        first = (await loader.ok("PUSH", queue="again", data=1, repeat={"every": 1, "limit": 3}))["id"]
        pulled = await runner.ok("PULL", queue="again", owner="w")
        await runner.ok("ACK", id=first, token=pulled["token"])
        (following,) = (await boss.ok("GetJobs", queue="again", state=["waiting", "delayed"]))["jobs"]
        assert following["addedBy"] == "loader"
        parent = (await loader.ok("PUSH", queue="flows", data={}, workflow=True))["id"]
        pulled = await runner.ok("PULL", queue="flows", owner="w")
        step = {"id": parent, "token": pulled["token"], "name": "child", "kind": "child", "status": "waiting"}
        child = {"queue": "children", "input": {"data": {}}}
        await runner.ok("RecordSteps", queue="flows", steps=[{**step, "child": child}])
        started = await runner.ok("PULL", queue="children", owner="w", timeout=20_000)
        assert started["job"]["addedBy"] == "loader"
        await boss.ok("Cron", name="nightly", queue="runs", repeatEvery=10**9, data=1)
        triggered = (await boss.ok("CronTrigger", name="nightly"))["id"]
        assert await added_by(boss, triggered) == "boss"


async def test_it_is_kept(tmp_path: Path) -> None:
    made = Named(tmp_path)
    try:
        made.server.start()
        async with made.wires("loader") as (loader,):
            ids = await push_all(loader, "kept", "kept-x")
        made.server.kill_all()
        made.server.start()
        async with made.wires("boss") as (boss,):
            assert [await added_by(boss, job_id) for job_id in ids] == ["loader"] * len(ids)
        made.server.stop()
        table = arrow.jobs(str(made.data_dir), columns=["id", "added_by"])
        found = {row["id"]: row["added_by"] for row in table.to_pylist()}
        assert found == dict.fromkeys(ids, "loader")
    finally:
        dispose(made.server)


async def test_nothing_is_stored_without_identities(make_server: StartServer) -> None:
    server = make_server("--auth-token", "all", shards=1)
    server.start()
    async with await Wire.open(server.address) as wire:
        await wire.ok("Auth", token="all")
        job = (await wire.ok("PUSH", queue="q", data=1))["id"]
        assert "addedBy" not in (await wire.ok("GetJob", id=job))["job"]
    server.stop()
    with sqlite3.connect(f"file:{server.data_dir}/shard-00.db?mode=ro", uri=True) as file:
        assert file.execute("select options from jobs").fetchall() == [(None,)]
