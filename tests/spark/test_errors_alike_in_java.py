"""Java reads the pattern of `bunqueue.model.errors_alike` as Python does."""

from __future__ import annotations

from protocol.test_errors_alike import PATTERNS
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bunqueue.model.errors_alike import CHANGING


def test_spark_and_the_server_see_the_same_kinds(spark: SparkSession) -> None:
    lines = [((error or "").partition("\n")[0], pattern) for error, pattern in PATTERNS]
    rows = spark.createDataFrame(lines, "line string, pattern string")
    found = rows.select("pattern", F.regexp_replace("line", CHANGING, "#").alias("found")).collect()
    assert [row.found for row in found] == [row.pattern for row in found]
