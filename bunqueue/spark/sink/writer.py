"""Spark's side of writing: the methods that Spark calls on the driver and in tasks.

Nothing is rolled back, because an added job may already be running. So a failed write is repeated, not
undone, and ids make sure that it adds only the missing jobs.
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
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from bunqueue.errors import OptionError

from ..errors import brief
from .rows import check_columns
from .settings import SinkSettings, sink_settings
from .summary import BadRow, TaskSummary, add_up, as_text, check_path, keep
from .task import write_rows

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_log = logging.getLogger("bunqueue.spark")

# Text that is not UTF-8, or a moment beyond the year 9999: Spark allows these, Python does not.
_UNREADABLE = (ValueError, OverflowError)


@dataclass
class Done(WriterCommitMessage):
    """What a task reports to the driver."""

    write_id: str
    summary: TaskSummary


class _Writer:
    """What a batch and a stream have in common."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._settings = _checked(options, schema, overwrite)
        self._schema = schema
        self._write_id = self._settings.write_id or secrets.token_hex(8)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Called on the driver, when all tasks are done, in a stream those of a batch."""
        _report(messages, self._settings, "done", batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Called on the driver, when a task has failed for good, or the query was stopped.  Jobs that were
        added stay.  A stream writes the batch again when its query is restarted."""
        _report(messages, self._settings, "failed", batchId)


@brief
class BatchWriter(_Writer, DataSourceArrowWriter):
    """``df.write.format("bunqueue").mode("append")``."""

    def write(self, iterator: Iterator[RecordBatch]) -> Done:
        """Called in a task."""
        return _write(iterator, self._schema, self._settings, self._write_id)


@brief
class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """``df.writeStream.format("bunqueue")``: each micro-batch is a write of its own."""

    def write(self, iterator: Iterator[RecordBatch]) -> Done:
        """Called in a task. A batch that is repeated after a restart has the same number in the same
        query."""
        context = _context()
        query = self._settings.write_id or context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise OptionError(
                "this version of Spark does not tell which batch of a stream it writes; use foreachBatch, "
                "and there df.write.format('bunqueue') with option writeId: the query and the batch's number"
            )
        return _write(iterator, self._schema, self._settings, f"{query}/{batch}")


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkSettings:
    if overwrite:
        raise OptionError(
            "jobs that are there are not replaced by a write: use mode('append'), in streams "
            "outputMode('append') or 'update', and empty the queue before it if need be, with "
            "Queue(...).drain() or: bunqueue queue drain NAME"
        )
    settings = sink_settings(options)
    check_columns(schema.fieldNames(), settings)
    for field in schema.fields:
        if any(isinstance(kind, VariantType) for kind in _types(field.dataType)):
            raise OptionError(
                f"column {field.name}: VARIANT cannot be written; make JSON of it with "
                "F.to_json, and give dataFormat=json"
            )
    if settings.summary_path is not None:
        check_path(settings.summary_path)
    return settings


def _write(batches: Iterable[RecordBatch], schema: StructType, settings: SinkSettings, write_id: str) -> Done:
    context = _context()
    rows = _rows(batches, with_maps=any(isinstance(kind, MapType) for kind in _types(schema)))
    columns = schema.fieldNames()
    summary = write_rows(rows, columns, settings, write_id, context.partitionId(), context.attemptNumber())
    return Done(write_id, summary)


def _rows(batches: Iterable[RecordBatch], *, with_maps: bool) -> Iterator[dict[str, Any] | BadRow]:
    """The rows as Python values. ``with_maps`` takes several times as long."""
    maps: Literal["lossy"] | None = "lossy" if with_maps else None
    for batch in batches:
        try:
            rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts=maps)
        except _UNREADABLE:
            yield from _one_by_one(batch, maps)
        else:
            yield from rows


def _one_by_one(batch: RecordBatch, maps: Literal["lossy"] | None) -> Iterator[dict[str, Any] | BadRow]:
    for place in range(batch.num_rows):
        one = batch.slice(place, 1)
        row: dict[str, Any] = {}
        problem = ""
        for name, column in zip(one.schema.names, one.columns, strict=True):
            try:
                (row[name],) = column.to_pylist(maps_as_pydicts=maps)
            except _UNREADABLE as error:
                problem = problem or f"{name}: it cannot be read ({error})"
        yield BadRow(as_text(row), problem) if problem else row


def _types(kind: DataType) -> Iterator[DataType]:
    """A type and all types within it."""
    yield kind
    inner: list[DataType] = []
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    for each in inner:
        yield from _types(each)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write() is called in tasks"
    return context


def _report(
    messages: Sequence[WriterCommitMessage | None],
    settings: SinkSettings,
    state: Literal["done", "failed"],
    batch_id: int | None = None,
) -> None:
    """Report the outcome of the rows: in the log, and where the user wants it."""
    done = [message for message in messages if isinstance(message, Done)]
    write_id = done[0].write_id if done else settings.write_id
    summary = add_up([message.summary for message in done], write_id, state, batch_id)
    level = logging.WARNING if summary.rejected or state == "failed" else logging.INFO
    _log.log(level, "bunqueue: %s", summary)
    if settings.summary_path is not None:
        keep(settings.summary_path, summary)
