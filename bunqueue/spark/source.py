"""The data source ``bunqueue``: the classes that Spark calls, and nothing that works without Spark.

Instances are pickled and sent to workers, so they contain plain values and open nothing.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from bunqueue.errors import OptionError

from .errors import UnreadableShard, brief
from .options import (
    STREAMING,
    ReadOptions,
    StreamOptions,
    columns_named,
    read_options,
    refuse,
    stream_options,
)
from .read.arrow import array_of, batch_of
from .read.folders import find_shards, kept_snapshots
from .read.reading import Piece, check_readable, pieces_of, read
from .read.remote import is_remote, shown
from .read.tables import SKIPPED, Column, Table

logger = logging.getLogger("bunqueue.spark")
if "PYSPARK_SPARK_SESSION_UUID" in os.environ:  # Spark collects what this worker logs
    logger.setLevel(logging.INFO)


@brief
class BunqueueDataSource(DataSource):
    """``spark.read.format("bunqueue").option("table", "jobs").load(folder)``; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "bunqueue"

    def schema(self) -> str:
        options = read_options(self.options)
        find_shards(options.paths, options.hosts)  # raise now instead of at the first action
        return ", ".join(f"`{column.name}` {column.type}" for column in options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        refuse(self.options, STREAMING, "only streams have this option")
        options = read_options(self.options)
        return BatchReader(replace(options, columns=_columns_of(options.table, schema)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .read.stream import EventStream

        return EventStream(partial(self._streaming, schema))

    def _streaming(self, schema: StructType) -> tuple[ReadOptions, StreamOptions]:
        options = read_options(self.options)
        if options.table.name != "events":
            raise OptionError(
                f"table: {options.table.name} cannot be streamed; give table=events, or use spark.read"
            )
        for path in options.paths:
            if is_remote(path) or kept_snapshots(Path(path)):
                raise OptionError(
                    f"path: {shown(path)} cannot be streamed; give the folder of a server on this machine"
                )
        chosen = replace(options, columns=_columns_of(options.table, schema))
        return chosen, stream_options(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .sink.writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from .sink.writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite)


def _columns_of(table: Table, schema: StructType) -> tuple[Column, ...]:
    """The columns of a schema, which may be the user's own."""
    columns = columns_named(table, tuple(schema.fieldNames()))
    for column, field in zip(columns, schema.fields, strict=True):
        given = field.dataType.simpleString()
        if given != column.type:
            raise OptionError(
                f"schema: {table.name}.{column.name} is {column.type}, not {given}; cast it after reading"
            )
    return columns


@brief
class BatchReader(DataSourceReader):
    """Reads a table in its current state, each shard as of one moment.

    It takes no filters from Spark (`pushFilters`).  Spark 4.3 keeps them with the loaded frame: a later query
    that filters the frame otherwise, or not at all, would silently get the rows of that filter.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.now = time.time_ns() // 1_000_000

    def partitions(self) -> list[InputPartition]:
        """Decide once what is read and what is left out; a task that then cannot read its part fails.

        The value of a partition is a `Piece`; of the table ``skipped``, its rows."""
        options = self.options
        found: list[InputPartition] = []
        skipped = []
        for shard in find_shards(options.paths, options.hosts):
            try:
                if options.skip or options.table is SKIPPED:
                    check_readable(shard)
                if options.table is not SKIPPED:
                    found += map(InputPartition, pieces_of(shard, options.table, rows=options.rows_per_task))
            except UnreadableShard as error:
                if not options.skip and options.table is not SKIPPED:
                    raise
                logger.warning("skipped: %s", error)
                path = shown(shard.path) if is_remote(shard.path) else shard.path
                skipped.append((shard.host, shard.number, path, str(error), self.now))
        rows = " and ".join(map(str, options.conditions)) or "all rows"
        logger.info("%s: %s, in %d tasks", options.table.name, rows, len(found))
        return [InputPartition(skipped)] if options.table is SKIPPED else found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = partition.value
        if isinstance(rows, Piece):
            return read(rows, self.options.selection(self.now))
        if not rows:  # Spark makes a partition when there is none
            return iter(())
        values = zip(SKIPPED.columns, zip(*rows, strict=True), strict=True)
        arrays = {column.name: array_of(column, each) for column, each in values}
        return iter([batch_of(self.options.columns, arrays, len(rows))])
