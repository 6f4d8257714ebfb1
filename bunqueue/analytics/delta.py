"""A Delta log beside each table of a lake, for whatever reads Delta tables: it names the Parquet files that
are there, and none of them is written again.

It follows the lake.  So a run that was killed, files that were merged and days that were removed need nothing
of their own: the next run brings the log up to date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from bunqueue.analytics.lake import files_of, schema_of
from bunqueue.analytics.lake_log import TABLES
from bunqueue.errors import OptionError

try:
    from deltalake import DeltaTable
    from deltalake.schema import Schema
    from deltalake.transaction import AddAction, create_table_with_add_actions
except ModuleNotFoundError:
    raise OptionError("delta: it needs deltalake; pip install 'bunqueue[delta]'") from None

_DATE = "date"  # the column that is in the names of the folders


def follow(lake: Path) -> None:
    """Bring the Delta logs of a lake up to date with its files."""
    for table in TABLES:
        _follow(lake / table, files_of(lake, table), schema_of(table).append(pa.field(_DATE, pa.date32())))


def _follow(folder: Path, files: list[Path], schema: pa.Schema) -> None:
    here = {file.relative_to(folder).as_posix(): file for file in files}
    shape: Any = Schema.from_arrow(schema)
    if not DeltaTable.is_deltatable(str(folder)):
        if files:
            adds = [_add(name, file) for name, file in here.items()]
            create_table_with_add_actions(str(folder), shape, adds, partition_by=[_DATE])
        return
    log = DeltaTable(folder)
    known = {Path(file).relative_to(folder.absolute()).as_posix() for file in log.file_uris()}
    if known - here.keys():
        log.repair()  # forget what is not there
    new: list[Any] = [_add(name, file) for name, file in here.items() if name not in known]
    if new:
        log.create_write_transaction(new, "append", shape, partition_by=[_DATE])


def _add(name: str, file: Path) -> AddAction:
    about = file.stat()
    rows = parquet.read_metadata(file).num_rows
    day = file.parent.name.partition("=")[2]
    return AddAction(
        path=name,
        size=about.st_size,
        partition_values={_DATE: day},
        modification_time=int(about.st_mtime * 1000),
        data_change=True,
        stats=f'{{"numRecords":{rows}}}',
    )
