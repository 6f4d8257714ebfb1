"""The tables as files: one Parquet file each, a CSV file too if asked, and ``about.json``, which describes
them.

A file is complete, or it does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyarrow.csv import write_csv

from bunqueue.analytics import numbers
from bunqueue.analytics.anomalies import MIN_ATTEMPTS, MIN_BUCKETS, WATCHED
from bunqueue.analytics.page.figures import About, Figures
from bunqueue.analytics.page.sections import TOLD_QUEUES
from bunqueue.analytics.page.work import TOLD_WORKERS

ABOUT = "about.json"
# The characters that start a formula, according to OWASP:
# https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA = r"^([=+\-@\t\r\n])"
_TIME = pa.timestamp("ms", "UTC")
_TYPES = {
    "text": pa.string(),
    "time": _TIME,
    **dict.fromkeys(("number", "jobs", "attempts"), pa.int64()),
}


def schema_of(table: numbers.Table) -> pa.Schema:
    """The names and types of the columns."""
    columns = (*table.keys, *table.numbers)
    return pa.schema([(column.name, _TYPES.get(column.unit, pa.float64())) for column in columns])


def shaped(table: numbers.Table, data: pa.Table) -> pa.Table:
    """Data with the table's columns and types, sorted by its keys.  Times are epoch ms."""
    found = data.select(list(table.columns)).cast(schema_of(table), safe=False)
    return found.sort_by([(key.name, "ascending") for key in table.keys]) if table.keys else found


def write(folder: Path, about: About, tables: Mapping[str, pa.Table], *, csv: bool = False) -> None:
    """Write all tables. Existing ones are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write_whole(folder / f"{name}.parquet", partial(parquet.write_table, table))
        sheet = folder / f"{name}.csv"
        if csv:
            write_whole(sheet, partial(write_csv, as_text(table)))
        else:
            sheet.unlink(missing_ok=True)  # an earlier one would have other numbers
    text = msgspec.json.encode(about._asdict(), enc_hook=str)  # the zone is its name
    write_whole(folder / ABOUT, lambda path: path.write_bytes(msgspec.json.format(text, indent=1) + b"\n"))


def as_text(table: pa.Table) -> pa.Table:
    """Escape texts so that no spreadsheet takes them for a formula, because names and errors come from other
    people."""
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            table = table.set_column(place, field, pc.replace_substring_regex(table[place], _FORMULA, r"'\1"))
    return table


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name, and then rename it."""
    temporary = path.with_name(f".{path.name}.new")
    write(temporary)
    temporary.replace(path)


def figures_of(about: About, tables: Mapping[str, pa.Table]) -> Figures:
    """The figures of a report. Over time, only the queues and workers that it shows; failures of all queues
    together; of the backlog, only the last state."""
    found = {name: table for name, table in tables.items() if name != numbers.NAMES_OVER_TIME.name}
    judged = _judged(found["queues_over_time"])
    found["backlog"] = _last(found["backlog"])
    failed = found["failures_over_time"].group_by(["pattern", "bucket"]).aggregate([("attempts", "sum")])
    found["failures_over_time"] = failed.rename_columns(["pattern", "bucket", "attempts"])
    for whole, part, key, by, most in (
        ("queues", "queues_over_time", "queue", "attempts", TOLD_QUEUES),
        ("workers", "workers_over_time", "worker", "busy", TOLD_WORKERS),
    ):
        found[part] = only(found[part], busiest(found[whole], ["host", key], by, most))
    return Figures(about, {name: table.to_pylist() for name, table in found.items()}, judged)


def _judged(over_time: pa.Table) -> int:
    """The number of queues with enough attempts to show what is usual."""
    busy = over_time.filter(pc.greater_equal(over_time["attempts"], MIN_ATTEMPTS))
    counts = busy.group_by(["host", "queue"]).aggregate([("attempts", "count")])["attempts_count"]
    return min(pc.sum(pc.greater_equal(counts, MIN_BUCKETS)).as_py() or 0, WATCHED)


def _last(backlog: pa.Table) -> pa.Table:
    """The last row of each queue. The rows are sorted by time."""
    rest = [name for name in backlog.column_names if name not in ("host", "queue")]
    last = backlog.group_by(["host", "queue"], use_threads=False).aggregate([(name, "last") for name in rest])
    return last.rename_columns([name.removesuffix("_last") for name in last.column_names])


def busiest(table: pa.Table, keys: list[str], by: str, most: int) -> pa.Table:
    """The keys of the rows with the highest numbers."""
    order = [(by, "descending"), *((key, "ascending") for key in keys)]
    return table.sort_by(order).slice(0, most).select(keys)


def only(table: pa.Table, chosen: pa.Table) -> pa.Table:
    """The rows with one of these combinations of keys."""
    return (
        table.join(chosen, chosen.column_names, join_type="left semi") if len(chosen) else table.slice(0, 0)
    )
