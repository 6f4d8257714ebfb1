"""Sessions of `spark_session`: a second one in a process, and those that somebody else has made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from support.spark import without_java

from bunqueue.spark import spark_session

# Without a Java of the machine, so with the one that comes along.
TWO_SESSIONS = """
from bunqueue.spark import spark_session

for name in ("first", "second"):
    spark = spark_session(name, master="local[1]", spark__log__level="ERROR")
    print(spark.sparkContext.appName, spark.range(3).count())
    spark.stop()
"""


def test_one_after_the_other(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_SESSIONS],
        env=without_java(tmp_path / "bin"),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["first 3", "second 3"]


def test_a_session_that_runs_keeps_its_settings(spark: SparkSession) -> None:
    zone, pushdown = "spark.sql.session.timeZone", "spark.sql.python.filterPushdown.enabled"
    kept = {name: spark.conf.get(name) for name in (zone, pushdown, "spark.app.name")}
    mine = {zone: "America/New_York", pushdown: "false", "spark.app.name": "mine"}
    try:
        for name, value in mine.items():
            spark.conf.set(name, value)
        same = spark_session()
        assert same.sparkContext is spark.sparkContext
        assert {name: same.conf.get(name) for name in mine} == mine
        spark_session(spark__sql__session__timeZone="Asia/Tokyo")
        assert spark.conf.get(zone) == "Asia/Tokyo", "as it was asked for"
    finally:
        for name, was in kept.items():
            spark.conf.set(name, was or "")
