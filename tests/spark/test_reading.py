"""Which rows are read: options, filters, ranges; and what is said where something is wrong."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plain import rows_of
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.server import StartServer
from support.spark import Full, read
from support.table import table

from bunqueue import OptionError, Queue
from bunqueue.server.folder.shard_file import SCHEMA
from bunqueue.spark import NotReadable, UnreadableShard, snapshot
from bunqueue.spark.options import columns_named
from bunqueue.spark.read.folders import find_shards
from bunqueue.spark.read.queries import spans
from bunqueue.spark.read.reading import Selection, pieces_of
from bunqueue.spark.read.reading import read as read_piece
from bunqueue.spark.read.tables import TABLES


def ids(frame: DataFrame) -> set[str]:
    return {row["id"] for row in frame.select("id").collect()}


def test_a_frame_that_is_filtered_in_several_ways(spark: SparkSession, full: Full) -> None:
    frame = read(spark, full.folder, columns="id,state")
    held = {row["id"]: row["state"] for row in frame.collect()}
    failed, completed = frame.where("state = 'failed'"), frame.where("state = 'completed'")
    for states, found in (
        ({"failed"}, failed),
        ({*held.values()}, frame),
        ({"completed"}, completed),
        ({"failed", "completed"}, failed.union(completed)),
    ):
        assert ids(found) == {job for job, state in held.items() if state in states}


def test_filters_choose_rows(full: Full) -> None:
    wanted = '[["state", "in", ["failed", "completed"]], ["priority", ">", 0], ["error", "=", null]]'
    expected = [
        row
        for row in rows_of(full.folder)
        if row["state"] in ("failed", "completed") and row["priority"] > 0 and row["error"] is None
    ]
    assert expected
    assert rows_of(full.folder, filters=wanted) == expected


def test_a_time_between_two_milliseconds(spark: SparkSession, full: Full) -> None:
    frame = read(spark, full.folder)
    moment = frame.agg(F.max("created_at")).collect()[0][0].replace(tzinfo=UTC)
    for micros, some in ((-1, True), (0, True), (1, False)):
        later = F.lit(moment + timedelta(microseconds=micros))
        assert bool(frame.where(F.col("created_at") >= later).count()) is some


def test_options_choose_rows(full: Full) -> None:
    rows = rows_of(full.folder)
    queue = full.jobs[full.made.ids[0]]["queue"]
    assert rows_of(full.folder, queues=queue) == [row for row in rows if row["queue"] == queue]
    chosen = rows_of(full.folder, states="completed, cancelled", queues=f'["{queue}"]')
    expected = [row for row in rows if row["state"] in ("completed", "cancelled") and row["queue"] == queue]
    assert chosen == expected
    assert expected
    times = sorted(row["created_at"] for row in rows)
    since, until = times[len(times) // 4], times[len(times) // 2]
    between = rows_of(full.folder, since=since.isoformat(), until=until.isoformat())
    assert between == [row for row in rows if since <= row["created_at"] < until]
    assert (
        rows_of(full.folder, since=since.replace(tzinfo=None).isoformat(), until=until.isoformat()) == between
    )
    later = (since + timedelta(hours=1)).astimezone(timezone(timedelta(hours=5))).isoformat()
    assert rows_of(full.folder, since=later) == []
    finished = rows_of(full.folder, timeColumn="finished_at", since="2020-01-01")
    assert finished == [row for row in rows if row["finished_at"] is not None]


def test_options_choose_events(full: Full) -> None:
    rows = rows_of(full.folder, "events")
    middle = sorted(rows, key=lambda row: str(row["at"]))[len(rows) // 2]
    after = rows_of(full.folder, "events", since=middle["at"].isoformat(), queues=middle["queue"])
    assert after == [row for row in rows if row["at"] >= middle["at"] and row["queue"] == middle["queue"]]
    kinds = rows_of(full.folder, "events", kinds="failed, pulled")
    assert kinds == [row for row in rows if row["kind"] in ("failed", "pulled")]
    assert len({row["kind"] for row in kinds}) == 2
    filters = json.dumps([["kind", "=", "failed"], ["seq", ">=", middle["seq"]]])
    chosen = rows_of(full.folder, "events", filters=filters)
    assert chosen == [row for row in rows if row["kind"] == "failed" and row["seq"] >= middle["seq"]]


def test_columns_by_option_or_by_schema(spark: SparkSession, full: Full) -> None:
    assert read(spark, full.folder, columns="ID, state").columns == ["id", "state"]
    own = spark.read.format("bunqueue").schema("state string, host string, data string")
    frame = own.option("hosts", "web-1").load(str(full.folder))
    assert frame.columns == ["state", "host", "data"]
    assert {row["host"] for row in frame.collect()} == {"web-1"}
    assert read(spark, full.folder, columns="shard,host").count() == read(spark, full.folder).count()
    assert not {"data", "group_id"} & {*read(spark, full.folder).columns}


def test_payloads_can_be_looked_into(spark: SparkSession, full: Full) -> None:
    frame = read(spark, full.folder, columns="id,data")
    value = F.expr("variant_get(parse_json(data), '$.n', 'int')")
    found = frame.where("data like '{%'").select("id", value.alias("n")).where("n is not null").collect()
    assert len(found) > 50
    assert all(full.jobs[row["id"]]["data"]["n"] == row["n"] for row in found if row["id"] in full.jobs)


def test_several_folders(spark: SparkSession, full: Full) -> None:
    reader = spark.read.format("bunqueue").option("hosts", "a,b")
    with snapshot(full.folder) as copy:
        frame = reader.load([str(full.folder), copy])
        assert {row["host"]: row["count"] for row in frame.groupBy("host").count().collect()} == {
            "a": read(spark, full.folder).count(),
            "b": read(spark, copy).count(),
        }
        assert ids(frame.where("host = 'b'")) == ids(read(spark, full.folder))


def test_a_copy_is_read_in_ranges(spark: SparkSession, full: Full) -> None:
    for name in ("jobs", "attempts", "dead_letters", "events"):
        assert rows_of(full.folder, name, rowsPerTask="7") == rows_of(full.folder, name), name
    pieces = read(spark, full.folder, rowsPerTask="70")
    assert pieces.rdd.getNumPartitions() > 4
    assert pieces.count() == len(rows_of(full.folder))


def test_ranges_begin_where_the_rows_do(make_server: StartServer) -> None:
    """Not at 0: retention has long removed the jobs of the first numbers."""
    server = make_server(shards=1)
    server.start()
    with Queue("ranges", port=server.port) as queue:
        for _ in range(10):
            queue.add_bulk([("n", number) for number in range(1000)])
        queue.drain()
        queue.add_bulk([("n", number) for number in range(100)])
    server.stop()
    (shard,) = find_shards([str(server.data_dir)], [])
    jobs = TABLES["jobs"]
    pieces = pieces_of(shard, jobs, rows=25)
    selection = Selection(jobs, columns_named(jobs, ("seq",)))
    counts = [sum(batch.num_rows for batch in read_piece(piece, selection)) for piece in pieces]
    assert counts == [25, 25, 25, 25]


@pytest.mark.parametrize(
    ("first", "last", "keys"), [(1, 1, 7), (5, 11, 7), (5, 25, 7), (-3, 10, 4), (9, 30, 1)]
)
def test_ranges_have_each_key_once(first: int, last: int, keys: int) -> None:
    found = spans(first, last, keys)
    assert [key for span in found for key in range(span.first, span.last + 1)] == [*range(first, last + 1)]
    assert len(found) == max(1, (last - first + 1) // keys)


# What is wrong


WRONG_OPTIONS = [
    ({"table": "job"}, "table: there is no 'job'; it is one of jobs, attempts"),
    ({"columns": "id,stat"}, "jobs has no column 'stat'; did you mean state?"),
    ({"columns": "id,id"}, "columns: id is named twice"),
    ({"columns": "id,,state"}, "has no name, or an empty one"),
    ({"since": "2026-02-01", "until": "2026-01-31"}, "since: '2026-02-01' is not before until"),
    ({"since": "yesterday"}, "since: 'yesterday' is no time; write it as"),
    ({"states": "done"}, "states: there is no state 'done'; they are waiting"),
    ({"table": "events", "kinds": "failed,stall"}, "kinds: there is no kind 'stall'; did you mean stalled?"),
    ({"kinds": "failed"}, "kinds: the table jobs has no column kind; leave it out"),
    ({"table": "cron", "states": "failed"}, "the table cron has no column state"),
    ({"timeColumn": "name"}, "timeColumn: jobs has no time 'name'; it has created_at"),
    ({"rowsPerTask": "0"}, "rowsPerTask: '0' is not allowed; give a whole number from 1 on"),
    ({"unreadable": "maybe"}, "unreadable: 'maybe' is not allowed; give one of fail, skip"),
    ({"colums": "id"}, "the source bunqueue has no option 'colums'; did you mean columns?"),
    ({"hosts": "a,b"}, "hosts: 2 names for 1 paths"),
    ({"pushFilters": "true"}, "has no option 'pushFilters'; did you mean filters?"),
    ({"filters": "state = 'failed'"}, "is no list of conditions"),
    ({"filters": '[["stat", "=", "failed"]]'}, "filters: jobs has no column 'stat'; did you mean state?"),
    ({"filters": '[["state", "like", "f%"]]'}, "filters: there is no operator 'like'; they are =, <,"),
    ({"filters": '[["attempts", ">", "1"]]'}, "jobs.attempts (int) cannot be compared with '1' by '>'"),
    ({"filters": '[["group_id", "=", "a"]]'}, "filter the frame instead, with where()"),
    ({"filters": '[["shard", "=", 1]]'}, "jobs.shard (int) cannot be compared with 1 by '='"),
    ({"filters": '[["created_at", ">", "noon"]]'}, "filters: 'noon' is no time; write it as"),
    ({"queues": ",".join("q" for _ in range(501))}, "queues: 501 names are more than 500"),
]


@table(("options", "text"), WRONG_OPTIONS)
def test_wrong_options(full: Full, options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as error:
        rows_of(full.folder, **options)
    assert text in str(error.value)


def test_a_wrong_option_is_told_at_once(spark: SparkSession, full: Full) -> None:
    with pytest.raises(PySparkException, match="jobs has no column 'stat'; did you mean state") as told:
        read(spark, full.folder, columns="id,stat")
    assert "  File " not in str(told.value), "no frames"


def test_what_is_read_is_in_the_log(spark: SparkSession, full: Full) -> None:
    setting = "spark.sql.pyspark.worker.logging.enabled"
    spark.conf.set(setting, True)
    try:
        read(spark, full.folder, states="failed", filters='[["attempts", ">", 1]]').count()
        read(spark, full.folder, "queues").count()
        told = [
            row.msg for row in spark.tvf.python_worker_logs().where("logger = 'bunqueue.spark'").collect()
        ]
    finally:
        spark.conf.unset(setting)
    assert "jobs: state in ['failed'] and attempts > 1, in 2 tasks" in told
    assert "queues: all rows, in 2 tasks" in told


def test_a_schema_of_other_types_is_refused(spark: SparkSession, full: Full) -> None:
    with pytest.raises(PySparkException, match=r"jobs\.priority is int, not string; cast it after reading"):
        spark.read.format("bunqueue").schema("priority string").load(str(full.folder)).count()


def test_what_is_no_data_folder(spark: SparkSession, tmp_path: Path) -> None:
    for path, text in (
        (tmp_path / "nowhere", "there is no folder"),
        (tmp_path, "there is no manifest.json in it"),
        (Path(__file__), "is no file of bunqueue"),
    ):
        with pytest.raises(NotReadable, match=text):
            rows_of(path)
    with pytest.raises(PySparkException, match="path: give the data folder"):
        spark.read.format("bunqueue").load()


@pytest.fixture
def broken(full: Full, tmp_path: Path) -> Path:
    """A copy whose second shard is to be damaged."""
    shutil.copytree(full.folder, tmp_path / "data")
    return tmp_path / "data"


def _damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[8192 * 2 :: 97] = bytes(len(content[8192 * 2 :: 97]))
    file.write_bytes(content)


def _newer(file: Path) -> None:
    _number(file, 99)


def _older(file: Path) -> None:
    _number(file, SCHEMA - 1)


def _number(file: Path, schema: int) -> None:
    with sqlite3.connect(file) as db:
        db.execute(f"pragma user_version = {schema}")
    db.close()


def _other(file: Path) -> None:
    file.unlink()
    with sqlite3.connect(file) as db:
        db.execute("create table recipes (name)")
    db.close()


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (_damage, r"shard-01\.db is damaged \(.*restore it from a backup"),
        (_newer, r"shard-01.db was written by a newer version of bunqueue \(schema 99"),
        (_older, r"shard-01.db was written by a version of bunqueue before 0.1.0 \(schema "),
        (_other, "shard-01.db is a database, but not one of bunqueue"),
        (Path.unlink, "shard-01.db is missing; restore it from a backup, or leave it out with the option"),
    ],
)
def test_a_shard_that_cannot_be_read(
    full: Full, broken: Path, harm: Callable[[Path], None], text: str
) -> None:
    harm(broken / "shard-01.db")
    with pytest.raises(UnreadableShard, match=text):
        rows_of(broken)
    rows = rows_of(broken, unreadable="skip")
    assert rows == [row for row in rows_of(full.folder) if row["shard"] == 0]


def test_spark_skips_what_cannot_be_read(spark: SparkSession, broken: Path) -> None:
    (broken / "shard-01.db").unlink()
    with pytest.raises(PySparkException, match=r"shard-01\.db is missing; restore it from a backup"):
        read(spark, broken).collect()
    assert {row["shard"] for row in read(spark, broken, unreadable="skip").collect()} == {0}


def test_an_interrupted_reshard(broken: Path) -> None:
    (broken / ".reshard").mkdir()
    (broken / ".reshard" / "complete.json").touch()
    with pytest.raises(NotReadable, match="run bunqueue reshard again to finish it"):
        rows_of(broken)


def test_nothing_is_left_beside_a_folder_that_is_read(broken: Path) -> None:
    before = sorted(path.name for path in broken.iterdir())
    assert rows_of(broken)
    assert sorted(path.name for path in broken.iterdir()) == before


def test_a_file_that_changes_between_plan_and_reading_is_refused(full: Full, tmp_path: Path) -> None:
    shutil.copytree(full.folder, tmp_path / "data")
    (shard, _) = find_shards([str(tmp_path / "data")], ["h"])
    jobs = TABLES["jobs"]
    planned = pieces_of(shard, jobs, rows=10)
    assert len(planned) > 1
    with sqlite3.connect(shard.path) as db:
        db.execute("update jobs set priority = priority + 1")
    db.close()
    with pytest.raises(UnreadableShard, match="has changed while it was read"):
        list(read_piece(planned[0], Selection(jobs, jobs.default_columns)))


def test_events_that_cannot_match_are_not_unpacked(full: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    from bunqueue.server.folder.shard_file import opened as opened_shard
    from bunqueue.spark.read import event_rows, event_selection
    from bunqueue.spark.read.conditions import Condition

    made: list[int] = []

    def unpacked(*given: Any) -> Iterator[event_rows.Arrays]:
        for arrays in event_rows.events(*given):
            made.extend(arrays["seq"].to_pylist())
            yield arrays

    monkeypatch.setattr(event_selection, "events", unpacked)
    (shard, _) = find_shards([str(full.folder)], ["h"])
    with opened_shard(Path(shard.path)) as file:

        def found(*conditions: Condition) -> list[dict[str, Any]]:
            parts = event_selection.selected(file, event_rows.STORED, conditions)
            return [row for part in parts for row in pa.table(part).to_pylist()]

        everything = found()
        seq = everything[5]["seq"]
        for conditions in (
            (Condition("kind", "in", ["failed", "dropped"]),),
            (Condition("kind", "=", "pushed"), Condition("kind", "in", ["pushed", "failed"])),
            (Condition("seq", "<=", seq),),
            (Condition("seq", "=", seq),),
            (Condition("kind", "in", ["unknown"]),),
        ):
            tests = [_plain(one.column, one.operator, one.value) for one in conditions]
            expected = [event for event in everything if all(test(event) for test in tests)]
            made.clear()
            assert found(*conditions) == expected
            if conditions[0].value != ["unknown"]:
                assert expected
                assert made == [event["seq"] for event in expected]
        for condition, count in (
            (Condition("error", "not null"), sum(event["error"] is not None for event in everything)),
            (Condition("job_id", "starts", everything[5]["job_id"][:9]), None),
            (Condition("at", ">", everything[-1]["at"]), 0),
        ):
            rows = found(condition)
            assert everything[5] in rows if count is None else len(rows) == count


def _plain(column: str, how: str, value: Any) -> Callable[[Any], bool]:
    compare: dict[str, Callable[[Any], bool]] = {
        "in": lambda found: found in value,
        "=": lambda found: found == value,
        "<=": lambda found: found <= value,
    }
    return lambda event: compare[how](event[column])
