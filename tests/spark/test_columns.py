"""Tables that are read as columns, beside the same rows one by one.  Without Spark."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgpack
import pytest
from plain import rows_of
from support.spark import Full

from bunqueue.server.folder.shard_file import ShardFile
from bunqueue.spark.errors import UnreadableShard
from bunqueue.spark.read import queries
from bunqueue.spark.read.conditions import Condition
from bunqueue.spark.read.folders import find_shards
from bunqueue.spark.read.queries import Span
from bunqueue.spark.read.reading import Piece, Selection, read
from bunqueue.spark.read.tables import TABLES

FILLED = {
    name: ",".join(column.name for column in table.columns)
    for name, table in TABLES.items()
    if name != "skipped"
}
"""All tables of a folder, and all of their columns."""


def test_columns_are_the_rows(full: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    as_columns = {name: rows_of(full.folder, name, columns=columns) for name, columns in FILLED.items()}
    assert all(as_columns.values())

    def fails(*_: Any) -> None:
        raise ValueError("read it row by row")

    monkeypatch.setattr(ShardFile, "arrays", fails)
    monkeypatch.setattr("bunqueue.spark.read.event_rows._whole_columns", fails)
    for name, columns in FILLED.items():
        assert rows_of(full.folder, name, columns=columns) == as_columns[name]


def test_blocks_of_any_size_have_each_row_once(full: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {name: rows_of(full.folder, name, columns=columns) for name, columns in FILLED.items()}
    monkeypatch.setattr(queries, "ROWS", 40)
    monkeypatch.setattr(queries, "LARGE", 2000)
    monkeypatch.setattr("bunqueue.spark.read.event_rows.ROWS_AT_ONCE", 7)
    for name, columns in FILLED.items():
        assert rows_of(full.folder, name, columns=columns) == whole[name]


def _changed(full: Full, folder: Path, sql: str, *values: Any) -> Path:
    shutil.copytree(full.folder, folder)
    with closing(sqlite3.connect(folder / "shard-00.db")) as db:
        db.execute(sql, values)
        db.commit()
        db.execute("pragma wal_checkpoint(truncate)")
    return folder


ODD = "text \0 with \x01 \"quotes\" \\ 'and' \u2028 \U0001f600 é"


def test_values_that_json_must_not_change(full: Full, tmp_path: Path) -> None:
    cases: dict[str, Any] = {
        "error": ODD,
        "priority": -(1 << 31),
        "data": b"\x00\xff" * 9,
        "unique_key": "",
        "created_at": -1,
    }
    changes = ", ".join(f"{column} = ?" for column in cases)
    folder = _changed(full, tmp_path / "data", f"update jobs set {changes}", *cases.values())
    asked = ("error", "priority", "data_raw", "unique_key", "created_at")
    rows = [row for row in rows_of(folder, columns=",".join(("shard", *asked))) if row["shard"] == 0]
    expected = {**cases, "created_at": datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)}
    for row in rows:
        known = dict(zip(cases, (row[name] for name in asked), strict=True))
        assert known | {"error": ODD} == expected  # a dead letter has an error of its own
    assert ODD in {row["error"] for row in rows}


def test_progress_is_exact(full: Full, tmp_path: Path) -> None:
    values = [0.1 + 0.2, 1e300, -1e-310, 33.333333333333336, 2.0**53 + 2, float("inf")]
    for number, value in enumerate(values):
        folder = _changed(full, tmp_path / str(number), "update locks set progress = ?", value)
        assert value in {row["progress"] for row in rows_of(folder, columns="seq,progress")}
        shutil.rmtree(folder)


def test_a_fraction_is_no_whole_number(full: Full, tmp_path: Path) -> None:
    folder = _changed(full, tmp_path / "data", "update jobs set attempts = 1.5")
    rows = rows_of(folder, columns="shard,seq,attempts,_corrupt")
    bad = [row for row in rows if row["_corrupt"]]
    assert bad
    assert {row["attempts"] for row in bad} == {None}
    assert {row["_corrupt"] for row in bad} == {"attempts: '1.5' is no int"}
    with pytest.raises(UnreadableShard, match=r"of jobs, seq \d+: attempts: '1.5' is no int; mode=PERM"):
        rows_of(folder, columns="seq,attempts", mode="FAILFAST")
    left = rows_of(folder, columns="seq,attempts", mode="DROPMALFORMED")
    assert len(left) == len(rows) - len(bad)


def test_large_values_are_read_a_few_at_a_time(
    full: Full, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "LARGE", 1 << 20)
    monkeypatch.setattr("bunqueue.spark.read.reading.LARGE", 1 << 20)
    large = msgpack.packb("x" * (500 << 10))
    folder = _changed(full, tmp_path / "data", "update jobs set data = ? where seq % 9 = 0", large)
    (shard, *_) = find_shards([str(folder)], ["here"])
    jobs = TABLES["jobs"]
    chosen = Selection(jobs, tuple(column for name in ("seq", "data") if (column := jobs.column(name))))
    sizes = [batch.nbytes for batch in read(Piece(shard), chosen)]
    assert sum(sizes) > 5 << 20
    assert max(sizes) < 3 << 20


def test_states_and_ranges(full: Full) -> None:
    everything = rows_of(full.folder, columns="shard,seq,state")
    states = {row["state"] for row in everything}
    assert len(states) > 5
    for state in states:
        found = rows_of(full.folder, columns="shard,seq,state", states=state)
        assert found == [row for row in everything if row["state"] == state]
    assert rows_of(full.folder, columns="shard,seq,state", rowsPerTask="9") == everything
    events = rows_of(full.folder, "events")
    assert rows_of(full.folder, "events", rowsPerTask="9") == events


FILTERS: list[tuple[list[Any], Callable[[dict[str, Any]], bool]]] = [
    (["state", "=", "failed"], lambda row: row["state"] == "failed"),
    (["state", "in", ["failed", "stuck"]], lambda row: row["state"] in ("failed", "stuck")),
    (["state", "in", ["active"]], lambda row: row["state"] == "active"),
    (["state", "in", ["active", "failed"]], lambda row: row["state"] in ("active", "failed")),
    (["queue", "starts", "main"], lambda row: row["queue"].startswith("main")),
    (["attempts", ">=", 1], lambda row: row["attempts"] >= 1),
    (["error", "=", None], lambda row: row["error"] is None),
    (["finished_at", "not null", None], lambda row: row["finished_at"] is not None),
    (["created_at", "<", "2100-01-01"], lambda row: True),
    (["created_at", ">", "2100-01-01T00:00:00+01:00"], lambda row: False),
]


def test_filters(full: Full) -> None:
    names = "shard,seq,state,queue,attempts,error,created_at,finished_at"
    everything = rows_of(full.folder, columns=names)
    for filters, matches in FILTERS:
        found = rows_of(full.folder, columns=names, filters=json.dumps([filters]))
        assert found == [*filter(matches, everything)], filters


def test_failed_jobs_are_found_without_a_look_at_the_others(full: Full) -> None:
    (shard, *_) = find_shards([str(full.folder)], ["here"])
    jobs = TABLES["jobs"]
    for states, first in (
        (["failed"], "dead_letters"),
        (["active"], "locks"),
        (["failed", "active"], "jobs"),
    ):
        conditions = [Condition("state", "in", states)]
        asked = queries.row_query(
            queries.fewer(jobs, conditions), jobs.columns[2:3], conditions, Span(1, 99), 0
        )
        with closing(sqlite3.connect(shard.path)) as db:
            db.create_function("blocked", 1, str)
            plan = [row[3] for row in db.execute(f"explain query plan {asked.sql}", asked.parameters)]
        assert (
            next(step for step in plan if "moment" not in step and "CONSTANT" not in step).split()[1] == first
        )
