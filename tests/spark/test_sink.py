"""Writing jobs with Spark: tasks that are run again, streams that are repeated, what the user is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.server import Server, StartServer, quiet_port

from bunqueue import Queue, Worker
from bunqueue.errors import OptionError
from bunqueue.spark.sink.enqueue import enqueue
from bunqueue.spark.sink.summary import WriteSummary, read_summaries


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    """Rows whose data is a map with a number."""
    return spark.range(0, count, 1, partitions).select(F.struct(F.col("id").alias("number")).alias("data"))


def jobs(server: Server, queue: str) -> list[Any]:
    """All jobs that the server has of a queue."""
    with Queue(queue, port=server.port) as client:
        return list(client.iter_jobs())


def found(server: Server, queue: str) -> list[int]:
    return sorted(job.data["number"] for job in jobs(server, queue))


def counts(summary: WriteSummary) -> tuple[int, int, int]:
    return summary.accepted, summary.duplicates, summary.rejected


def failing(df: DataFrame, fails: Callable[[TaskContext, int], bool]) -> DataFrame:
    """The same rows; but a task in which ``fails`` is true of a number gets no further.

    They have so much text beside the number that they do not wait for each other on their way.
    """

    @F.udf("string", useArrow=False)  # with it, it would need pandas
    def text(number: int) -> str:
        context = TaskContext.get()
        assert context is not None
        if fails(context, number):
            raise RuntimeError(f"no further than {number}")
        return "x" * 2000

    return df.withColumn("data", F.struct("data.number", text("data.number").alias("text")))


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Rows come to the writer a hundred at a time, so that a task has written some before it fails."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_a_job_for_each_row(spark: SparkSession, shared_server: Server) -> None:
    summary = enqueue(numbers(spark, 5000), "each", name="count", port=shared_server.port)
    assert (summary.state, summary.tasks, summary.repeated_tasks, summary.rows) == ("done", 2, 0, 5000)
    assert counts(summary) == (5000, 0, 0)
    assert found(shared_server, "each") == list(range(5000))
    assert {job.name for job in jobs(shared_server, "each")} == {"count"}


def test_all_that_data_may_be(spark: SparkSession, shared_server: Server) -> None:
    row = spark.createDataFrame(
        [(1, 2**40, 1.5, "ü", True, b"\0\xff", Decimal("12.30"), [1, 2], {"k": {"n": 1}}, None)],
        "small int, large bigint, real double, text string, flag boolean, bytes binary,"
        " money decimal(10,2), list array<int>, map map<string, struct<n: int>>, nothing string",
    ).withColumn("at", F.timestamp_millis(F.lit(1774747800000)))
    enqueue(row.select(F.struct("*").alias("data")), "types", name="n", port=shared_server.port)
    (job,) = jobs(shared_server, "types")
    assert job.data == {
        "small": 1,
        "large": 2**40,
        "real": 1.5,
        "text": "ü",
        "flag": True,
        "bytes": b"\0\xff",
        "money": "12.30",
        "list": [1, 2],
        "map": {"k": {"n": 1}},
        "nothing": None,
        "at": datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    }


def test_tasks_that_fail_are_run_again_and_add_nothing_twice(
    spark: SparkSession, shared_server: Server, small_batches: None
) -> None:
    """While a worker completes jobs of the first attempts already."""
    queue = "retried"
    over = threading.Event()

    async def work() -> None:
        worker = Worker(queue, lambda job: None, port=shared_server.port)
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(over.wait)
        await worker.stop()
        await running

    def first_attempt(context: TaskContext, number: int) -> bool:
        """Each task fails once; the rows before have come through by then."""
        return context.attemptNumber() == 0 and number % 1000 == 700

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        rows = failing(numbers(spark, 3000, 3), first_attempt)
        summary = enqueue(rows, queue, name="n", port=shared_server.port, batchSize=100)
    finally:
        over.set()
        thread.join()
    assert (summary.state, summary.tasks, summary.repeated_tasks) == ("done", 3, 3)
    assert summary.accepted + summary.duplicates == 3000
    assert summary.duplicates > 0  # that were added before their tasks failed
    assert found(shared_server, queue) == list(range(3000))


def test_a_write_that_fails_says_so_and_leaves_what_it_added(
    spark: SparkSession, shared_server: Server, tmp_path: Path, small_batches: None
) -> None:
    rows, place = numbers(spark, 2000), {"port": shared_server.port, "name": "n", "writeId": "the-write"}
    path = tmp_path / "summaries.jsonl"
    never = failing(rows, lambda context, number: number == 1700)
    with pytest.raises(PySparkException, match="no further than 1700"):
        enqueue(never, "failed", summaryPath=str(path), **place)
    (summary,) = read_summaries(path)
    assert (summary.state, summary.write_id) == ("failed", "the-write")
    assert summary.accepted <= 1000

    again = enqueue(failing(rows, lambda context, number: False), "failed", **place)
    assert again.accepted + again.duplicates == 2000
    assert found(shared_server, "failed") == list(range(2000))


def test_bad_rows_are_left_out_or_end_the_write(
    spark: SparkSession, shared_server: Server, tmp_path: Path
) -> None:
    rows = numbers(spark, 100).withColumn("name", F.when(F.col("data.number") != 42, F.lit("n")))
    summary = enqueue(
        rows, "bad", port=shared_server.port, badRows="skip", rejectsPath=str(tmp_path / "rejects")
    )
    assert counts(summary) == (99, 0, 1)
    (example,) = summary.examples
    assert json.loads(example.row) == {"data": {"number": 42}, "name": None}
    assert example.reason == "name: the row has none, and there is no option name"
    (file,) = (tmp_path / "rejects").iterdir()
    assert [json.loads(line)["reason"] for line in file.read_text().splitlines()] == [example.reason]

    with pytest.raises(
        PySparkException, match="name: the row has none, and there is no option name; the row"
    ):
        enqueue(rows, "bad-strict", port=shared_server.port)


def test_a_summary_that_can_not_be_kept_is_told_before_a_write_and_fails_none_after_it(
    spark: SparkSession, shared_server: Server, tmp_path: Path
) -> None:
    place = {"name": "n", "port": shared_server.port}
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "summaries.jsonl")
    writer = numbers(spark, 10).write.format("bunqueue").mode("append").options(queue="untold", **place)
    for write in (
        lambda: writer.option("summaryPath", nowhere).save(),
        lambda: enqueue(numbers(spark, 10), "untold", summaryPath=nowhere, **place),
    ):
        with pytest.raises((PySparkException, OptionError), match=r"summaryPath: .* cannot be written to"):
            write()
    assert jobs(shared_server, "untold") == []

    path = tmp_path / "summaries.jsonl"

    def lost(context: TaskContext, number: int) -> bool:
        """Something is in the place of the file by the time that the tasks run."""
        if path.is_file():
            path.unlink()
            path.mkdir()
        return False

    summary = enqueue(failing(numbers(spark, 10, 1), lost), "untold", summaryPath=str(path), **place)
    assert counts(summary) == (10, 0, 0)
    path.rmdir()
    rows = failing(numbers(spark, 11, 1), lost)
    options = {**place, "queue": "untold", "summaryPath": str(path)}
    rows.write.format("bunqueue").mode("append").options(**options).save()
    assert len(jobs(shared_server, "untold")) == 21


def test_rows_that_python_cannot_read_are_bad_ones(spark: SparkSession, shared_server: Server) -> None:
    number = F.col("data.number")
    rows = numbers(spark, 10, 1).select(
        "data",
        F.when(number == 3, F.expr("cast(X'ff' as string)")).otherwise(F.lit("k")).alias("unique_key"),
        F.when(number == 5, F.timestamp_seconds(F.lit(600_000_000_000))).alias("timestamp"),
    )
    summary = enqueue(rows, "unreadable", name="n", port=shared_server.port, badRows="skip")
    assert counts(summary) == (1, 7, 2)  # the others have one unique key
    told = {json.loads(bad.row)["data"]["number"]: bad.reason for bad in summary.examples}
    assert told.keys() == {3, 5}
    assert told[3].startswith("unique_key: it cannot be read ('utf-8' codec")
    assert told[5].startswith("timestamp: it cannot be read (")


def test_variants_are_refused(spark: SparkSession, shared_server: Server) -> None:
    rows = spark.sql("select named_struct('v', parse_json('[1]')) as data")
    with pytest.raises(PySparkException, match="column data: VARIANT cannot be written; make JSON of it"):
        enqueue(rows, "variant", name="n", port=shared_server.port)
    as_json = rows.select(F.to_json("data.v").alias("data"))
    enqueue(as_json, "variant", name="n", port=shared_server.port, dataFormat="json")
    assert [job.data for job in jobs(shared_server, "variant")] == [[1]]


@pytest.mark.parametrize(
    ("mode", "options", "text"),
    [
        ("overwrite", {}, r"jobs that are there are not replaced by a write: use mode\('append'\)"),
        ("append", {"queue": ""}, "Queue name is required"),
        ("append", {"batchsize": "x"}, "batchSize: 'x' is not allowed"),
        ("append", {"tabel": "jobs"}, "writing has no option 'tabel'"),
    ],
)
def test_writes_that_are_refused_before_they_begin(
    spark: SparkSession, shared_server: Server, mode: str, options: dict[str, str], text: str
) -> None:
    given = {"port": str(shared_server.port), "queue": "refused", "name": "n", **options}
    with pytest.raises(PySparkException, match=text):
        numbers(spark, 10).write.format("bunqueue").mode(mode).options(**given).save()
    assert jobs(shared_server, "refused") == []


def test_columns_that_are_not_in_data_are_refused(spark: SparkSession, shared_server: Server) -> None:
    with pytest.raises(PySparkException, match="there is no column data for the data of the jobs, but id"):
        enqueue(spark.range(3).toDF("id"), "columns", name="n", port=shared_server.port)


def test_jobs_of_one_queue_become_those_of_another(spark: SparkSession, shared_server: Server) -> None:
    """What was read as it is stored is written as it is."""
    with Queue("from", port=shared_server.port) as queue:
        queue.add("n", {"bytes": b"\0", "at": datetime(2026, 1, 1, tzinfo=UTC)}, priority=7)
    read = spark.read.format("bunqueue").load(str(shared_server.data_dir))
    rows = (
        spark.read.format("bunqueue")
        .option("columns", "name,priority,data_raw")
        .option("queues", "from")
        .load(str(shared_server.data_dir))
        .withColumnRenamed("data_raw", "data")
    )
    assert "data_raw" not in read.columns
    enqueue(rows, "to", port=shared_server.port, dataFormat="msgpack")
    (job,) = jobs(shared_server, "to")
    assert (job.name, job.priority) == ("n", 7)
    assert job.data == {"bytes": b"\0", "at": datetime(2026, 1, 1, tzinfo=UTC)}


def test_a_server_that_is_killed_while_tasks_write(spark: SparkSession, make_server: StartServer) -> None:
    server = make_server(port=quiet_port())
    server.start()
    stop = threading.Event()

    def kill() -> None:
        with Queue("killed", port=server.port) as queue:
            while not stop.is_set() and queue.count() < 1000:
                pass
        server.kill_all()
        server.restart()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        summary = enqueue(numbers(spark, 20_000), "killed", name="n", port=server.port, batchSize=200)
    finally:
        stop.set()
        thread.join()
    assert summary.accepted + summary.duplicates == 20_000
    assert found(server, "killed") == list(range(20_000))


class Stream:
    """A stream of the files of a folder into a queue."""

    def __init__(self, spark: SparkSession, folder: Path, queue: str, port: int) -> None:
        self._spark, self._folder, self._queue, self._port = spark, folder, queue, port
        (folder / "in").mkdir()

    def add(self, name: str, *values: int) -> None:
        """A new file; written elsewhere first, as streams take what they see."""
        lines = "".join(f'{{"number": {value}}}\n' for value in values)
        (self._folder / name).write_text(lines)
        (self._folder / name).rename(self._folder / "in" / name)

    def run(self) -> None:
        """Until all files are written."""
        rows = self._spark.readStream.schema("number bigint").json(str(self._folder / "in"))
        query = (
            rows.select(F.struct("number").alias("data"))
            .writeStream.format("bunqueue")
            .option("port", self._port)
            .option("queue", self._queue)
            .option("name", "n")
            .option("summaryPath", str(self._folder / "summaries.jsonl"))
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def forget_last_commit(self) -> None:
        """As if it had died between writing the last batch and noting that."""
        commits = self._folder / "checkpoint" / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    @property
    def summaries(self) -> list[WriteSummary]:
        return read_summaries(self._folder / "summaries.jsonl")


def test_a_stream_adds_the_rows_of_each_batch_once(
    spark: SparkSession, shared_server: Server, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, "stream", shared_server.port)
    stream.add("a.json", 1, 2, 3)
    stream.run()
    stream.add("b.json", 3, 4)  # the 3 of another batch is another job
    stream.run()
    assert found(shared_server, "stream") == [1, 2, 3, 3, 4]

    stream.forget_last_commit()
    stream.run()
    assert found(shared_server, "stream") == [1, 2, 3, 3, 4]
    told = [(each.batch_id, each.accepted, each.duplicates) for each in stream.summaries]
    assert told == [(0, 3, 0), (1, 2, 0), (1, 0, 2)]
    first, second, again = (each.write_id for each in stream.summaries)
    assert first is not None
    assert first.endswith("/0")
    assert second == again == first.removesuffix("0") + "1"


def test_a_stream_that_is_complete_each_time_is_refused(
    spark: SparkSession, shared_server: Server, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate").load().groupBy().count().select(F.struct("count").alias("data"))
    writer = rows.writeStream.format("bunqueue").outputMode("complete").option("port", shared_server.port)
    writer = writer.option("queue", "complete").option("name", "n")
    with pytest.raises(PySparkException, match="jobs that are there are not replaced by a write"):
        writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
