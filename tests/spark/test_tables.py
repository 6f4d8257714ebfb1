"""Every table, beside what the server said of itself, and beside SQLite."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import msgpack
import pytest
from plain import rows_of
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from support.folders import opened
from support.naming import shard_of
from support.server import Server, dispose
from support.spark import Full, read

from bunqueue import Bunqueue, Flow, JobFailed, Queue, Retry, Step, Undo
from bunqueue.spark.read.arrow import schema_of
from bunqueue.spark.read.tables import TABLES
from shardproc.storage.schema import CURRENT


def ms(moment: datetime | None) -> float | None:
    """Epoch ms."""
    return None if moment is None else moment.timestamp() * 1000


def asked(folder: Path, sql: str) -> list[dict[str, Any]]:
    """The rows of all shards."""
    found = []
    with opened(folder) as shards:
        for number, db in enumerate(shards):
            found += [{"shard": number, **dict(row)} for row in db.execute(sql)]
    return found


def test_jobs_are_as_the_server_tells_them(full: Full) -> None:
    columns = [column.name for column in TABLES["jobs"].columns]
    rows = {row["id"]: row for row in rows_of(full.folder, columns=",".join(columns))}
    assert len(rows) == len(asked(full.folder, "select seq from jobs"))
    assert len(full.jobs) > 300
    for job_id, job in full.jobs.items():
        row = rows.pop(job_id)
        state = "waiting" if job["state"] == "prioritized" else job["state"]
        assert row["state"] == state, job
        assert row["host"] == socket.gethostname()
        assert row["shard"] == shard_of(job["queue"], 2)
        for ours, theirs in (
            ("queue", "queue"),
            ("name", "name"),
            ("priority", "priority"),
            ("attempts", "attempts"),
            ("stalls", "stallCount"),
            ("max_attempts", "maxAttempts"),
            ("unique_key", "uniqueKey"),
            ("custom_id", "customId"),
            ("group_id", "groupId"),
            ("parent_id", "parentId"),
            ("progress", "progress"),
            ("tags", "tags"),
        ):
            assert row[ours] == job[theirs], (ours, job)
        assert (row["depends_on"] or []) == job["dependsOn"]
        assert row["error"] == job.get("failedReason")
        for ours, theirs in (("created_at", "createdAt"), ("run_at", "runAt"), ("started_at", "startedAt")):
            assert ms(row[ours]) == job[theirs], (ours, job)
        if state == "completed":
            assert ms(row["finished_at"]) == job["completedAt"]
            assert (None if row["result"] is None else json.loads(row["result"])) == job.get("returnvalue")
        assert json.loads(row["data"]) == job["data"]
        assert msgpack.unpackb(row["data_raw"]) == job["data"]
        assert row["data_bytes"] == len(row["data_raw"])
        assert row["data_error"] is None
        assert json.loads(row["options"])["max_attempts"] == job["maxAttempts"]


def test_dead_letters(full: Full) -> None:
    rows = rows_of(full.folder, "dead_letters")
    expected = asked(
        full.folder,
        "select d.*, jobs.id, jobs.name, queues.name as queue from dead_letters d"
        " join jobs using (seq) join queues on queues.id = d.queue_id",
    )
    assert len(expected) >= 10
    assert {(row["shard"], row["seq"]) for row in rows} == {(row["shard"], row["seq"]) for row in expected}
    by_id = {row["job_id"]: row for row in rows}
    for row in expected:
        found = by_id[row["id"]]
        assert (found["reason"], found["error"], found["queue"], found["worker"]) == (
            row["reason"], row["error"], row["queue"], row["worker"] or None,
        )  # fmt: skip
        assert (ms(found["died_at"]), found["attempts"]) == (row["finished_at"], row["attempts"])


def test_attempts_are_those_that_failed_and_those_that_completed(full: Full) -> None:
    rows = rows_of(full.folder, "attempts")
    failed = asked(full.folder, "select attempts.*, id from attempts join jobs using (seq)")
    completed = asked(full.folder, "select completed.*, id from completed join jobs using (seq)")
    assert len(rows) == len(failed) + len(completed)
    by_key = {(row["job_id"], row["number"], row["outcome"]): row for row in rows}
    for row in failed:
        found = by_key[row["id"], row["number"], row["outcome"]]
        assert (ms(found["started_at"]), ms(found["ended_at"])) == (row["started_at"], row["ended_at"])
        assert (found["worker"], found["error"]) == (row["worker"] or None, row["error"])
    for row in completed:
        found = by_key[row["id"], row["attempts"] + 1, "completed"]
        assert (ms(found["started_at"]), ms(found["ended_at"])) == (row["started_at"], row["finished_at"])


def test_steps_of_workflows_that_wait(full: Full) -> None:
    columns = "job_id,queue,number,step,kind,status,until,signal,child,child_queue,undo,result,result_bytes"
    rows = {(row["job_id"], row["step"]): row for row in rows_of(full.folder, "steps", columns=columns)}
    workflows = [job_id for job_id in full.made.ids if job_id.startswith("workflow-")]
    assert set(rows) == {(job_id, step) for job_id in workflows for step in ("charge", "wait")}
    waiting = rows_of(full.folder, states="waiting-signal", columns="id")
    assert {row["id"] for row in waiting} == {job_id for job_id in workflows if "-signal-" in job_id}
    for job_id in workflows:
        kind, number = job_id.split("-")[1:]
        done, wait = rows[job_id, "charge"], rows[job_id, "wait"]
        assert done["queue"] == wait["queue"] == full.jobs[job_id]["queue"]
        assert (done["number"], done["kind"], done["status"], done["undo"]) == (1, "step", "completed", True)
        assert (json.loads(done["result"]), done["result_bytes"]) == ({"paid": 5}, 7)
        assert (wait["number"], wait["kind"], wait["status"], wait["result"]) == (2, kind, "waiting", None)
        assert wait["signal"] == (None if kind == "child" else "go")
        assert (wait["until"] is None) == (kind == "child")
        assert wait["child"] == (f"own-started-{number}" if kind == "child" else None)
        assert (wait["child_queue"] is None) == (kind != "child")


def test_steps_are_as_their_workflow_tells_them(tmp_path: Path) -> None:
    """One that has failed, and was undone as far as that was possible."""
    file = tmp_path / "jobs.db"
    app = Bunqueue("orders", embedded=True, data_path=file)

    def refuse(charge: str) -> None:
        raise ConnectionError("the bank is away")

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> None:
        await flow.step("reserve", lambda: {"shelf": 7}, undo=lambda shelf: None)
        await flow.step("charge", lambda: "charge-1", undo=Undo(refuse, retry=1))
        await flow.wait_for("approval", timeout=1, default=None)
        await flow.step("ship", refuse, "now", retry=Retry(1, max_attempts=2))

    async def work() -> list[Step]:
        async with app:
            handle = await order.start_async()
            with pytest.raises(JobFailed, match="the bank is away"):
                await handle.result(90_000)
            return await handle.history()

    told = asyncio.run(work())
    assert [(step.name, step.status) for step in told] == [
        ("reserve", "completed"),
        ("charge", "completed"),
        ("approval", "timed-out"),
        ("ship", "retrying"),  # it runs again if somebody has the workflow retried
        ("undo:charge", "failed"),
    ]
    columns = ",".join(column.name for column in TABLES["steps"].columns)
    rows = sorted(rows_of(file, "steps", columns=columns), key=lambda row: int(row["number"]))
    for row, step in zip(rows, told, strict=True):
        for name in (
            "number",
            "kind",
            "status",
            "attempts",
            "worker",
            "signal",
            "key",
            "child",
            "undo",
            "error",
        ):
            assert row[name] == getattr(step, name), (name, step)
        assert (row["step"], row["workflow"], row["queue"]) == (step.name, "order", "orders")
        assert (ms(row["started_at"]), ms(row["ended_at"])) == (step.started_at_ms, step.ended_at_ms)
        assert (None if row["result"] is None else json.loads(row["result"])) == step.result
        assert row["result_bytes"] == step.size


def test_events(full: Full) -> None:
    columns = "shard,seq,kind,queue,error,terminal,fields"
    rows = rows_of(full.folder, "events", columns=columns)
    kinds = Counter(row["kind"] for row in rows)
    counts = asked(full.folder, "select count, payload from events")
    assert len(rows) == sum(row["count"] for row in counts)
    assert kinds["pushed"] >= len(full.made.ids)
    assert kinds["obliterated"] == 8
    assert len({(row["shard"], row["seq"]) for row in rows}) == len(rows)
    for row in rows:
        assert row["queue"], "also of queues that are gone"
        assert shard_of(row["queue"], 2) == row["shard"]
    failed = [row for row in rows if row["kind"] == "failed"]
    assert {row["error"] for row in failed} >= {"bad", "not yet"}
    assert {row["terminal"] for row in failed} == {True, False}
    assert all(json.loads(row["fields"])["error"] == row["error"] for row in failed)


def test_queues_and_schedules(full: Full) -> None:
    queues = {row["queue"]: row for row in rows_of(full.folder, "queues")}
    expected = asked(full.folder, "select * from queues")
    assert {row["name"] for row in expected} == set(queues)
    for row in expected:
        found = queues[row["name"]]
        assert (found["completed"], found["failed"]) == (row["completed"], row["failed"])
        assert found["paused"] is row["name"].startswith("side")
    paused = [row for row in queues.values() if row["paused"]]
    assert sorted(row["concurrency"] for row in paused) == list(range(2, 10))
    assert sorted(row["rate_limit"] for row in paused) == [100 + number for number in range(8)]
    assert {row["rate_duration_ms"] for row in paused} == {3_600_000}
    crons = {row["name"]: row for row in rows_of(full.folder, "cron")}
    assert sorted(crons) == sorted([f"{word} {n}" for word in ("cron", "every") for n in range(8)])
    assert crons["cron 3"]["schedule"] == "0 0 1 1 *"
    assert crons["every 3"]["repeat_every_ms"] == 3_600_000
    assert crons["cron 3"]["next_run"].month == 1
    assert crons["cron 3"]["paused"] is False


def test_a_schedule_says_how_its_last_run_ended(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        server.start()
        with Queue("reports", port=server.port) as queue:
            queue.upsert_cron("nightly", schedule="0 3 * * *")
            queue.upsert_cron("weekly", schedule="@weekly")
            job = queue.run_cron("nightly")
            job.remove()
            shown = queue.get_cron("nightly")
        server.stop()
        rows = {row["name"]: row for row in rows_of(tmp_path / "data", "cron")}
    finally:
        dispose(server)
    assert shown is not None
    assert shown.last_run is not None
    assert shown.last_run.outcome == "removed"
    nightly, weekly = rows["nightly"], rows["weekly"]
    assert (nightly["last_job"], nightly["last_outcome"]) == (job.id, "removed")
    assert ms(nightly["last_run"]) == shown.last_run.at_ms
    assert ms(nightly["last_ended_at"]) == shown.last_run.ended_at_ms
    assert (nightly["app"], nightly["missed"]) == (None, 0)
    assert (weekly["last_run"], weekly["last_job"], weekly["last_outcome"]) == (None, None, None)


@pytest.mark.parametrize("name", TABLES)
def test_spark_has_the_same_rows_in_the_types_that_it_expects(
    spark: SparkSession, full: Full, name: str
) -> None:
    table = TABLES[name]
    columns = ",".join(column.name for column in table.columns)
    frame = read(spark, full.folder, name, columns=columns)
    assert schema_of(table.columns).equals(to_arrow_schema(frame.schema, timezone="UTC"))
    assert sorted(frame.toArrow().to_pylist(), key=repr) == rows_of(full.folder, name, columns=columns)


def test_a_shard_without_rows_gives_none(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 1, "shards": 2}')
    (tmp_path / "shard-00.db").touch()  # as it is before its first start
    (tmp_path / "shard-01.db").touch()
    for name in TABLES:
        assert rows_of(tmp_path, name) == [], name


def test_the_newest_schema_is_known() -> None:
    """Whoever changes the schema looks at the tables here, and then at `SCHEMA`."""
    from bunqueue.server.folder.shard_file import SCHEMA

    assert SCHEMA == CURRENT


def test_columns_that_are_null_throughout(tmp_path: Path, full: Full) -> None:
    with sqlite3.connect(tmp_path / "jobs.db") as copy, opened(full.folder) as shards:
        shards[0].backup(copy)
        copy.execute("update jobs set error = null, unique_key = null, extra = null, options = null")
        copy.execute("delete from completed")
        copy.execute("delete from dead_letters")
        copy.execute("delete from locks")
    copy.close()
    columns = ",".join(column.name for column in TABLES["jobs"].columns)
    rows = rows_of(tmp_path / "jobs.db", columns=columns)
    assert rows
    for row in rows:
        for name in ("error", "unique_key", "group_id", "parent_id", "started_at", "finished_at", "worker"):
            assert row[name] is None
        assert row["max_attempts"] == 3
        assert row["state"] in ("waiting", "delayed", "waiting-signal", "waiting-children")
