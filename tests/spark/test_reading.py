"""Which rows are read: options, filters, ranges; and what is said where something is wrong."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.folders import opened
from support.server import ROOT, StartServer
from support.spark import Full, read

from bunqueue import Queue
from bunqueue.server.folder.shard_file import SCHEMA
from bunqueue.spark import snapshot
from bunqueue.spark.options import columns_named
from bunqueue.spark.read.folders import find_shards
from bunqueue.spark.read.queries import spans
from bunqueue.spark.read.reading import Selection, pieces_of
from bunqueue.spark.read.reading import read as read_piece
from bunqueue.spark.read.tables import TABLES

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def ids(frame: DataFrame) -> set[str]:
    return {row["id"] for row in frame.select("id").collect()}


@pytest.fixture
def pushdown(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    spark.conf.set(PUSHDOWN, request.param)
    yield spark
    spark.conf.set(PUSHDOWN, "true")


@pytest.fixture(scope="module")
def held(spark: SparkSession, full: Full) -> DataFrame:
    """All jobs, out of the source's reach."""
    frame = read(spark, full.folder)
    return spark.createDataFrame(frame.collect(), frame.schema).cache()


CONDITIONS = [
    "state = 'completed'",
    "state in ('failed', 'delayed', 'waiting-children')",
    "queue like 'main%' and priority > 0",
    "error is not null and error like 'b%'",
    "error is null and group_id = 'a'",
    "not (state = 'completed') or priority = 9",
    "max_attempts = 4",
    "attempts >= 1 and attempts < 3",
    "finished_at is not null and finished_at <= timestamp'2100-01-01 00:00:00.000001'",
    "shard = 1 and progress > 30",
    "custom_id <=> 'custom-3'",
    "started_at between created_at and current_timestamp()",
]


@pytest.mark.parametrize("pushdown", ["true", "false"], indirect=True)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_filter_gives_the_same_rows_wherever_it_is_applied(
    pushdown: SparkSession, full: Full, held: DataFrame, condition: str
) -> None:
    expected = ids(held.where(condition))
    assert expected
    assert ids(read(pushdown, full.folder).where(condition)) == expected
    assert ids(read(pushdown, full.folder, pushFilters="true").where(condition)) == expected


def test_a_frame_that_is_filtered_in_two_ways(spark: SparkSession, full: Full, held: DataFrame) -> None:
    def both(frame: DataFrame) -> DataFrame:
        return frame.where("state = 'failed'").union(frame.where("state = 'completed'"))

    assert ids(both(read(spark, full.folder))) == ids(both(held))


def test_a_time_between_two_milliseconds(spark: SparkSession, full: Full) -> None:
    frame = read(spark, full.folder)
    moment = frame.agg(F.max("created_at")).collect()[0][0].replace(tzinfo=UTC)
    for micros, some in ((-1, True), (0, True), (1, False)):
        later = F.lit(moment + timedelta(microseconds=micros))
        assert bool(frame.where(F.col("created_at") >= later).count()) is some


def test_options_choose_rows(spark: SparkSession, full: Full) -> None:
    frame = read(spark, full.folder)
    queue = full.jobs[full.made.ids[0]]["queue"]
    assert ids(read(spark, full.folder, queues=queue)) == ids(frame.where(F.col("queue") == queue))
    chosen = read(spark, full.folder, states="completed, cancelled", queues=f'["{queue}"]')
    assert ids(chosen) == ids(frame.where(f"state = 'completed' and queue = '{queue}'"))
    times = sorted(row["created_at"] for row in frame.collect())
    since, until = times[len(times) // 4], times[len(times) // 2]
    between = read(spark, full.folder, since=since.isoformat(), until=until.isoformat())
    assert sorted(row["created_at"] for row in between.collect()) == [t for t in times if since <= t < until]
    hour = timedelta(hours=1)
    later = (since.replace(tzinfo=UTC) + hour).astimezone().isoformat()
    assert read(spark, full.folder, since=later).count() == 0
    finished = read(spark, full.folder, timeColumn="finished_at", since="2020-01-01")
    assert ids(finished) == ids(frame.where("finished_at is not null"))


def test_options_choose_events(spark: SparkSession, full: Full) -> None:
    frame = read(spark, full.folder, "events").orderBy("at").collect()
    middle = frame[len(frame) // 2]
    after = read(spark, full.folder, "events", since=middle["at"].isoformat(), queues=middle["queue"])
    expected = [row for row in frame if row["at"] >= middle["at"] and row["queue"] == middle["queue"]]
    assert after.count() == len(expected)
    kinds = read(spark, full.folder, "events", kinds="failed, pulled").collect()
    expected = [row for row in frame if row["kind"] in ("failed", "pulled")]
    assert len({row["kind"] for row in expected}) == 2
    assert sorted(map(tuple, kinds), key=str) == sorted(map(tuple, expected), key=str)
    where = f"kind = 'failed' and seq >= {middle['seq']}"
    chosen = read(spark, full.folder, "events").where(where)
    assert chosen.count() == len([r for r in frame if r["kind"] == "failed" and r["seq"] >= middle["seq"]])


def test_columns_by_option_or_by_schema(spark: SparkSession, full: Full) -> None:
    assert read(spark, full.folder, columns="ID, state").columns == ["id", "state"]
    own = spark.read.format("bunqueue").schema("state string, host string, data string")
    frame = own.option("hosts", "web-1").load(str(full.folder))
    assert frame.columns == ["state", "host", "data"]
    assert {row["host"] for row in frame.collect()} == {"web-1"}
    assert read(spark, full.folder, columns="shard,host").count() == read(spark, full.folder).count()
    assert "data" not in read(spark, full.folder).columns


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


@pytest.mark.parametrize("table", ["jobs", "attempts", "dead_letters"])
def test_a_copy_is_read_in_ranges(spark: SparkSession, full: Full, table: str) -> None:
    whole = read(spark, full.folder, table)
    pieces = read(spark, full.folder, table, rowsPerTask="7")
    assert whole.rdd.getNumPartitions() == 2
    assert pieces.rdd.getNumPartitions() > 20
    assert sorted(map(str, pieces.collect())) == sorted(map(str, whole.collect()))


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
    table = TABLES["jobs"]
    pieces = pieces_of(shard, table, rows=25)
    selection = Selection(table, columns_named(table, ("seq",)))
    counts = [sum(batch.num_rows for batch in read_piece(piece, selection)) for piece in pieces]
    assert counts == [25, 25, 25, 25]


@pytest.mark.parametrize(
    ("first", "last", "keys"), [(1, 1, 7), (5, 11, 7), (5, 25, 7), (-3, 10, 4), (9, 30, 1)]
)
def test_ranges_have_each_key_once(first: int, last: int, keys: int) -> None:
    found = spans(first, last, keys)
    assert [key for span in found for key in range(span.first, span.last + 1)] == [*range(first, last + 1)]
    assert len(found) == max(1, (last - first + 1) // keys)


def test_the_source_is_found_without_being_registered(full: Full, tmp_path: Path) -> None:
    """As Spark does it: it imports what is called pyspark_..., and asks for DefaultSource."""
    program = """
import os, sys
from pathlib import Path
from typing import Any
from pyspark.sql import SparkSession
from bunqueue.spark.sessions.java import java_home
os.environ["JAVA_HOME"] = str(java_home(os.environ, Path("shims").absolute()))
spark = SparkSession.builder.master("local[1]").getOrCreate()
print(spark.read.format("bunqueue").load(sys.argv[1]).count())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, full.folder],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with opened(full.folder) as shards:
        jobs = sum(shard.execute("select count(*) from jobs").fetchone()[0] for shard in shards)
    assert done.stdout == f"{jobs}\n"


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
    ({"rowsPerTask": "0"}, "rowspertask: '0' is not allowed; give a whole number, 1 at least"),
    ({"unreadable": "maybe"}, "unreadable: 'maybe' is not allowed; give fail or skip"),
    ({"colums": "id"}, "colums: the source bunqueue has no such option; did you mean columns?"),
    ({"hosts": "a,b"}, "hosts: 2 names for 1 paths"),
    ({"queues": ",".join("q" for _ in range(501))}, "queues: 501 names are more than 500"),
]


@pytest.mark.parametrize(("options", "text"), WRONG_OPTIONS)
def test_a_wrong_option_is_told_at_once(
    spark: SparkSession, full: Full, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException) as error:
        read(spark, full.folder, **{"table": "jobs", **options})
    assert text in str(error.value)


def test_a_schema_of_other_types_is_refused(spark: SparkSession, full: Full) -> None:
    with pytest.raises(PySparkException, match=r"jobs\.priority is int, not string; cast it after reading"):
        spark.read.format("bunqueue").schema("priority string").load(str(full.folder)).count()


def test_what_is_no_data_folder(spark: SparkSession, tmp_path: Path) -> None:
    for path, text in (
        (tmp_path / "nowhere", "there is no folder"),
        (tmp_path, "there is no manifest.json in it"),
        (Path(__file__), "is no file of bunqueue"),
    ):
        with pytest.raises(PySparkException, match=text):
            read(spark, path)
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
    spark: SparkSession, full: Full, broken: Path, harm: Callable[[Path], None], text: str
) -> None:
    harm(broken / "shard-01.db")
    with pytest.raises(PySparkException, match=text):
        read(spark, broken).collect()
    rows = read(spark, broken, unreadable="skip").collect()
    with opened(full.folder) as shards:
        assert len(rows) == shards[0].execute("select count(*) from jobs").fetchone()[0]
    assert {row["shard"] for row in rows} == {0}


def test_an_interrupted_reshard(spark: SparkSession, broken: Path) -> None:
    (broken / ".reshard").mkdir()
    (broken / ".reshard" / "complete.json").touch()
    with pytest.raises(PySparkException, match="run bunqueue reshard again to finish it"):
        read(spark, broken)


def test_nothing_is_left_beside_a_folder_that_is_read(spark: SparkSession, broken: Path) -> None:
    before = sorted(path.name for path in broken.iterdir())
    assert read(spark, broken).count()
    assert sorted(path.name for path in broken.iterdir()) == before


def test_a_file_that_changes_between_plan_and_reading_is_refused(full: Full, tmp_path: Path) -> None:
    from bunqueue.spark.errors import UnreadableShard
    from bunqueue.spark.read.folders import find_shards
    from bunqueue.spark.read.reading import Selection, pieces_of, read
    from bunqueue.spark.read.tables import TABLES

    shutil.copytree(full.folder, tmp_path / "data")
    (shard, _) = find_shards([str(tmp_path / "data")], ["h"])
    table = TABLES["jobs"]
    planned = pieces_of(shard, table, rows=10)
    assert len(planned) > 1
    with sqlite3.connect(shard.path) as db:
        db.execute("update jobs set priority = priority + 1")
    db.close()
    with pytest.raises(UnreadableShard, match="has changed while it was read"):
        list(read(planned[0], Selection(table, table.default_columns)))


def test_events_that_cannot_match_are_not_unpacked(full: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    from bunqueue.server.folder.shard_file import opened as opened_shard
    from bunqueue.spark.read import event_rows
    from bunqueue.spark.read.conditions import Condition
    from bunqueue.spark.read.event_selection import selected
    from bunqueue.spark.read.folders import find_shards

    made: list[int] = []
    build = event_rows._event
    monkeypatch.setattr(event_rows, "_event", lambda seq, *more: made.append(seq) or build(seq, *more))
    (shard, _) = find_shards([str(full.folder)], ["h"])
    with opened_shard(Path(shard.path)) as file:
        everything = list(selected(file, ()))
        for conditions in (
            (Condition("kind", "in", ["failed", "dropped"]),),
            (Condition("kind", "=", "pushed"), Condition("kind", "in", ["pushed", "failed"])),
            (Condition("seq", "<=", everything[5].seq),),
            (Condition("seq", "=", everything[5].seq),),
            (Condition("kind", "in", ["unknown"]),),
        ):
            tests = [test for one in conditions if (test := _plain(one.column, one.operator, one.value))]
            expected = [event for event in everything if all(test(event) for test in tests)]
            made.clear()
            assert list(selected(file, conditions)) == expected
            if conditions[0].value != ["unknown"]:
                assert expected
                assert made == [event.seq for event in expected]


def _plain(column: str, how: str, value: Any) -> Callable[[Any], bool]:
    compare = {"in": lambda a, b: a in b, "=": lambda a, b: a == b, "<=": lambda a, b: a <= b}[how]
    return lambda event: compare(getattr(event, column), value)
