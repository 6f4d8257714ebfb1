"""A value that cannot be decoded costs a value, and a shard that cannot be read is known before any task."""

from __future__ import annotations

import shutil
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from plain import rows_of
from support.spark import Full

from bunqueue import OptionError
from bunqueue.spark.errors import UnreadableShard
from bunqueue.spark.read import reading
from bunqueue.spark.read.folders import find_shards
from bunqueue.spark.read.reading import Selection, pieces_of
from bunqueue.spark.read.tables import TABLES


@contextmanager
def harming(folder: Path) -> Iterator[sqlite3.Connection]:
    """The file of the first shard, to be changed."""
    connection = sqlite3.connect(folder / "shard-00.db")
    try:
        yield connection
        connection.commit()
        connection.execute("pragma wal_checkpoint(truncate)")
    finally:
        connection.close()


COLUMNS = "seq,id,name,state,created_at,max_attempts,custom_id,error,priority,_corrupt"


@pytest.fixture
def harmed(full: Full, tmp_path: Path) -> Path:
    """A copy with one bad value of each kind, each in a job of its own, and in the events."""
    folder = tmp_path / "data"
    shutil.copytree(full.folder, folder)
    with harming(folder) as shard:
        jobs = [row[0] for row in shard.execute("select seq from jobs order by seq")]
        assert len(jobs) > 6
        for seq, (column, value) in zip(jobs, BAD.values(), strict=False):
            shard.execute(f"update jobs set {column} = ? where seq = ?", (value, seq))
        shard.execute("update jobs set error = cast(x'62ff61' as text) where seq = ?", (jobs[5],))
    return folder


BAD = {
    "max_attempts": ("options", b"\xc1\xc1"),
    "custom_id": ("extra", b"\x93\x01"),
    "created_at": ("created_at", 1 << 62),
    "priority": ("priority", "high"),
    "name": ("name", b"\x00\x01"),
}


def test_a_bad_value_is_null_and_says_why(full: Full, harmed: Path) -> None:
    columns = f"shard,{COLUMNS}"
    before = {(row["shard"], row["seq"]): row for row in rows_of(full.folder, columns=columns)}
    rows = {(row["shard"], row["seq"]): row for row in rows_of(harmed, columns=columns)}
    assert rows.keys() == before.keys(), "no row is lost"
    bad = {key: row for key, row in rows.items() if row["_corrupt"] is not None}
    assert len(bad) == 6
    for row, column in zip((bad[key] for key in sorted(bad)), [*BAD, "error"], strict=True):
        assert row[column] is None
        assert f"{column}: " in row["_corrupt"]
    for key in rows.keys() - bad.keys():
        assert rows[key] == before[key]
    assert {row["_corrupt"] for row in before.values()} == {None}


def test_what_becomes_of_bad_rows(full: Full, harmed: Path) -> None:
    whole = len(rows_of(full.folder, columns=COLUMNS))
    assert len(rows_of(harmed, columns=COLUMNS)) == whole
    assert len(rows_of(harmed, columns=COLUMNS, mode="dropMalformed")) == whole - 6
    assert len(rows_of(harmed, columns="seq,queue", mode="FAILFAST")) == whole, "nothing bad is read"
    with pytest.raises(UnreadableShard, match=r"shard-00\.db: a row of jobs, seq \d+.*mode=PERMISSIVE reads"):
        rows_of(harmed, columns=COLUMNS, mode="FAILFAST")
    with pytest.raises(OptionError, match="mode: 'lenient' is not allowed; give one of PERMISSIVE, "):
        rows_of(harmed, mode="lenient")


def test_a_bad_event_costs_an_event(full: Full, tmp_path: Path) -> None:
    columns = "shard,seq,kind,queue,namespace,job_id,error,fields,_corrupt"
    before = rows_of(full.folder, "events", columns=columns)
    folder = tmp_path / "data"
    shutil.copytree(full.folder, folder)
    with harming(folder) as shard:
        rows = shard.execute("select first_seq, payload from events").fetchall()
        text = b"\xa3bad"  # with its length: an id may have these letters, too
        first, payload = next((first, payload) for first, payload in rows if text in payload)
        harm = payload.replace(text, b"\xa3b\xffd", 1)
        shard.execute("update events set payload = ? where first_seq = ?", (harm, first))
    after = rows_of(folder, "events", columns=columns)
    bad = [row for row in after if row["_corrupt"]]
    assert len(bad) == 1
    assert bad[0]["kind"] == "failed"
    assert bad[0]["error"] is None
    assert "error: b'b\\xffd' is not UTF-8" in bad[0]["_corrupt"]
    same = (bad[0]["shard"], bad[0]["seq"])
    assert [row for row in after if not row["_corrupt"]] == [
        row for row in before if (row["shard"], row["seq"]) != same
    ]
    with harming(folder) as shard:
        shard.execute("update events set payload = x'dc0001c1' where first_seq = ?", (first,))
    after = rows_of(folder, "events", columns=columns)
    assert {(row["shard"], row["seq"]) for row in after} == {(row["shard"], row["seq"]) for row in before}
    assert rows_of(folder, "events", columns=columns, kinds="failed", mode="FAILFAST"), "no such row matches"


def test_what_is_left_out_is_a_table(full: Full, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(full.folder, folder)

    assert rows_of(folder, "skipped", hosts="web") == []
    file = folder / "shard-01.db"
    content = bytearray(file.read_bytes())
    content[len(content) // 2 :] = b"\xff" * (len(content) - len(content) // 2)
    file.write_bytes(content)
    (row,) = rows_of(folder, "skipped", hosts="web")
    assert (row["host"], row["shard"], row["path"]) == ("web", 1, str(file))
    assert "is damaged" in row["reason"]
    assert {row["shard"] for row in rows_of(folder, unreadable="skip")} == {0}


def test_a_task_that_cannot_read_what_was_planned_fails(
    full: Full, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(full.folder, folder)
    table = TABLES["jobs"]
    (shard, *_) = find_shards([str(folder)], ["web"])
    (piece,) = pieces_of(shard, table, rows=1000)
    chosen: Any = Selection(table, table.default_columns)
    Path(shard.path).unlink()
    with pytest.raises(UnreadableShard, match=r"shard-00\.db is missing; restore it") as wrong:
        list(reading.read(piece, chosen))
    assert "This task runs on" not in str(wrong.value)
    monkeypatch.setattr(socket, "gethostname", lambda: "executor-7")
    with pytest.raises(UnreadableShard, match=f"runs on executor-7; .* mount {folder} on executor-7"):
        list(reading.read(piece, chosen))
