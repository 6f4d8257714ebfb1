"""The benchmark of clusters: that it runs and has all its figures, with next to nothing to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import postgres

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly  # a minute of programs that start and die
def test_it_measures_a_small_cluster(tmp_path: Path) -> None:
    postgres.binaries()
    command = [sys.executable, "scripts/cluster_bench.py", "--shards", "2", "--live", "400", "--kills", "1"]
    command += ["--moves", "1", "--rounds", "1", "--jobs", "4000", "--hosts", "2"]
    command += ["--json", str(tmp_path / "figures.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["dead"]["all shards of the host"]["max_s"] > 0
    assert figures["move"]["moved"]["max_s"] > 0
    rates = {name: found["jobs_per_s"] for name, found in figures["throughput"].items()}
    assert len(rates) == 6
    assert all(rate > 0 for rate in rates.values())
    assert figures["throughput"]["drain: 2 hosts"]["followers_us"] >= 0
