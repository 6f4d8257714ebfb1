"""Spark as an `Engine`: for clusters, and for lakes that are too large for one machine."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.utils import is_remote

from bunqueue.analytics.engine import Folders
from bunqueue.analytics.numbers import PERCENTILES
from bunqueue.errors import OptionError
from bunqueue.model.errors_alike import pattern_of
from bunqueue.spark import register
from bunqueue.spark.read.conditions import Condition

_PARTITIONS = "spark.sql.shuffle.partitions"
_SPARKS_OWN = "200"  # made for clusters: on one machine most would be empty, and each costs time
PER_CORE = 2


class Spark:
    """The engine.  It works in a session of its own beside the given one, so that names of its tables and its
    settings do not meet those of the user."""

    def __init__(self, spark: SparkSession) -> None:
        if is_remote():  # there, views do not keep the checkpoints that they are made of
            raise OptionError("spark: Spark Connect cannot compute reports; give a session without it")
        self._spark = spark.newSession()
        register(self._spark)
        self._spark.udf.register("pattern_of", pattern_of)
        self._kept: list[DataFrame] = []
        master = spark.conf.get("spark.master") or ""
        self._is_local = master == "local" or master.startswith("local[")
        partitions = spark.conf.get(_PARTITIONS) or _SPARKS_OWN
        if self._is_local and partitions == _SPARKS_OWN:
            partitions = str(PER_CORE * (os.cpu_count() or 1))
        self._spark.conf.set(_PARTITIONS, partitions)

    def percentiles(self, value: str) -> str:
        return f"percentile({value}, array({', '.join(map(str, PERCENTILES))}))"

    def view(self, name: str, sql: str) -> None:
        self._spark.sql(sql).createOrReplaceTempView(name)

    def keep(self, name: str, sql: str) -> None:
        frame = self._spark.sql(sql)
        # Plans of what is built on it would grow with each table, and take most of the time.  So they end
        # here, unless what is kept may be lost with an executor: then it has to be computed again.
        if self._is_local:
            frame = frame.localCheckpoint(eager=False)
        else:
            self._kept.append(frame.persist())
        frame.createOrReplaceTempView(name)

    def keep_with_patterns(self, name: str, sql: str) -> None:
        self.keep(name, f"select *, pattern_of(error) as pattern from ({sql})")

    def give(self, name: str, table: pa.Table) -> None:
        self._spark.createDataFrame(table).createOrReplaceTempView(name)

    def folders(
        self,
        name: str,
        table: str,
        columns: Sequence[str],
        folders: Folders,
        conditions: Sequence[Condition] = (),
        where: str = "true",
    ) -> None:
        reader = self._spark.read.format("bunqueue").option("table", table)
        reader = reader.option("columns", ",".join(columns)).option("hosts", json.dumps(list(folders.hosts)))
        reader = reader.option("unreadable", "skip" if folders.skips else "fail")
        filters = [(each.column, each.operator, each.value) for each in conditions]
        reader = reader.option("filters", msgspec.json.encode(filters).decode())
        reader.load(list(folders.paths)).where(where).createOrReplaceTempView(name)

    def parquet(self, name: str, files: Sequence[Path], schema: pa.Schema) -> None:
        known = from_arrow_schema(schema)
        if not files:
            self._spark.createDataFrame([], known).createOrReplaceTempView(name)
            return
        # As addresses: a bare path would be one of the cluster's file system.
        paths = [f"file://{file.absolute()}" for file in files]
        self._spark.read.schema(known).parquet(*paths).createOrReplaceTempView(name)

    def table(self, sql: str) -> pa.Table:
        return self._spark.sql(sql).toArrow()

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in self._spark.sql(sql).collect()]

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()
