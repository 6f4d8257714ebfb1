"""Sessions of `spark_session`: a second one in a process, and those that somebody else has made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from support.folders import opened
from support.server import ROOT
from support.spark import Full, without_java

from bunqueue.spark import spark_session

# Without a Java of the machine, so with the one that comes along.  The last is a session of Spark's own:
# it imports what is called pyspark_..., and asks for DefaultSource.
SESSIONS = """
import sys
from pyspark.sql import SparkSession
from bunqueue.spark import spark_session

for name in ("first", "second"):
    spark = spark_session(name, master="local[1]", spark__log__level="ERROR")
    print(spark.sparkContext.appName, spark.range(3).count())
    spark.stop()
spark = SparkSession.builder.master("local[1]").getOrCreate()
print(spark.read.format("bunqueue").load(sys.argv[1]).count())
"""


def test_one_after_the_other(full: Full, tmp_path: Path) -> None:
    """Two of ours, and one in which nobody has registered the source."""
    done = subprocess.run(
        [sys.executable, "-c", SESSIONS, full.folder],
        env=without_java(tmp_path / "bin") | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with opened(full.folder) as shards:
        jobs = sum(shard.execute("select count(*) from jobs").fetchone()[0] for shard in shards)
    assert done.stdout.splitlines() == ["first 3", "second 3", str(jobs)]


def test_a_session_that_runs_keeps_its_settings(spark: SparkSession) -> None:
    zone = "spark.sql.session.timeZone"
    kept = {name: spark.conf.get(name) for name in (zone, "spark.app.name")}
    mine = {zone: "America/New_York", "spark.app.name": "mine"}
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
