"""The tables as files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from bunqueue.analytics import files, numbers
from bunqueue.analytics.page.figures import About

NOW = datetime(2026, 11, 22, tzinfo=UTC)
ABOUT = About(NOW, NOW, "hour", ZoneInfo("UTC"), ("web",), NOW)


@pytest.mark.parametrize("begin", list("=+-@\t\r\n"))
def test_no_text_is_a_formula(tmp_path: Path, begin: str) -> None:
    """Queues and errors are called by others; numbers may be below zero, and Parquet has what was there."""
    text = f"{begin}cmd|' /C calc'!A0, \"and\" = more"
    row = {
        "host": "web",
        "queue": text,
        "outcome": "failed",
        "error_type": "",
        "kind": "0a",
        "pattern": "a = b",
        "example_error": None,
    }
    row |= {"first_at": NOW, "last_at": NOW, "attempts": -1, "jobs": 1, "example_job": f"'{text}"}
    table = pa.Table.from_pylist([row], files.schema_of(numbers.FAILURES))
    files.write(tmp_path, ABOUT, {"failures": table}, csv=True)
    assert parquet.read_table(tmp_path / "failures.parquet").to_pylist() == [row]
    read = csv.ConvertOptions(column_types=dict.fromkeys(("queue", "pattern", "example_job"), pa.string()))
    parsed = csv.ParseOptions(newlines_in_values=True)
    (found,) = csv.read_csv(tmp_path / "failures.csv", convert_options=read, parse_options=parsed).to_pylist()
    assert found["queue"] == f"'{text}"
    assert (found["pattern"], found["attempts"], found["example_job"]) == ("a = b", -1, f"'{text}")
    assert not found["example_error"]
