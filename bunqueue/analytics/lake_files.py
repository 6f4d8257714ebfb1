"""The Parquet files of a lake: rows by date (UTC) of their end, in files and row groups of sizes that readers
like."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from bunqueue.analytics.lake import ENDS

GROUP_ROWS = 131_072  # of a row group: some MB
FILE_ROWS = 4_194_304  # of a file: some hundred MB
HELD_ROWS = 524_288  # in memory, of all days together
_DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)


class LakeWriter:
    """Writes rows to ``folder/TABLE/date=.../PART.parquet``.  Use it in a with statement, whose end completes
    the files."""

    def __init__(self, folder: Path) -> None:
        self.rows: Counter[str] = Counter()
        self._folder = folder
        self._held: dict[tuple[str, int], list[pa.Table]] = {}
        self._waiting: Counter[tuple[str, int]] = Counter()
        self._open: dict[tuple[str, int], parquet.ParquetWriter] = {}
        self._written: Counter[tuple[str, int]] = Counter()
        self._parts: Counter[tuple[str, int]] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            for place in list(self._held):
                self._write(place)
        for writer in self._open.values():
            writer.close()

    def add(self, table: str, rows: pa.Table) -> None:
        """Add rows to the files of their days."""
        if not len(rows):
            return
        self.rows[table] += len(rows)
        ends = pc.fill_null(rows[ENDS[table]].cast(pa.int64()), 0)
        days = pc.divide(ends, _DAY_US)
        for day in pc.unique(days).to_pylist():
            place = table, day
            mine = rows.filter(pc.equal(days, day))
            self._held.setdefault(place, []).append(mine)
            self._waiting[place] += len(mine)
            if self._waiting[place] >= GROUP_ROWS:
                self._write(place)
        while self._waiting.total() > HELD_ROWS:
            self._write(max(self._waiting, key=lambda each: self._waiting[each]))

    def _write(self, place: tuple[str, int]) -> None:
        rows = pa.concat_tables(self._held.pop(place))
        del self._waiting[place]
        self._writer(place, rows.schema).write_table(rows, row_group_size=GROUP_ROWS)
        self._written[place] += len(rows)
        if self._written[place] >= FILE_ROWS:
            self._open.pop(place).close()
            del self._written[place]

    def _writer(self, place: tuple[str, int], schema: pa.Schema) -> parquet.ParquetWriter:
        if place not in self._open:
            table, day = place
            folder = self._folder / table / f"date={_EPOCH + timedelta(day)}"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"part-{self._parts[place]:03}.parquet"
            self._parts[place] += 1
            self._open[place] = parquet.ParquetWriter(path, schema, compression="zstd")
        return self._open[place]
