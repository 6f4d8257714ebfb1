"""The benchmark against other libraries: that it runs, for ours, and that its ratios say what they should."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly  # half a minute of processor time
def test_it_measures_our_own_client_without_installing_anything(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/sdk_bench.py", "--only", "ours", "ours, async", "--rounds", "2"]
    command += ["--scale", "0.03", "--json", str(tmp_path / "figures.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    rows = re.findall(r"^\| (\w+), (?:jobs/s|ms) \| ([\d.,]+) \| ([\d.,-]+) \|$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["single", "bulk", "drain", "latency"]
    assert [row[2] == "-" for row in rows] == [False, False, True, True]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert all(len(rounds) == 2 for by_name in figures.values() for rounds in by_name.values())


def test_ratios_are_those_of_the_rounds_and_above_one_when_we_are_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    from sdk_bench import report

    figures = {
        "single": {"ours": [300.0, 100.0, 200.0], "huey": [100.0, 100.0, 100.0]},
        "latency": {"ours": [1.0], "huey": [3.0]},
    }
    assert report(figures).splitlines()[2:] == [
        "| single, jobs/s | 200 | 100 (2.0 x) |",
        "| latency, ms | 1.00 | 3.00 (3.0 x) |",
    ]
