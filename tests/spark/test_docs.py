"""The page about Spark: its samples run, and it names all that there is."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.server import ROOT
from support.spark import Full

from bunqueue.server.audit.entries import Entry
from bunqueue.server.audit.trail import Trail
from bunqueue.server.settings.settings import Settings
from bunqueue.spark.options import READING, STREAMING
from bunqueue.spark.read.tables import HOST, SHARD, TABLES

PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """What stands under a heading, up to the next one of its kind."""
    level = heading.partition(" ")[0]
    return re.split(rf"^{level} ", PAGE.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def test_its_samples_run(
    spark: SparkSession,
    full: Full,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, whose session is the one that `spark_session` gives, and whose priority stays."""
    first = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    rest = re.findall(r"```python\n(.*?)```", section("## Reading") + section("## Streaming"), re.DOTALL)
    samples = "\n".join([first, *rest])
    for relative in ("data", "checkpoint", "lake"):  # Spark's processes are elsewhere
        samples = samples.replace(f'"{relative}"', f'"{tmp_path / relative}"')
    shutil.copytree(full.folder, tmp_path / "data")
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None, raising=False)
    exec(samples, {})
    printed = capsys.readouterr().out
    assert printed.count("|") > 50, "tables"
    assert "|obliterated|" in printed.replace(" ", "")


def test_the_trail_is_read(
    spark: SparkSession, full: Full, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(full.folder, tmp_path / "data", ignore=shutil.ignore_patterns("audit"))
    trail = Trail(Settings(data_dir=str(tmp_path / "data")), "router-0")
    for who, queue in (("anna", "finance"), ("pat", "mails")):
        trail.add(
            Entry(at=1_800_000_000_000, who=who, what="Pause", on={"queue": queue, "limit": 5}, outcome="ok")
        )
    (sample,) = re.findall(r"```python\n(.*?)```", section("## The trail"), re.DOTALL)
    exec(sample.replace('"data"', repr(str(tmp_path / "data"))), {"spark": spark})
    shown = capsys.readouterr().out
    assert '|finance|{"queue":"finance...|' in shown
    assert '{"queue":"mails' not in shown
    assert "|anna|Pause|     ok|    1|" in shown
    assert "|Pause|    5|" in shown


def test_it_names_every_option() -> None:
    for heading, options in (("## Reading", READING), ("## Streaming", STREAMING)):
        rows = re.findall(r"^\| (`.*?) \|", section(heading).partition("\n### ")[0], re.MULTILINE)
        named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
        assert sorted(named) == sorted(options)


@pytest.mark.parametrize("name", TABLES)
def test_it_names_every_column(name: str) -> None:
    rows = re.findall(r"^\| `(\w+)`( \*)? \| (\S+) \| (.*) \|$", section(f"### {name}"), re.MULTILINE)
    columns = [c for c in TABLES[name].columns if name == "jobs" or c not in (HOST, SHARD)]
    expected = [(c.name, " *" if c.on_request else "", c.type, c.doc) for c in columns]
    assert rows == expected
