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


def test_a_copy_at_an_address(spark: SparkSession, full: Full) -> None:
    address = full.folder.as_uri()
    assert address.startswith("file://")
    near, far = read(spark, full.folder), read(spark, f"{address}/")
    assert sorted(map(str, far.collect())) == sorted(map(str, near.collect()))
    assert far.where("state = 'completed'").count() == near.where("state = 'completed'").count()


def test_a_copy_with_a_log(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    with Queue("far", port=server.port) as queue:
        queue.add_bulk([("n", number) for number in range(10)])
    server.kill_all()
    shutil.copytree(server.data_dir, tmp_path / "copy")
    assert read(spark, (tmp_path / "copy").as_uri()).count() == 10


def test_what_is_wrong_at_an_address(spark: SparkSession, full: Full, tmp_path: Path) -> None:
    empty = tmp_path.as_uri()
    with pytest.raises(PySparkException, match=f"{empty} is none: there is no manifest.json in it"):
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
