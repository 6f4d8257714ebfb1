"""Spark settings for the analytics, applied as long as they run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_PARTITIONS = "spark.sql.shuffle.partitions"
_SPARKS_OWN = "200"  # made for clusters: on one machine most would be empty, and each costs time
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
PER_CORE = 2


def partitions_for(master: str, cores: int) -> int | None:
    """The best number of shuffle partitions for this many cores; None: Spark's default."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return None
    given = found[1] or "1"
    return PER_CORE * (cores if given == "*" else int(given))


@contextmanager
def few_partitions(spark: SparkSession) -> Iterator[None]:
    """Set shuffle partitions for this machine, unless the session runs on a cluster, or the user chose a
    number."""
    before = spark.conf.get(_PARTITIONS, _SPARKS_OWN)
    better = partitions_for(spark.conf.get("spark.master", "") or "", os.cpu_count() or 1)
    if before != _SPARKS_OWN or better is None:
        yield
        return
    spark.conf.set(_PARTITIONS, better)
    try:
        yield
    finally:
        spark.conf.set(_PARTITIONS, _SPARKS_OWN)
