"""DuckDB as an `Engine`: the figures of the data folders and lakes of one machine, in seconds.

Tables that do not fit into memory are moved to a temporary folder.  Nothing is fetched from a network.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
from pyarrow import dataset

from bunqueue import arrow
from bunqueue.analytics.engine import Folders
from bunqueue.analytics.numbers import PERCENTILES
from bunqueue.errors import OptionError
from bunqueue.model.errors_alike import pattern_of
from bunqueue.spark.read.conditions import Condition
from bunqueue.spark.read.reading import Selection
from bunqueue.spark.read.tables import TABLES

# Functions of Spark that DuckDB has under other names.
_MACROS = (
    "get_json_object(json, path) as json_extract_string(json, path)",
    "unix_millis(moment) as epoch_ms(moment)",
    "size(list) as len(list)",
    "explode(list) as unnest(list)",
    "try_element_at(list, number) as list[number]",
    "from_json(json, kind) as json_transform(json, '[\"VARCHAR\"]')",
)


class Duck:
    """The engine.  ``memory``: such as 2g; four fifths of the machine's unless given.  ``scratch``: where the
    temporary folder is."""

    def __init__(self, memory: str | None = None, scratch: str | None = None) -> None:
        self._scratch = TemporaryDirectory(prefix="bunqueue-analytics-", dir=scratch)
        settings: dict[str, Any] = {
            "temp_directory": self._scratch.name,
            "autoinstall_known_extensions": False,
        }
        if memory is not None:
            settings["memory_limit"] = f"{memory.rstrip('bB')}b"
        try:
            self._db = duckdb.connect(":memory:", config=settings)
        except duckdb.Error:
            self._scratch.cleanup()
            raise OptionError(f"memory: {memory!r} is no size; give one such as 4g") from None
        for macro in _MACROS:
            self._db.execute(f"create macro {macro}")

    def percentiles(self, value: str) -> str:
        return f"quantile_cont({value}, [{', '.join(map(str, PERCENTILES))}])"

    def view(self, name: str, sql: str) -> None:
        self._db.execute(f"create or replace temp view {name} as {sql}")

    def keep(self, name: str, sql: str) -> None:
        self._db.execute(f"create or replace temp table {name} as {sql}")

    def keep_with_patterns(self, name: str, sql: str) -> None:
        self.keep("plain", sql)  # functions in Python would need numpy
        errors = self.table("select distinct error from plain")["error"]
        patterns = pa.array(map(pattern_of, errors.to_pylist()), pa.string())
        self.give("patterns", pa.table({"error": errors, "pattern": patterns}))
        same = "plain.error is not distinct from patterns.error"
        self.keep(name, f"select plain.*, pattern from plain join patterns on {same}")
        self._db.execute("drop table plain")

    def give(self, name: str, table: pa.Table) -> None:
        self._given(name, table, "true")

    def _given(self, name: str, rows: pa.Table | pa.RecordBatchReader, where: str) -> None:
        self._db.register("given", rows)
        try:
            self.keep(name, f"select * from given where {where}")
        finally:
            self._db.unregister("given")

    def folders(
        self,
        name: str,
        table: str,
        columns: Sequence[str],
        folders: Folders,
        conditions: Sequence[Condition] = (),
        where: str = "true",
    ) -> None:
        known = TABLES[table]
        chosen = tuple(column for each in columns if (column := known.column(each)) is not None)
        now = time.time_ns() // 1_000_000
        failed: list[Exception] = []
        reader = arrow.stream(folders.shards, Selection(known, chosen, tuple(conditions), now))
        noted = pa.RecordBatchReader.from_batches(reader.schema, _noting(reader, failed))
        try:
            self._given(name, noted, where)
        except duckdb.Error:
            if failed:  # DuckDB would raise an error of its own, with a traceback as its text
                raise failed[0] from None
            raise

    def parquet(self, name: str, files: Sequence[Path], schema: pa.Schema) -> None:
        if not files:
            return self.give(name, schema.empty_table())
        # A view of it stays valid as long as the connection has it registered.
        self._db.register(f"{name}_files", dataset.dataset([str(file) for file in files], schema))
        return self.view(name, f"select * from {name}_files")

    def table(self, sql: str) -> pa.Table:
        return self._db.sql(sql).to_arrow_table()

    def rows(self, sql: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table(sql).to_pylist()
        return rows

    def close(self) -> None:
        self._db.close()
        self._scratch.cleanup()


def _noting(batches: Iterable[pa.RecordBatch], failed: list[Exception]) -> Iterator[pa.RecordBatch]:
    """The same batches.  An error that they raise is kept."""
    try:
        yield from batches
    except Exception as error:
        failed.append(error)
        raise
