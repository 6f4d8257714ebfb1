"""The benchmark of workflows: that it runs, for ours, without installing anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly  # half a minute of processor time
def test_it_measures_our_own_workflows(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/workflow_bench.py", "--only", "bunqueue", "--rounds", "1"]
    command += ["--calm", "0", "--scale", "0.01", "--json", str(tmp_path / "figures.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert list(figures) == ["steps", "step", "whole", "signal", "sleepers", "recovery"]
    assert all(value > 0 for found in figures.values() for value in found["bunqueue"][0].values())
