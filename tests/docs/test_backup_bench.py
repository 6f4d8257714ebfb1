"""The benchmark of backups: that it measures all that the page shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly  # ten starts of the program
def test_it_measures_each_step() -> None:
    command = [sys.executable, "scripts/backup_bench.py", "--waiting", "800", "--finished", "2400"]
    command += ["--rate", "200", "--seconds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert [row[0].removeprefix("| ").partition(",")[0] for row in rows] == [
        "the first backup",
        "another",
        "another",
        "`verify`",
        "`restore`",
        "the next start",
        "until a change is stored",
        "until a change is stored",
    ]
    assert all(float(row[1].removesuffix(" s")) > 0 for row in rows)
