"""Events as a stream, from real servers: each once, whatever happens in between."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows
from support.folders import opened
from support.naming import queue_on
from support.server import Server, StartServer
from support.waiting import wait_until

from bunqueue import Queue
from bunqueue.spark.options import read_options, stream_options
from bunqueue.spark.read.offsets import Offset
from bunqueue.spark.read.stream import EventStream

QUEUES = [queue_on(number, "stream", 2) for number in range(2)]


def push(server: Server, count: int, queues: list[str] = QUEUES) -> None:
    """Jobs on both shards, in one batch each."""
    for name in queues:
        with Queue(name, port=server.port) as queue:
            queue.add_bulk([("n", number) for number in range(count)])


class Pipeline:
    """A stream of events into Parquet, run until it has caught up."""

    def __init__(self, spark: SparkSession, data: Path | str, place: Path) -> None:
        self.spark = spark
        self.data = data
        self.place = place

    def source(self, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("bunqueue").option("table", "events").options(**options)
        return reader.load(str(self.data))

    def run(self, **options: Any) -> list[dict[str, Any]]:
        """Catch up; what Spark tells of the batches that had events."""
        writer = self.source(**options).writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.place / "checkpoint")).start(
            str(self.place / "lake")
        )
        query.awaitTermination()
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    def rows(self) -> list[Row]:
        return self.spark.read.option("mergeSchema", "true").parquet(str(self.place / "lake")).collect()

    def offset(self) -> Offset:
        """The last that was written down."""
        offsets = self.place / "checkpoint" / "offsets"
        newest = max((path for path in offsets.iterdir() if path.name.isdecimal()), key=lambda p: int(p.name))
        offset: Offset = json.loads(newest.read_text().splitlines()[-1])
        return offset

    def forget_last_commit(self) -> None:
        """As if Spark had died after the batch was written, before that was noted."""
        commits = self.place / "checkpoint" / "commits"
        newest = max((path for path in commits.iterdir() if path.name.isdecimal()), key=lambda p: int(p.name))
        newest.unlink()
        (commits / f".{newest.name}.crc").unlink(missing_ok=True)


def logged(folder: Path) -> dict[tuple[int, int], int]:
    """All events that there are: shard and number, and the time."""
    found = {}
    with opened(folder) as shards:
        for number, db in enumerate(shards):
            for first, at, count in db.execute("select first_seq, at, count from events"):
                found.update({(number, first + place): at for place in range(count)})
    return found


def only_row(folder: Path) -> tuple[int, int] | None:
    """The numbers of the first and the last event of the first shard, if they are in one row."""
    with opened(folder) as shards:
        rows = shards[0].execute("select first_seq, first_seq + count - 1 from events").fetchall()
    return tuple(rows[0]) if len(rows) == 1 else None


def check(pipeline: Pipeline, folder: Path) -> None:
    rows = pipeline.rows()
    expected = logged(folder)
    assert len(rows) == len(expected)
    assert {(row["shard"], row["seq"]) for row in rows} == set(expected)


def test_every_event_once_over_restarts_and_replays(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    data = Path(server.data_dir)
    pipeline = Pipeline(spark, data, tmp_path)
    push(server, 150)
    batches = pipeline.run(maxEventsPerBatch="100")
    assert [batch["numInputRows"] for batch in batches] == [100, 100, 100]
    check(pipeline, data)

    server.stop()
    server.restart()
    push(server, 10)
    assert len(pipeline.run()) == 1
    pipeline.forget_last_commit()
    push(server, 5)
    pipeline.run()
    check(pipeline, data)
    assert pipeline.offset() == {"00": 165, "01": 165}
    assert pipeline.run() == [], "nothing happened since"


def test_what_retention_was_faster_with_is_not_passed_over_in_silence(
    spark: SparkSession, make_server: StartServer, tmp_path: Path
) -> None:
    server = make_server("--events-max-count", "0")  # but for the newest row
    server.start()
    data = Path(server.data_dir)
    pipeline = Pipeline(spark, data, tmp_path)
    push(server, 10)
    pipeline.run()
    before = pipeline.offset()
    for _ in range(4):
        push(server, 1000, QUEUES[:1])
    oldest, newest = wait_until(lambda: only_row(data), "all but the newest row are gone")
    assert oldest > before["00"] + 1
    with pytest.raises(
        StreamingQueryException, match=f"events {before['00'] + 1} to {oldest - 1} of shard 00"
    ):
        pipeline.run()
    pipeline.run(failOnDataLoss="false", columns="shard,seq,kind,fields")
    rows = [row for row in pipeline.rows() if row["shard"] == 0 and row["seq"] > before["00"]]
    (lost,) = [row for row in rows if row["kind"] == "lost"]
    assert json.loads(lost["fields"]) == {"first": before["00"] + 1, "last": oldest - 1}
    assert sorted(row["seq"] for row in rows) == [oldest - 1, *range(oldest, newest + 1)]
    assert pipeline.offset()["00"] == newest


def test_earliest_is_what_is_there_when_the_first_batch_is_read(make_server: StartServer) -> None:
    """Retention goes on between Spark's question where to begin and the reading."""
    server = make_server("--events-max-count", "0")  # but for the newest row
    server.start()
    data = Path(server.data_dir)
    push(server, 10)
    options = {"path": str(data), "table": "events", "columns": "seq"}
    stream = EventStream(lambda: (read_options(options), stream_options({})))
    start = stream.initialOffset()
    for _ in range(4):
        push(server, 1000, QUEUES[:1])
    oldest, newest = wait_until(lambda: only_row(data), "all but the newest row are gone")
    assert oldest > 11
    end = stream.latestOffset(start, ReadMaxRows(100_000))
    assert end == {"00": newest, "01": 10}
    parts = stream.partitions(start, end)
    batches = [batch for part in parts for batch in stream.read(part)]
    read = sorted(seq for batch in batches for seq in batch["seq"].to_pylist())
    assert read == sorted([*range(1, 11), *range(oldest, newest + 1)])


def test_no_shard_is_ahead_of_another(server: Server) -> None:
    """With a watermark, Spark would drop the events of a shard that has more old ones than the other."""
    data = Path(server.data_dir)
    push(server, 300, QUEUES[:1])
    push(server, 10, QUEUES[1:])
    later = max(logged(data).values()) + 5
    wait_until(lambda: time.time() * 1000 > later, "some ms have passed")
    push(server, 290, QUEUES[1:])
    events = logged(data)
    options = {"path": str(data), "table": "events"}
    stream = EventStream(lambda: (read_options(options), stream_options({})))
    start: Offset = {}
    sizes = []
    while (end := stream.latestOffset(start, ReadMaxRows(100))) != start:
        sizes.append(sum(end.values()) - sum(start.values()))
        seen = [at for (shard, seq), at in events.items() if seq <= end[f"{shard:02}"]]
        left = [at for (shard, seq), at in events.items() if seq > end[f"{shard:02}"]]
        assert max(seen) <= min(left, default=max(seen))
        start = end
    assert sum(sizes) == len(events) == 600
    assert max(sizes) == 100
    assert len(sizes) <= 8, "batches are full where they can be"


@pytest.mark.nightly
def test_a_folder_that_went_back_is_noticed(
    spark: SparkSession, make_server: StartServer, tmp_path: Path
) -> None:
    server = make_server()
    server.start()
    data = Path(server.data_dir)
    push(server, 5)
    server.stop()
    shutil.copytree(data, tmp_path / "backup")
    server.restart()
    push(server, 5)
    Pipeline(spark, data, tmp_path).run()
    restored = Pipeline(spark, tmp_path / "backup", tmp_path)
    for strict in ("true", "false"):  # new events would be passed over
        with pytest.raises(
            StreamingQueryException, match="ends at event 5, before 10, which was read; was it rest"
        ):
            restored.run(failOnDataLoss=strict)


@pytest.mark.nightly
def test_where_a_stream_begins(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    data = Path(server.data_dir)
    push(server, 5)
    latest = Pipeline(spark, data, tmp_path / "latest")
    latest.run(startAt="latest")
    push(server, 7)
    latest.run(startAt="latest")  # of no account any more
    assert len(latest.rows()) == 14
    moment = min(row["at"] for row in latest.rows())
    since = Pipeline(spark, data, tmp_path / "since")
    since.run(startAt=moment.isoformat())
    assert len(since.rows()) == 14


def test_events_of_several_machines(spark: SparkSession, make_server: StartServer, tmp_path: Path) -> None:
    servers = [make_server(data_dir=tmp_path / name) for name in ("a", "b")]
    for number, server in enumerate(servers, 1):
        server.start()
        push(server, number)
    reader = spark.readStream.format("bunqueue").options(
        table="events", hosts="web-1,web-2", columns="host,seq,kind"
    )
    stream = reader.option("paths", json.dumps([str(tmp_path / "a"), str(tmp_path / "b")])).load()
    writer = stream.writeStream.format("memory").queryName("several").trigger(availableNow=True)
    writer.start().awaitTermination()
    counts = spark.table("several").groupBy("host").count().collect()
    assert {row["host"]: row["count"] for row in counts} == {"web-1": 2, "web-2": 4}


def test_only_events_can_be_streamed(spark: SparkSession, server: Server) -> None:
    reader = spark.readStream.format("bunqueue").option("table", "jobs")
    query = reader.load(str(server.data_dir)).writeStream.format("noop")
    with pytest.raises(StreamingQueryException) as error:
        query.trigger(availableNow=True).start().awaitTermination()
    assert "Error: table: jobs cannot be streamed; give table=events" in str(error.value).splitlines()[0]
    assert "Traceback" not in str(error.value)


def test_options_of_the_other_way_to_read_are_refused(spark: SparkSession, server: Server) -> None:
    folder = str(server.data_dir)
    reader = spark.readStream.format("bunqueue").options(table="events", unreadable="skip")
    writer = reader.load(folder).writeStream.format("noop").trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="unreadable: streams have no such option; leave it"):
        writer.start().awaitTermination()
    batch = spark.read.format("bunqueue").options(table="events", startAt="latest").load(folder)
    with pytest.raises(AnalysisException) as error:
        batch.count()
    assert "OptionError: startAt: only streams have this option; leave it" in str(error.value).splitlines()[0]
    assert "Traceback" not in str(error.value)
