"""Folders that servers are writing to: what is read is of one moment, and the server does not notice."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from plain import rows_of
from pyspark.sql import SparkSession
from support.busy import BATCH, NAME, busy
from support.folders import opened
from support.naming import queue_on
from support.server import Server
from support.spark import read

from bunqueue import Queue
from bunqueue.server.folder.shard_file import identity
from bunqueue.server.folder.shard_file import opened as opened_shard
from bunqueue.spark import NotReadable, copy, snapshot
from bunqueue.spark.read.folders import find_shards
from bunqueue.spark.read.reading import Piece, Selection, pieces_of
from bunqueue.spark.read.reading import read as read_piece
from bunqueue.spark.read.tables import TABLES
from shardproc.storage.database import MAX_LOG, Database


def test_a_busy_shard_is_read_as_of_one_moment(spark: SparkSession, server: Server) -> None:
    data = Path(server.data_dir)
    with busy(server):
        jobs = read(spark, data)
        assert jobs.rdd.getNumPartitions() == 2
        found = [jobs.where(f"queue = '{NAME}'").select("seq").distinct().count() for _ in range(2)]
        events = read(spark, data, "events").where("kind = 'pushed'").count()
    assert all(count and count % BATCH == 0 for count in found)
    assert found == sorted(found)
    assert events % BATCH == 0
    assert identity(data / "shard-01.db") is None, "a server has it"


def test_a_slow_consumer_holds_no_transaction_open(server: Server) -> None:
    """The batches are there before the first of them is handed out; so the log can be reset meanwhile."""
    data = Path(server.data_dir)
    with Queue(NAME, port=server.port) as queue:
        queue.add_bulk([("n", number) for number in range(10_000)])
    table = TABLES["jobs"]
    piece = Piece(find_shards([str(data)], ["h"])[1])
    batches = read_piece(piece, Selection(table, table.default_columns))
    count = next(batches).num_rows
    with sqlite3.connect(data / "shard-01.db") as db:
        busy_readers, pages, done = db.execute("pragma wal_checkpoint(truncate)").fetchone()
    db.close()
    assert (busy_readers, pages, done) == (0, 0, 0), "nobody was in the way"
    assert count < 10_000
    assert count + sum(batch.num_rows for batch in batches) == 10_000


def test_the_log_is_cut_back_after_a_long_read(tmp_path: Path) -> None:
    path = tmp_path / "shard-00.db"
    database = Database(str(path), full_sync=False)
    reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
    insert = "insert or replace into records values ('probe', ?, zeroblob(1048576))"
    reader.execute("begin")
    reader.execute("select count(*) from jobs").fetchone()
    for number in range(MAX_LOG // 1048576 + 20):
        database.connection.execute(insert, (number % 40,))
    log = Path(f"{path}-wal")
    assert log.stat().st_size > MAX_LOG, "it cannot be reset while somebody reads"
    reader.execute("commit")
    reader.close()
    for number in range(40):  # a checkpoint, a reset, and a commit after it
        database.connection.execute(insert, (number,))
    assert log.stat().st_size <= MAX_LOG
    database.close()


def test_a_copy_of_a_busy_server_stays_the_same(server: Server, tmp_path: Path) -> None:
    data = Path(server.data_dir)
    with busy(server):
        with snapshot(data, scratch=tmp_path) as still:
            counts = {len(rows_of(still, rowsPerTask="100")) for _ in range(2)}
            with opened(Path(still)) as shards:
                rows = sum(shard.execute("select count(*) from jobs").fetchone()[0] for shard in shards)
        assert counts == {rows}
        assert rows % BATCH == 0
        assert not Path(still).exists()
        kept = copy(data, tmp_path / "kept")
        with pytest.raises(NotReadable, match="is not empty; give a new folder"):
            copy(data, kept)
    shard = find_shards([str(kept)], ["h"])[1]
    assert len(pieces_of(shard, TABLES["jobs"], rows=10)) > 3
    assert kept.stat().st_mode & 0o077 == 0
    restored = Server(kept)
    try:
        restored.start()  # a copy is a backup
        with Queue(NAME, port=restored.port) as queue:
            assert queue.count() >= rows
    finally:
        restored.dispose()


def test_the_log_of_a_crash_is_read(server: Server) -> None:
    with Queue(NAME, port=server.port) as queue:
        queue.add_bulk([("n", number) for number in range(BATCH)])
    server.kill_all()
    data = Path(server.data_dir)
    assert (data / "shard-01.db-wal").stat().st_size
    assert len(rows_of(data)) == BATCH


def test_who_may_not_write_leaves_nothing_beside_the_log_of_a_crash(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server could not use what another user has made there."""
    with Queue(NAME, port=server.port) as queue:
        queue.add_bulk([("n", number) for number in range(BATCH)])
    server.kill_all()
    for name in ("shard-01.db", "shard-01.db-wal"):
        shutil.copyfile(Path(server.data_dir) / name, tmp_path / name)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with opened_shard(tmp_path / "shard-01.db") as file:
        assert file.one("select count(*) from jobs") == (BATCH,)
    assert sorted(tmp_path.iterdir()) == before


def test_an_embedded_file(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Queue("embedded", embedded=True, data_path=str(path)) as queue:
        queue.add("welcome", {"to": "ada"})
        (row,) = read(spark, path, columns="name,data,state,shard").collect()
    assert row.asDict() == {"name": "welcome", "data": '{"to":"ada"}', "state": "waiting", "shard": 0}


def test_events_keep_the_names_of_queues_that_are_gone(server: Server) -> None:
    """A queue that is made after a restart may get the number of one that was obliterated before it."""
    data = Path(server.data_dir)
    names = [queue_on(1, f"gone-{number}", 2) for number in range(3)]
    for name in names:
        with Queue(name, port=server.port) as queue:
            queue.add_bulk([("n", 1), ("n", 2)])
            if name != names[-1]:
                queue.obliterate()
        server.stop()
        server.restart()
    with opened(data) as shards:
        assert [tuple(row) for row in shards[1].execute("select id, name from queues")] == [(1, names[-1])]
    pushed = rows_of(data, "events", kinds="pushed")
    assert Counter(row["queue"] for row in pushed) == dict.fromkeys(names, 2)
