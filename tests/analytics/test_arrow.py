"""Tables of a data folder as Arrow, and what the page about them says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from history import shards_of
from support.server import ROOT

from bunqueue import OptionError, arrow
from bunqueue.spark.read.tables import SKIPPED, TABLES

PAGE = (ROOT / "docs" / "arrow.md").read_text(encoding="utf-8")


def test_its_samples_run_without_spark(past: Path, tmp_path: Path) -> None:
    samples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(samples) == 2
    script = tmp_path / "sample.py"
    blocked = 'import sys\nsys.modules["pyspark"] = None\n'
    script.write_text(blocked + "\n".join(samples), encoding="utf-8")
    shutil.copytree(past, tmp_path / "data")
    command = [sys.executable, "-W", "error", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "│ mail" in done.stdout


def test_every_table_has_a_function(past: Path) -> None:
    for name in TABLES:
        if name != SKIPPED.name:
            found = getattr(arrow, name)(past)
            assert found.column_names == [column.name for column in TABLES[name].default_columns], name
            assert f"| `{name}` |" in PAGE


def test_it_has_all_rows(past: Path) -> None:
    counts = [shard.execute("select count(*) from jobs").fetchone()[0] for shard in shards_of(past)]
    jobs = arrow.jobs(past, columns=["id", "shard"], host="web")
    assert len(set(jobs["id"].to_pylist())) == jobs.num_rows == sum(counts)
    assert all(counts)
    assert sum(batch.num_rows for batch in arrow.batches("jobs", past)) == sum(counts)


def test_what_is_asked_for(past: Path) -> None:
    failed = arrow.jobs(past, states=["failed"], queues="pay", columns=["state", "queue", "created_at"])
    assert set(failed["state"].to_pylist()) == {"failed"}
    assert set(failed["queue"].to_pylist()) == {"pay"}
    times = sorted(failed["created_at"].to_pylist())
    for since in (times[1], times[1].replace(tzinfo=None), times[1].isoformat()):
        assert arrow.jobs(past, states=["failed"], queues=["pay"], since=since).num_rows == len(times) - 1
    assert arrow.events(past, kinds=["pulled"], until=datetime(2000, 1, 1, tzinfo=UTC)).num_rows == 0
    assert set(arrow.jobs(past, host="web", columns=["host"])["host"].to_pylist()) == {"web"}


def test_mistakes(past: Path, tmp_path: Path) -> None:
    refused = {
        "reading has no option 'queue'; did you mean queues?": {"queue": "mail"},
        "columns: jobs has no column 'stat'; did you mean state?": {"columns": ["stat"]},
        "states: there is no state 'done'": {"states": ["done"]},
        "since: 'soon' is no time": {"since": "soon"},
    }
    for text, options in refused.items():
        with pytest.raises(OptionError) as error:
            arrow.jobs(past, **options)
        assert text in str(error.value)
    with pytest.raises(OptionError, match="table: there is no 'job'"):
        arrow.table("job", past)
    with pytest.raises(arrow.NotReadable, match="there is no folder"):
        arrow.jobs(tmp_path / "nothing")
    shutil.copytree(past, tmp_path / "bad")
    (tmp_path / "bad" / "shard-01.db").write_bytes(b"no database" * 100)
    with pytest.raises(arrow.NotReadable, match=r"shard-01\.db"):
        arrow.jobs(tmp_path / "bad")


def test_a_reader_that_stops_early(past: Path) -> None:
    """Threads that read ahead end."""
    reader = arrow.batches("events", past)
    assert reader.read_next_batch().num_rows
    del reader
