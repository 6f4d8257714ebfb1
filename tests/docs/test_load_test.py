"""The load test, run as its users run it: every scenario gives its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import ROOT, Server

sys.path.insert(0, str(ROOT / "scripts"))

from load_client import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_gives_its_figures(shared_server: Server, tmp_path: Path, scenario: str) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, ROOT / "scripts" / "load_test.py", scenario, "--port", str(shared_server.port)]
    done = subprocess.run(
        [*command, "--jobs", "200", "--batch", "20", "--connections", "2", "--json", path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "left behind" not in done.stderr
    assert "200 jobs in" in done.stdout
    results = json.loads(path.read_text())["results"]
    assert results["jobs"] == 200
    assert results["latency"]
