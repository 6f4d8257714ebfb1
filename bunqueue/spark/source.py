"""The data source ``bunqueue``: the classes that Spark calls, and nothing that works without Spark.

Instances are pickled and sent to workers, so they contain plain values and open nothing.
"""

from __future__ import annotations

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
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from .errors import BadOption
from .options import STREAMING, ReadOptions, columns_named, read_options, refuse, stream_options
from .read.conditions import Condition
from .read.folders import Shard, find_shards, kept_snapshots
from .read.pushdown import conditions
from .read.reading import Piece, Selection, pieces_of, read
from .read.remote import is_remote, shown
from .read.tables import Column, Table


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


class _Push:
    """The reader's method `pushFilters`, hidden from Spark's check for it.

    Spark refuses to use a reader that has this method while spark.sql.python.filterPushdown.enabled is false,
    its default.  It compares functions to find out.  Calling this one works when the setting is true.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._reader.pushed = tuple(conditions(filters))
        return filters  # Spark applies them as well


class BatchReader(DataSourceReader):
    """Reads a table in its current state, each shard as of one moment.

    It accepts filters from Spark only on request.  Spark keeps a reader's filters once for each loaded frame.
    If a query filters one frame in two ways, both parts get the rows of the last filter.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.pushed: tuple[Condition, ...] = ()
        self.now = time.time_ns() // 1_000_000
        if options.push_filters:
            self.__dict__["pushFilters"] = _Push(self)

    def partitions(self) -> list[InputPartition]:
        options = self.options
        return [
            Part(piece)
            for shard in find_shards(options.paths, options.hosts)
            if self._is_wanted(shard)
            for piece in pieces_of(shard, options.table, rows=options.rows_per_task, skip=options.skip)
        ]

    def _is_wanted(self, shard: Shard) -> bool:
        known: dict[str, Any] = {"host": shard.host, "shard": shard.number}
        return all(
            known[condition.column] == condition.value
            for condition in self.pushed
            if condition.column in known and condition.operator == "="
        )

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):  # Spark makes one when there are no partitions
            return iter(())
        options = self.options
        wanted = (*options.conditions, *self.pushed)
        return read(partition.piece, Selection(options.table, options.columns, wanted, self.now))
