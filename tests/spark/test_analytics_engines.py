"""DuckDB and Spark run the same SQL of the figures, and find the same."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession
from support.made_up_history import BEGIN, HOUR_MS, random_history
from support.spark import Full

from bunqueue import analytics
from bunqueue.analytics import numbers, pipeline
from bunqueue.analytics.engines.duck import Duck
from bunqueue.analytics.engines.spark import Spark
from bunqueue.analytics.exporting import export
from bunqueue.analytics.pipeline import Result, Wanted
from bunqueue.analytics.times import time_of


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_they_find_the_same(spark: SparkSession, seed: int) -> None:
    """Of a random history, from the middle of a day on; as a lake has it, or a folder."""
    asked = Wanted(time_of(BEGIN + 9 * HOUR_MS + 1234), None, "hour", ZoneInfo("Asia/Kolkata"))
    duck, on_spark = Duck(), Spark(spark)
    try:
        found = []
        for engine in (duck, on_spark):
            source = random_history(seed).give_to(engine)._replace(keeps_gone=seed == 1)
            found.append(pipeline.aggregate(engine, source, asked))
    finally:
        duck.close()
        on_spark.close()
    _check_same(*found)
    assert all(table.num_rows for name, table in found[0].tables.items() if name != "anomalies")


def _check_same(one: Result, other: Result) -> None:
    assert one.about._replace(made_at=other.about.made_at) == other.about
    for table in numbers.TABLES:
        mine, theirs = (each.tables[table.name].to_pylist() for each in (one, other))
        keys = [key.name for key in table.keys]
        for row in (*mine, *theirs):
            row["key"] = tuple(str(row[key]) for key in keys)
        for rows in (mine, theirs):
            rows.sort(key=lambda row: row["key"])
        assert len(mine) == len(theirs), table.name
        for row, expected in zip(mine, theirs, strict=True):
            for name, value in row.items():
                same = pytest.approx(expected[name]) if isinstance(value, float) else expected[name]
                assert value == same, (table.name, row["key"], name)


@pytest.mark.nightly
def test_folders_and_lakes(spark: SparkSession, full: Full, tmp_path: Path) -> None:
    """The same of a server's folder; and of the lake into which it is exported."""
    places = [analytics.From([str(full.folder)], ["web"])]
    export([str(full.folder)], tmp_path / "lake", hosts=["web"])
    places.append(analytics.From(lake=str(tmp_path / "lake")))
    until = datetime.now(UTC)
    for place in places:
        asked = Wanted(None, until, "minute")
        found = [
            analytics.aggregate(place, tmp_path / "out", asked, analytics.Made(session, csv=True))
            for session in (None, spark)
        ]
        _check_same(*found)
        assert found[0].tables["totals"].to_pylist()[0]["completed"]
    assert (tmp_path / "out" / "totals.csv").exists()
