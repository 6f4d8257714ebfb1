"""Folders at addresses, as object stores have them: here on a disk, by the same way as all others."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from plain import rows_of
from pyspark.sql import SparkSession
from support.server import Server
from support.spark import Full, read

from bunqueue import Queue
from bunqueue.analytics import inputs
from bunqueue.analytics.engines.duck import Duck
from bunqueue.spark import NotReadable, UnreadableShard
from bunqueue.spark.read.remote import fetched


def test_a_copy_at_an_address(spark: SparkSession, full: Full) -> None:
    address = full.folder.as_uri()
    assert address.startswith("file://")
    near, far = read(spark, full.folder), read(spark, f"{address}/")
    assert sorted(map(str, far.collect())) == sorted(map(str, near.collect()))


def test_options_of_the_store_stay_behind_the_path(full: Full) -> None:
    """As MinIO and R2 need them; files have one, too."""
    assert rows_of(f"{full.folder.as_uri()}/?use_mmap=true") == rows_of(full.folder)


def test_keys_in_an_address_are_not_shown(tmp_path: Path) -> None:
    for address in ("nosuch://KEY:SECRET@bucket/backup?region=MINE", "s3://KEY:SECRET@bucket/b?colour=MINE"):
        with pytest.raises(NotReadable, match=r"(nosuch|s3)://bucket/b\w* cannot be reached") as refused:
            rows_of(address)
        assert "SECRET" not in str(refused.value)
    with pytest.raises(UnreadableShard) as missing, fetched(f"{tmp_path.as_uri()}/shard-00.db?use_mmap=true"):
        pass
    assert str(missing.value).startswith(f"{tmp_path.as_uri()}/shard-00.db is missing; put it there")


def test_a_copy_with_a_log(server: Server, tmp_path: Path) -> None:
    with Queue("far", port=server.port) as queue:
        queue.add_bulk([("n", number) for number in range(10)])
    server.kill_all()
    shutil.copytree(server.data_dir, tmp_path / "copy")
    assert len(rows_of((tmp_path / "copy").as_uri())) == 10


def test_snapshots_of_a_store_at_an_address(full: Full, tmp_path: Path) -> None:
    """The newest of each shard."""
    for shard, when in ((0, "20260101"), (0, "20260102"), (1, "20260102")):
        packed = gzip.compress((full.folder / f"shard-{shard:02}.db").read_bytes(), 1)
        (tmp_path / f"shard-{shard:02}.{when}.db.gz").write_bytes(packed)
    (tmp_path / "shard-00.20260101.db.gz").write_bytes(b"an old one, which is not read")
    address = tmp_path.as_uri()
    assert rows_of(address) == rows_of(tmp_path) == rows_of(full.folder)
    (tmp_path / "shard-00.20260102.db.gz").write_bytes(b"x")
    with pytest.raises(UnreadableShard, match=f"{address}/shard-00.20260102.db.gz is damaged, or not whole"):
        rows_of(address)
    for each in tmp_path.glob("shard-00.*"):
        each.unlink()
    with pytest.raises(UnreadableShard, match=f"{address} has no snapshot of shard 00, or not any more"):
        rows_of(address)
    assert {row["shard"] for row in rows_of(address, unreadable="skip")} == {1}


def test_what_is_wrong_at_an_address(spark: SparkSession, full: Full, tmp_path: Path) -> None:
    empty = tmp_path.as_uri()
    with pytest.raises(NotReadable, match=f"{empty} is not one: there is no manifest.json in it"):
        rows_of(empty)
    shutil.copytree(full.folder, tmp_path / "data")
    (tmp_path / "data" / "shard-01.db").unlink()
    address = (tmp_path / "data").as_uri()
    with pytest.raises(UnreadableShard, match=r"shard-01\.db is missing; put it there"):
        rows_of(address)
    assert {row["shard"] for row in rows_of(address, unreadable="skip")} == {0}
    stream = spark.readStream.format("bunqueue").option("table", "events").load(address)
    with pytest.raises(Exception, match="cannot be streamed; give the folder of a server"):
        stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


def test_where_logs_begin(full: Full) -> None:
    engine = Duck()
    near, far = (
        sorted(inputs.from_folders(engine, [path], ["web"])[0].begins())
        for path in (str(full.folder), full.folder.as_uri())
    )
    engine.close()
    assert far == near
    assert [(begin.host, begin.shard, begin.seq) for begin in near] == [("web", 0, 1), ("web", 1, 1)]
