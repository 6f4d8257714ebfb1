"""A data folder that an earlier build has made: what is in it is read, and worked off.

`fill` made `kept_folder.tar.xz` with a build whose files went through seven steps to the schema of today. The
same must hold for a folder that this build makes. With the next schema, another one is added.
"""

from __future__ import annotations

import sqlite3
import tarfile
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.naming import queue_on
from support.server import Server, StartServer
from support.waiting import eventually
from support.wire import Wire

from bunqueue import AsyncQueue, Bunqueue, Flow
from shardproc.storage.event_log import read
from shardproc.storage.schema import TABLES

KEPT = Path(__file__).with_name("kept_folder.tar.xz")
FOR_EVER = (
    *("--completed-max-age", "0", "--dead-letters-max-age", "0"),
    *("--events-max-age", "87600"),  # hours
)
YEAR_MS = 365 * 24 * 3_600_000
MAIL, PAY, ORDERS = queue_on(0, "mail"), queue_on(1, "pay"), queue_on(1, "orders")
LARGE = "r" * 9_000
STATES = {
    "completed": "completed",
    "large": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "active": "active",
    "waiting": "waiting",
    "dependent": "waiting-children",
}
NOT_USED = {"search_blocks", "search_finishes", "stragglers"}  # they follow from the others


def an_app(server: Server, charge: Callable[[], str]) -> tuple[Bunqueue, Any]:
    """An app with a workflow that waits for a signal in its second step."""
    app = Bunqueue(ORDERS, port=server.port)

    @app.workflow
    async def order(flow: Flow) -> str:
        charged = await flow.step("charge", charge)
        return f"{charged}, {await flow.wait_for('approval', str)}"

    return app, order


async def fill(server: Server) -> None:
    """Put something into each table, and stop the server."""
    wire = await Wire.open(server.address)

    async def pulled(name: str) -> dict[str, Any]:
        found = await wire.ok("PULL", queue=MAIL, owner="w", lockTtl=3_600_000)
        assert found["job"]["id"] == name
        return {"id": name, "token": found["token"]}

    async def pushed(name: str, **options: Any) -> dict[str, Any]:
        await wire.ok("PUSH", queue=MAIL, name=name, jobId=name, data={"job": name}, **options)
        return await pulled(name)

    await wire.ok("ACK", **await pushed("completed", keepCompleted=YEAR_MS), result={"sent": True})
    large = await pushed("large", tags=["t"], priority=3)
    await wire.ok("AddLog", id="large", message="half of it")
    await wire.ok("ACK", **large, result=LARGE)
    failed = await pushed("failed", maxAttempts=2)
    for error in ("boom", "again"):
        await wire.ok("FAIL", **failed, error=error, errorTypes=["ValueError"], stack="line 1", delay=0)
        if error == "boom":
            failed = await pulled("failed")
    cancelled = await pushed("cancelled")
    await wire.ok("Cancel", id="cancelled", running=True)
    await wire.ok("FAIL", **cancelled, error="stopped")
    await pushed("active")
    await wire.ok("PUSH", queue=MAIL, jobId="waiting", data=1, uniqueKey="only", idempotencyKey="once")
    await wire.ok("PUSH", queue=MAIL, jobId="dependent", data=2, dependsOn=["waiting"])
    await wire.ok("PUSH", queue=MAIL, jobId="delayed", data=3, delay=YEAR_MS)
    await wire.ok("PUSHB", queue=PAY, jobs=[{"data": number} for number in range(3)])
    await wire.ok("Cron", name="yearly", queue=PAY, schedule="0 0 29 2 *", data="time")
    await wire.ok("CronTrigger", name="yearly")
    await wire.ok("Pause", queue=PAY)
    app, order = an_app(server, lambda: "charged")
    async with app:
        handle = await order.start_async(id="order")
        await eventually(lambda: _is(handle.state, "waiting-signal"), "it waits")
        await handle.signal("remark", "for later")
    await wire.ok("Broadcast", name="news", key="k", data="d")
    server.stop()  # before the connection ends: the active job stays active
    wire.abort()


async def _is(state: Callable[[], Awaitable[str]], wanted: str) -> bool:
    return await state() == wanted


def unpack(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with tarfile.open(KEPT) as packed:
        packed.extractall(folder, filter="data")


@pytest.fixture(params=["kept", "new"])
async def server(request: pytest.FixtureRequest, make_server: StartServer, tmp_path: Path) -> Server:
    """A stopped server on such a folder."""
    server = make_server(*FOR_EVER)
    if request.param == "new":
        server.start()
        await fill(server)
    else:
        unpack(Path(server.data_dir))
    return server


def rows_of(server: Server, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for file in sorted(Path(server.data_dir).glob("shard-*.db")):
        with closing(sqlite3.connect(file)) as db:
            found += db.execute(f"select {columns} from {table}")
    return found


def test_each_table_has_rows(server: Server) -> None:
    empty = {table.name for table in TABLES if not rows_of(server, table.name)}
    assert empty <= NOT_USED
    views = {name: rows_of(server, name) for name in ("job_history", "cron")}
    assert all(views.values())
    kinds = set()
    for file in Path(server.data_dir).glob("shard-*.db"):
        with closing(sqlite3.connect(file)) as db:
            kinds |= {event.kind for event in read(db, 0, 1_000)}
    assert {"pushed", "pulled", "completed", "failed"} <= kinds


async def test_all_of_it_is_read(server: Server) -> None:
    server.start()
    wire = await Wire.open(server.address)
    async with AsyncQueue(MAIL, port=server.port) as mail, AsyncQueue(PAY, port=server.port) as pay:
        assert {name: await mail.get_state(name) for name in STATES} == STATES
        assert await mail.get_state("delayed") in ("delayed", "waiting")  # it is due after a year
        assert await mail.get_result("completed") == {"sent": True}
        assert await mail.get_result("large") == LARGE
        letters = {letter.job.id: letter for letter in await mail.dlq_entries()}
        assert letters.keys() == {"failed", "cancelled"}
        assert [attempt.error for attempt in letters["failed"].attempts] == ["boom", "again"]
        assert (await wire.ok("GetLogs", id="large"))["data"]["logs"][0]["message"] == "half of it"
        assert (await wire.ok("PUSH", queue=MAIL, data=4, uniqueKey="only"))["id"] == "waiting"
        assert await pay.is_paused()
        (schedule,) = await pay.list_crons()
        assert (schedule.name, schedule.schedule) == ("yearly", "0 0 29 2 *")
    wire.abort()


async def test_all_of_it_is_worked_off(server: Server) -> None:
    ((token,),) = rows_of(server, "locks", "token")
    server.start()
    wire = await Wire.open(server.address)
    await wire.ok("ACK", id="active", token=token)
    await wire.ok("RetryDlq", queue=MAIL, jobId="failed")
    await wire.call("Promote", id="delayed")
    await wire.ok("Resume", queue=PAY)
    done = {queue: await _work_off(wire, queue) for queue in (MAIL, PAY)}
    assert done == {MAIL: 4, PAY: 4}
    app, _ = an_app(server, lambda: pytest.fail("it has been charged"))
    async with app, AsyncQueue(ORDERS, port=server.port) as orders:
        handle = orders.workflow("order", str)
        await handle.signal("approval", "approved")
        assert await handle.result(60_000) == "charged, approved"
    for queue in (MAIL, PAY, ORDERS):
        counts = (await wire.ok("GetJobCounts", queue=queue))["counts"]
        assert not counts["waiting"] + counts["active"] + counts["delayed"]
    wire.abort()


async def _work_off(wire: Wire, queue: str) -> int:
    """Complete jobs until none is left; returns their number."""
    done = 0
    while (found := await wire.ok("PULL", queue=queue, owner="w")).get("job"):
        await wire.ok("ACK", id=found["job"]["id"], token=found["token"])
        done += 1
    return done
