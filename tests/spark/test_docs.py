"""The page about Spark: its samples run, and it names all that there is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import ROOT
from support.spark import Full, without_java

from bunqueue.spark.options import READING, STREAMING
from bunqueue.spark.read.tables import HOST, SHARD, TABLES

PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """What stands under a heading, up to the next one of its kind."""
    level = heading.partition(" ")[0]
    return re.split(rf"^{level} ", PAGE.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def test_its_samples_run(full: Full, tmp_path: Path) -> None:
    """Without a Java of the machine: the one that comes with bunqueue is used."""
    samples = re.findall(r"```python\n(.*?)```", section("## Reading") + section("## Streaming"), re.DOTALL)
    first = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    script = tmp_path / "sample.py"
    script.write_text("\n".join([first, *samples]), encoding="utf-8")
    shutil.copytree(full.folder, tmp_path / "data")
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=without_java(tmp_path / "bin"),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("|") > 50, "tables"
    assert "|obliterated|" in done.stdout.replace(" ", "")


def test_it_names_every_option() -> None:
    for heading, options in (("## Reading", READING), ("## Streaming", STREAMING)):
        rows = re.findall(r"^\| (`.*?) \|", section(heading).partition("\n### ")[0], re.MULTILINE)
        named = [name.lower() for row in rows for name in re.findall(r"`(\w+)`", row)]
        assert sorted(named) == sorted(options)


@pytest.mark.parametrize("name", TABLES)
def test_it_names_every_column(name: str) -> None:
    rows = re.findall(r"^\| `(\w+)`( \*)? \| (\S+) \| (.*) \|$", section(f"### {name}"), re.MULTILINE)
    columns = [c for c in TABLES[name].columns if name == "jobs" or c not in (HOST, SHARD)]
    expected = [(c.name, " *" if c.on_request else "", c.type, c.doc) for c in columns]
    assert rows == expected
