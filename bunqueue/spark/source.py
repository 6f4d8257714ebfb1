"""The data source ``bunqueue``: the classes that Spark calls, and nothing that works without Spark.

Instances are pickled and sent to workers, so they contain plain values and open nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

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

from .errors import BadOption, UnreadableShard, brief
from .options import STREAMING, ReadOptions, columns_named, read_options, refuse, stream_options
from .read.arrow import array_of, batch_of
from .read.folders import find_shards, kept_snapshots
from .read.reading import Piece, Selection, check_readable, pieces_of, read
from .read.remote import is_remote, shown
from .read.tables import SKIPPED, Column, Table

logger = logging.getLogger("bunqueue.spark")


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

        options = read_options(self.options)
        if options.table.name != "events":
            raise BadOption(
                f"table: {options.table.name} cannot be streamed; give table=events, or use spark.read"
            )
        for path in options.paths:
            if is_remote(path) or kept_snapshots(Path(path)):
                raise BadOption(
                    f"path: {shown(path)} cannot be streamed; give the folder of a server on this machine"
                )
        chosen = replace(options, columns=_columns_of(options.table, schema))
        return EventStream(chosen, stream_options(self.options))

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
            raise BadOption(
                f"schema: {table.name}.{column.name} is {column.type}, not {given}; cast it after reading"
            )
    return columns


class Part(InputPartition):
    """The input of one task."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece


class SkippedPart(InputPartition):
    """The table of shards that are left out: known before any task."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self.rows = rows


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
        """Decide once what is read and what is left out; a task that then cannot read its part fails."""
        options = self.options
        found: list[InputPartition] = []
        skipped = []
        for shard in find_shards(options.paths, options.hosts):
            try:
                if options.skip or options.table is SKIPPED:
                    check_readable(shard)
                if options.table is not SKIPPED:
                    found += map(Part, pieces_of(shard, options.table, rows=options.rows_per_task))
            except UnreadableShard as error:
                if not options.skip and options.table is not SKIPPED:
                    raise
                logger.warning("skipped: %s", error)
                path = shown(shard.path) if is_remote(shard.path) else shard.path
                skipped.append((shard.host, shard.number, path, str(error), self.now))
        return [SkippedPart(skipped)] if options.table is SKIPPED else found

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SkippedPart):
            values = zip(SKIPPED.columns, zip(*partition.rows, strict=True), strict=False)
            arrays = {column.name: array_of(column, each) for column, each in values}
            return iter([batch_of(self.options.columns, arrays, len(partition.rows))] if arrays else [])
        if not isinstance(partition, Part):  # Spark makes one when there are no partitions
            return iter(())
        options = self.options
        selection = Selection(options.table, options.columns, options.conditions, self.now, options.mode)
        return read(partition.piece, selection)
