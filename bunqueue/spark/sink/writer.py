"""Spark's side of writing: what the driver and the tasks of a write are asked to do.

Nothing is rolled back: a job that was added may be running. So a failed write is repeated, not undone, and
ids make sure that it adds what is missing.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from bunqueue.errors import OptionError

from .rows import check_columns
from .settings import SinkSettings, sink_settings
from .summary import TaskSummary, WriteSummary, add_up, append
from .task import write_rows

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_log = logging.getLogger("bunqueue.spark")


@dataclass
class Done(WriterCommitMessage):
    """What a task tells the driver."""

    summary: TaskSummary


class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("bunqueue").mode("append")``."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._settings = _checked(options, schema, overwrite)
        self._schema = schema
        self._write_id = self._settings.write_id or secrets.token_hex(8)

    def write(self, iterator: Iterator[RecordBatch]) -> Done:
        """In a task."""
        return _write(iterator, self._schema, self._settings, self._write_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks are done."""
        _report(add_up(_summaries(messages), self._write_id, "done"), self._settings)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when a task has failed for good. The jobs that were added stay."""
        _report(add_up(_summaries(messages), self._write_id, "failed"), self._settings)


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("bunqueue")``: each micro-batch is a write of its own."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._settings = _checked(options, schema, overwrite)
        self._schema = schema

    def write(self, iterator: Iterator[RecordBatch]) -> Done:
        """In a task. A batch that is repeated after a restart has the same number in the same query."""
        context = _context()
        query = self._settings.write_id or context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise OptionError(
                "this version of Spark does not tell which batch of a stream it writes; use foreachBatch, "
                "and there df.write.format('bunqueue') with option writeId: the query and the batch's number"
            )
        return _write(iterator, self._schema, self._settings, f"{query}/{batch}")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when all tasks of a batch are done."""
        _report(add_up(_summaries(messages), self._settings.write_id, "done", batchId), self._settings)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when a task has failed for good, or the query was stopped. The batch is written
        again when the query is started again."""
        _report(add_up(_summaries(messages), self._settings.write_id, "failed", batchId), self._settings)


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkSettings:
    if overwrite:
        raise OptionError(
            "jobs that are there are not replaced by a write: use mode('append'), in streams "
            "outputMode('append') or 'update', and empty the queue before it if need be, with "
            "Queue(...).drain() or: bunqueue queue drain NAME"
        )
    settings = sink_settings(options)
    check_columns(schema.fieldNames(), settings)
    return settings


def _write(batches: Iterable[RecordBatch], schema: StructType, settings: SinkSettings, write_id: str) -> Done:
    context = _context()
    # Only where there are maps, as it takes several times as long.
    maps: Literal["lossy"] | None = "lossy" if _has_map(schema) else None
    rows = _rows(batches, maps)
    columns = schema.fieldNames()
    summary = write_rows(rows, columns, settings, write_id, context.partitionId(), context.attemptNumber())
    return Done(summary)


def _rows(batches: Iterable[RecordBatch], maps: Literal["lossy"] | None) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist(maps_as_pydicts=maps)


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _has_map(kind.elementType))


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write() is called in tasks"
    return context


def _summaries(messages: Iterable[WriterCommitMessage | None]) -> Iterator[TaskSummary | None]:
    for message in messages:
        yield message.summary if isinstance(message, Done) else None


def _report(summary: WriteSummary, settings: SinkSettings) -> None:
    """Say what became of the rows: in the log, and where the user wants it."""
    level = logging.WARNING if summary.rejected or summary.state == "failed" else logging.INFO
    _log.log(level, "bunqueue: %s", summary)
    if settings.summary_path is not None:
        append(settings.summary_path, summary)
