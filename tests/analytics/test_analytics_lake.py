"""The lake: what is in it, however often it is exported to, and whatever interrupts that."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import oracle
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from history import HOUR_MS, TIMES, at_another_time, begin_of, shards_of
from pyarrow import dataset

from bunqueue import OptionError
from bunqueue.analytics import lake, pipeline
from bunqueue.analytics.compacting import compact
from bunqueue.analytics.delta import follow
from bunqueue.analytics.engine import Engine
from bunqueue.analytics.exporting import export
from bunqueue.analytics.lake_log import LakeLog
from bunqueue.analytics.times import time_of
from bunqueue.spark import NotReadable

KEYS = {
    "jobs": ("host", "id", "finished_at"),
    "attempts": ("host", "job_id", "number", "ended_at"),
    "events": ("host", "shard", "seq"),
}


@pytest.fixture
def folder(past: Path, tmp_path: Path) -> Path:
    """A copy of the history that tests may change."""
    return at_another_time(past, tmp_path / "web", begin_of(past))


def rows_of(place: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The keys of all rows, sorted."""
    return {
        table: sorted(tuple(row[name] for name in key) for row in _rows(place, table))
        for table, key in KEYS.items()
    }


def _rows(place: Path, table: str) -> list[dict[str, Any]]:
    files = [str(path) for path in lake.files_of(place, table)]
    rows: list[dict[str, Any]] = (
        dataset.dataset(files, lake.schema_of(table)).to_table().to_pylist() if files else []
    )
    return rows


def expected(folder: Path) -> dict[str, int]:
    """How many rows there must be, by sqlite3."""
    counts = {"jobs": 0, "attempts": 0, "events": 0}
    for shard in shards_of(folder):

        def one(query: str, shard: sqlite3.Connection = shard) -> int:
            return int(shard.execute(query).fetchone()[0])

        ended = one("select count(*) from completed"), one("select count(*) from dead_letters")
        counts["jobs"] += sum(ended)
        counts["attempts"] += ended[0] + one("select count(*) from attempts")
        counts["events"] += one("select coalesce(sum(count), 0) from events")
    return counts


def test_repeated_and_killed(folder: Path, tmp_path: Path) -> None:
    """Killed before the commit, and after it before the files are in their places: then repeated."""
    place = tmp_path / "lake"
    with pytest.raises(KeyboardInterrupt):
        export([str(folder)], place, hosts=["web"], on_step=_dies_at("commit"))
    assert not any(_rows(place, table) for table in KEYS)
    first = export([str(folder)], place, hosts=["web"])
    whole = rows_of(place)
    assert {table: len(set(rows)) for table, rows in whole.items()} == expected(folder) == first.rows
    assert (first.gaps, first.missing) == ([], {})
    _undo_moving(place)
    again = export([str(folder)], place, hosts=["web"])
    assert (again.rows, again.gaps, again.missing) == (dict.fromkeys(KEYS, 0), [], {})
    assert rows_of(place) == whole
    assert not (place / "_staging").exists()


def _dies_at(name: str) -> pipeline.OnStep:
    def on_step(what: str) -> None:
        if what == name:
            raise KeyboardInterrupt

    return on_step


def _undo_moving(place: Path) -> None:
    """Put half of the last run's files back to where they were when it committed."""
    last = LakeLog(place).last()
    assert last is not None
    for source, target in list(last.files.items())[::2]:
        (place / "_staging" / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(place / target, place / "_staging" / source)


@pytest.fixture
def two_parts(folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The folder as it was at some moment, when less had happened, and as it is."""
    return cut_short(folder, tmp_path / "early"), folder


def cut_short(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    for shard in shards_of(to):
        rows = shard.execute("select first_seq, at from events order by first_seq").fetchall()
        cut = rows[len(rows) * 2 // 3][1]
        shard.execute("delete from events where at >= ?", (cut,))
        for table, column in (
            ("completed", "finished_at"),
            ("dead_letters", "finished_at"),
            ("attempts", "ended_at"),
        ):
            shard.execute(f"delete from {table} where {column} >= ?", (cut,))
        shard.commit()
    return to


def test_in_parts_with_what_was_forgotten(two_parts: tuple[Path, Path], tmp_path: Path) -> None:
    """A second run adds the rest, and says which events and jobs it came too late for."""
    early, late = two_parts
    place = tmp_path / "lake"
    export([str(early)], place, hosts=["web"])
    before = rows_of(place)
    assert {table: len(rows) for table, rows in before.items()} == expected(early)
    reached = {number: found.seq for number, found in LakeLog(place).commits()[-1].reached["web"].items()}
    forgotten, lost = _forget(late, reached)
    found = export([str(late)], place, hosts=["web"])
    assert {(gap.shard, gap.first, gap.last) for gap in found.gaps} == forgotten
    assert found.missing == lost
    after = rows_of(place)
    for table, rows in after.items():
        assert len(set(rows)) == len(rows)
        assert set(before[table]) <= set(rows)
    assert len(after["events"]) == len(before["events"]) + found.rows["events"]
    notes = lake.notes_of(place)
    assert any("events of shard" in note for note in notes)
    assert any("1 jobs of mail" in note for note in notes)


def test_forgotten_on_request(two_parts: tuple[Path, Path], tmp_path: Path) -> None:
    """The first new events are not there, as that was asked for: nothing is missing."""
    early, late = two_parts
    export([str(early)], tmp_path / "lake", hosts=["web"])
    reached = LakeLog(tmp_path / "lake").commits()[-1].reached["web"]
    for number, shard in enumerate(shards_of(late)):
        query = "select first_seq, payload from events where first_seq > ? order by first_seq limit 1"
        first, payload = shard.execute(query, (reached[number].seq,)).fetchone()
        entries = msgspec.msgpack.encode([None] * len(msgspec.msgpack.decode(payload)))
        shard.execute("update events set payload = ? where first_seq = ?", (entries, first))
        shard.commit()
    assert export([str(late)], tmp_path / "lake", hosts=["web"]).gaps == []


def test_from_a_moment_on(two_parts: tuple[Path, Path], tmp_path: Path) -> None:
    """What a lake has of a server before it was put back is not added again, under its new name."""
    (early, late), place = two_parts, tmp_path / "lake"
    begin = begin_of(late) + 1500
    first = export([str(early)], place, hosts=["web"], since=begin)
    second = export([str(late)], place, hosts=["web"])
    ended = "select finished_at, 1 from completed union all "
    queries = {
        "jobs": ended + "select finished_at, 1 from dead_letters",
        "attempts": ended + "select ended_at, 1 from attempts",
        "events": "select at, count from events",
    }
    counts = {
        table: sum(count for shard in shards_of(late) for at, count in shard.execute(query) if at >= begin)
        for table, query in queries.items()
    }
    assert counts == {table: first.rows[table] + second.rows[table] for table in counts}
    assert counts == {table: len(set(rows)) for table, rows in rows_of(place).items()}
    assert all(0 < counts[table] < whole for table, whole in expected(late).items())
    assert (first.gaps, second.gaps, second.missing) == ([], [], {})
    with pytest.raises(OptionError, match="since: the lake knows web, and goes on where it was"):
        export([str(late)], place, hosts=["web"], since=begin)
    nothing = dict.fromkeys(KEYS, 0)
    later = begin_of(late) + 24 * HOUR_MS
    assert export([str(late)], place, hosts=["other"], since=later).rows == nothing
    assert export([str(late)], place, hosts=["other"]).rows == nothing


def test_fewer_files(past: Path, tmp_path: Path) -> None:
    """Days that are over have one file afterwards, and the same rows."""
    folder, place = at_another_time(past, tmp_path / "web", 1_774_000_000_000, 10_000), tmp_path / "lake"
    export([str(cut_short(folder, tmp_path / "early"))], place, hosts=["web"])
    export([str(folder)], place, hosts=["web"])
    before, rows = _files_by_folder(place), rows_of(place)
    crowded = {day: files for day, files in before.items() if len(files) > 1}
    count = sum(map(len, crowded.values()))
    theirs = next(iter(crowded)) / "theirs.parquet"
    shutil.copy(theirs.parent / before[theirs.parent][0], theirs)
    with_theirs = rows_of(place)
    merged, _ = compact(place)
    assert 0 < merged < count, "a day with files of others is left alone"
    assert rows_of(place) == with_theirs
    theirs.unlink()
    assert merged + compact(place)[0] == count
    after = _files_by_folder(place)
    assert after.keys() == before.keys()
    assert {len(files) for files in after.values()} == {1}
    assert rows_of(place) == rows
    assert {table: len(set(found)) for table, found in rows.items()} == expected(folder)
    assert compact(place) == (0, 0)
    assert export([str(folder)], place, hosts=["web"]).rows == dict.fromkeys(KEYS, 0)
    assert _files_by_folder(place) == after


def test_as_delta_tables(past: Path, tmp_path: Path) -> None:
    """They have the rows of the files, whatever has become of these."""
    folder, place = at_another_time(past, tmp_path / "web", 1_774_000_000_000, 10_000), tmp_path / "lake"

    def versions() -> dict[str, int]:
        follow(place)
        rows, found = rows_of(place), {}
        for table in KEYS:
            known = DeltaTable(place / table)
            assert known.to_pyarrow_dataset().count_rows() == len(rows[table])
            found[table] = known.version()
        return found

    export([str(cut_short(folder, tmp_path / "early"))], place, hosts=["web"])
    assert versions() == dict.fromkeys(KEYS, 0)
    export([str(folder)], place, hosts=["web"], payload=True)
    assert versions() == dict.fromkeys(KEYS, 1)
    compact(place)
    assert versions() == versions() == dict.fromkeys(KEYS, 3)
    shutil.rmtree(min((place / "jobs").glob("date=*")))
    assert versions() == {"jobs": 4, "attempts": 3, "events": 3}
    assert export([str(folder)], place, hosts=["web"]).rows == dict.fromkeys(KEYS, 0)
    days = DeltaTable(place / "events").to_pyarrow_dataset().to_table(["date", "at"]).to_pylist()
    assert all(row["date"] == row["at"].date() for row in days)


def test_days_that_are_not_over(past: Path, tmp_path: Path) -> None:
    """They are left alone; as is tomorrow, which is today if it becomes midnight meanwhile."""
    tomorrow, place = time.time_ns() // 1_000_000 + 24 * HOUR_MS, tmp_path / "lake"
    folder = at_another_time(past, tmp_path / "web", tomorrow)
    for each in (cut_short(folder, tmp_path / "early"), folder):
        export([str(each)], place, hosts=["web"])
    before = _files_by_folder(place)
    assert max(map(len, before.values())) == 2
    assert compact(place) == (0, 0)
    assert _files_by_folder(place) == before


def _files_by_folder(place: Path) -> dict[Path, list[str]]:
    found: dict[Path, list[str]] = {}
    for path in sorted(place.glob("*/*/*.parquet")):
        found.setdefault(path.parent, []).append(path.name)
    return found


def test_ids_that_are_used_again(duck: Engine) -> None:
    """Of each job the last end counts, when it was revived; another job with its id is another one."""
    rows = [
        {"host": "web", "id": "a", "created_at": time_of(at), "finished_at": time_of(end)}
        for at, end in ((1, 2), (3, 4), (3, 6))
    ]
    revived = [{"host": "web", "job_id": "a", "kind": "revived"}]
    for table, given in (("jobs", rows), ("events", revived)):
        duck.give(f"all_{table}", pa.Table.from_pylist(given, lake.schema_of(table)))
    duck.view("last", lake.LAST_ENDS.format(recent="true"))
    found = duck.rows("select unix_millis(created_at) as made, unix_millis(finished_at) as ended from last")
    assert sorted((row["made"], row["ended"]) for row in found) == [(1, 2), (3, 6)]


def test_a_shard_that_comes_later(folder: Path, tmp_path: Path) -> None:
    """Nothing had happened on it, or it could not be read: it is then taken from its begin."""
    early, place = tmp_path / "early", tmp_path / "lake"
    shutil.copytree(folder, early)
    (early / "shard-01.db").write_bytes(b"no database" * 100)
    first = export([str(early)], place, hosts=["web"], skip_unreadable=True)
    reached = LakeLog(place).commits()[-1].reached["web"]
    assert reached.keys() == {0}
    _have_happened_long_ago(folder, 1)
    second = export([str(folder)], place, hosts=["web"])
    counts = {table: len(set(rows)) for table, rows in rows_of(place).items()}
    assert counts == expected(folder)
    assert counts == {table: first.rows[table] + second.rows[table] for table in counts}
    assert (second.gaps, second.missing) == ([], {})


def test_a_shard_that_comes_too_late(folder: Path, tmp_path: Path) -> None:
    """It has forgotten its first events: that is told."""
    early, place = tmp_path / "early", tmp_path / "lake"
    shutil.copytree(folder, early)
    (early / "shard-01.db").write_bytes(b"no database" * 100)
    export([str(early)], place, hosts=["web"], skip_unreadable=True)
    with closing(sqlite3.connect(folder / "shard-01.db")) as shard:
        (count,) = shard.execute("select count from events where first_seq = 1").fetchone()
        shard.execute("delete from events where first_seq = 1")
        shard.commit()
    found = export([str(folder)], place, hosts=["web"])
    assert [gap[:4] for gap in map(msgspec.structs.astuple, found.gaps)] == [("web", 1, 1, count)]


def _have_happened_long_ago(folder: Path, number: int) -> None:
    """Move what happened on one shard a day back."""
    for place, shard in enumerate(shards_of(folder)):
        for table, columns in TIMES.items() if place == number else ():
            new = ", ".join(f"{name} = {name} - {24 * HOUR_MS}" for name in columns)
            shard.execute(f"update {table} set {new}")
        shard.commit()


def _forget(folder: Path, reached: dict[int, int]) -> tuple[set[tuple[int, int, int]], dict[str, int]]:
    """Have one shard lose the first new row of its events, and a job that completed after that."""
    for number, shard in enumerate(shards_of(folder)):
        queue = shard.execute("select id from queues where name = 'mail'").fetchone()
        if queue is None:
            continue
        after = reached.get(number, 0)
        query = "select first_seq, count, at from events where first_seq > ? order by first_seq limit 1"
        first, count, at = shard.execute(query, (after,)).fetchone()
        shard.execute("delete from events where first_seq <= ?", (first,))
        query = "select seq from completed where queue_id = ? and finished_at > ? limit 1"
        (seq,) = shard.execute(query, (queue[0], at)).fetchone()
        shard.execute("delete from completed where seq = ?", (seq,))
        shard.execute("delete from jobs where seq = ?", (seq,))
        shard.commit()
        return {(number, first, first + count - 1)}, {"mail": 1}
    raise AssertionError("no shard has the queue")


def test_figures_of_a_lake(duck: Engine, folder: Path, tmp_path: Path) -> None:
    """They are those of the server, but for jobs that have not ended."""
    place = tmp_path / "lake"
    export([str(folder)], place, hosts=["web"])
    result = pipeline.aggregate(duck, lake.from_lake(duck, place), pipeline.wanted(bucket="minute"))
    since, until = (round(at.timestamp() * 1000) for at in (result.about.since, result.about.until))
    clock = oracle.Clock("minute", "UTC", since, until)
    known = oracle.look_at({"web": folder})
    known.jobs = [job for job in known.jobs if job.ended is not None]
    expected = oracle.activity(known, clock, lambda each, _: each.queue, lambda _: clock.length(None))
    found = {row["queue"]: row for row in result.tables["queues"].to_pylist()}
    assert found.keys() == expected.keys()
    for queue, numbers in expected.items():
        for name, value in numbers.items():
            assert found[queue][name] == (None if value is None else pytest.approx(value)), (queue, name)


def test_days_before_the_range_are_not_read(duck: Engine, past: Path, tmp_path: Path) -> None:
    """And the figures are the same."""
    folder, place = at_another_time(past, tmp_path / "web", 1_774_000_000_000, 200_000), tmp_path / "lake"
    export([str(folder)], place, hosts=["web"])
    since = oracle.halfway(oracle.look_at({"web": folder}))
    begin = datetime.fromtimestamp(since / 1000, UTC)
    for table in ("jobs", "attempts"):
        days = {path.parent.name for path in lake.files_of(place, table)}
        read = {path.parent.name for path in lake.files_of(place, table, since)}
        assert read == {day for day in days if day >= f"date={begin.date().isoformat()}"} != days
    asked = pipeline.Wanted(begin, None, "day")
    found = pipeline.aggregate(duck, lake.from_lake(duck, place, since), asked)
    for name, table in pipeline.aggregate(duck, lake.from_lake(duck, place), asked).tables.items():
        rows, others = found.tables[name].to_pylist(), table.to_pylist()
        if "backlog" in name:  # a queue that had none before may have a row that says so
            rows, others = ([row for row in some if row["unfinished"]] for some in (rows, others))
        assert rows == others, name


def test_payload_and_partitions(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "lake"
    export([str(folder)], place, hosts=["web"], payload=True)
    rows = {row["id"]: row for row in _rows(place, "jobs")}
    assert json.loads(rows["kid-1"]["data"]) == {}
    assert json.loads(rows["kid-1"]["result"]) == "done"
    assert rows["parent"]["depends_on"] == ["kid-1", "kid-2"]
    assert rows["kid-1"]["parent_id"] == "parent"
    day = rows["kid-1"]["finished_at"].strftime("%Y-%m-%d")
    assert [path.name for path in (place / "jobs" / f"date={day}").iterdir()] == ["000001-part-000.parquet"]


def test_the_host_has_to_be_clear(folder: Path, tmp_path: Path) -> None:
    """A lake takes no folder under a name that nobody gave, nor one that was resharded."""
    place, now = tmp_path / "lake", socket.gethostname()
    export([str(folder)], place, hosts=["web-1"])
    with pytest.raises(OptionError, match=rf"hosts: the lake knows web-1, and not {now}, as .* \(--host\)"):
        export([str(folder)], place)
    there = expected(folder)
    subprocess.run([sys.executable, "-m", "shardproc.resharding", str(folder), "4"], check=True)
    with pytest.raises(NotReadable, match=r"web-1 has 4 shards, and had 2 at the last export.*--since"):
        export([str(folder)], place, hosts=["web-1"])
    assert {table: len(rows) for table, rows in rows_of(place).items()} == there


def test_a_folder_that_was_restored(folder: Path, tmp_path: Path) -> None:
    """Its log ends before what the lake has of it."""
    early, place = cut_short(folder, tmp_path / "early"), tmp_path / "lake"
    export([str(folder)], place, hosts=["web"])
    with pytest.raises(
        NotReadable, match=r"events, and had \d+ at the last export: it was restored .* --since"
    ):
        export([str(early)], place, hosts=["web"])


def test_nothing_is_read_when_nothing_is_new(folder: Path, tmp_path: Path) -> None:
    """The number of the last event says so: damaged tables are not looked at."""
    place = tmp_path / "lake"
    export([str(folder)], place, hosts=["web"])
    for shard in shards_of(folder):
        shard.execute("drop table completed")
        shard.commit()
    assert export([str(folder)], place, hosts=["web"]).rows == dict.fromkeys(KEYS, 0)


def test_who_cannot_export(duck: Engine, folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "lake"
    with LakeLog(place).opened(), pytest.raises(NotReadable, match=r"another export into .* is running"):
        export([str(folder)], place)
    with pytest.raises(NotReadable, match="is no lake: nothing has been exported to it"):
        lake.from_lake(duck, tmp_path / "nothing")
    (place / "_log" / "000001.json").write_text('{"number": 1')
    with pytest.raises(NotReadable, match=r"000001.json is no commit of a lake"):
        export([str(folder)], place)
