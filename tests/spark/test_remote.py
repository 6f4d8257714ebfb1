"""Folders at addresses, as object stores have them: here on a disk, by the same way as all others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.server import Server
from support.spark import Full, read

from bunqueue import Queue
from bunqueue.analytics import inputs
from bunqueue.spark import UnreadableShard
from bunqueue.spark.read.remote import fetched


def test_a_copy_at_an_address(spark: SparkSession, full: Full) -> None:
    address = full.folder.as_uri()
    assert address.startswith("file://")
    near, far = read(spark, full.folder), read(spark, f"{address}/")
    assert sorted(map(str, far.collect())) == sorted(map(str, near.collect()))
    assert far.where("state = 'completed'").count() == near.where("state = 'completed'").count()


def test_options_of_the_store_stay_behind_the_path(spark: SparkSession, full: Full, tmp_path: Path) -> None:
    """As MinIO and R2 need them; files have one, too."""
    near = read(spark, full.folder)
    far = read(spark, f"{full.folder.as_uri()}/?use_mmap=true")
    assert sorted(map(str, far.collect())) == sorted(map(str, near.collect()))


def test_keys_in_an_address_are_not_shown(spark: SparkSession, full: Full, tmp_path: Path) -> None:
    for address in ("nosuch://KEY:SECRET@bucket/backup?region=MINE", "s3://KEY:SECRET@bucket/b?colour=MINE"):
        with pytest.raises(PySparkException, match=r"(nosuch|s3)://bucket/b\w* cannot be reached") as refused:
            read(spark, address)
        assert "SECRET" not in str(refused.value)
    with pytest.raises(UnreadableShard) as missing, fetched(f"{tmp_path.as_uri()}/shard-00.db?use_mmap=true"):
        pass
    assert str(missing.value).startswith(f"{tmp_path.as_uri()}/shard-00.db is missing; put it there")


def test_a_copy_with_a_log(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    with Queue("far", port=server.port) as queue:
        queue.add_bulk([("n", number) for number in range(10)])
    server.kill_all()
    shutil.copytree(server.data_dir, tmp_path / "copy")
    assert read(spark, (tmp_path / "copy").as_uri()).count() == 10


def test_what_is_wrong_at_an_address(spark: SparkSession, full: Full, tmp_path: Path) -> None:
    empty = tmp_path.as_uri()
    with pytest.raises(PySparkException, match=f"{empty} is not one: there is no manifest.json in it"):
        read(spark, empty)
    with pytest.raises(PySparkException, match="nosuch://somewhere cannot be reached"):
        read(spark, "nosuch://somewhere")
    shutil.copytree(full.folder, tmp_path / "data")
    (tmp_path / "data" / "shard-01.db").unlink()
    address = (tmp_path / "data").as_uri()
    with pytest.raises(PySparkException, match=r"shard-01\.db is missing; put it there"):
        read(spark, address).collect()
    rows = read(spark, address, unreadable="skip").collect()
    assert {row["shard"] for row in rows} == {0}
    stream = spark.readStream.format("bunqueue").option("table", "events").load(address)
    with pytest.raises(Exception, match="cannot be streamed; give the folder of a server"):
        stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


def test_where_logs_begin(spark: SparkSession, full: Full) -> None:
    """Tasks fetch the shards and look; of files here it is asked without a task."""
    near, far = (
        sorted(inputs.from_folders(spark, [path], ["web"]).begins())
        for path in (str(full.folder), full.folder.as_uri())
    )
    assert far == near
    assert [(begin.host, begin.shard, begin.seq) for begin in near] == [("web", 0, 1), ("web", 1, 1)]
