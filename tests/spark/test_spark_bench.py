"""The benchmark of the pipeline: that its history is what it says, and that its readers read all of it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import ROOT
from support.waiting import wait_until

SCRIPTS = ROOT / "scripts"
JOBS = 5_000


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a server that has stopped."""
    folder = tmp_path_factory.mktemp("history")
    program = (
        "import sys; from large_test import Server; from spark_bench_history import make_history\n"
        "server = Server(sys.argv[1], 2); server.start()\n"
        "try: make_history(server, int(sys.argv[2]))\n"
        "finally: server.stop()"
    )
    command = [sys.executable, "-c", program, str(folder), str(JOBS)]
    subprocess.run(command, cwd=SCRIPTS, check=True, timeout=600)
    return folder / "data"


def test_the_history_is_finished_and_has_failures_and_retries(history: Path) -> None:
    states: dict[str, int] = {}
    retried = 0
    for file in history.glob("shard-*.db"):
        database = sqlite3.connect(file)
        for state, count in database.execute("select state, count(*) from job_history group by state"):
            states[state] = states.get(state, 0) + count
        query = "select count(*) from job_history where state = 'completed' and attempts > 0"
        retried += database.execute(query).fetchone()[0]
        database.close()
    assert states.keys() == {"completed", "failed"}
    assert sum(states.values()) == JOBS
    assert 0.01 * JOBS < states["failed"] < 0.04 * JOBS
    assert 0.01 * JOBS < retried < 0.04 * JOBS


@pytest.mark.parametrize(
    "kind",
    [
        "sqlite-read",
        "sqlite-aggregate",
        pytest.param("duckdb-aggregate", marks=pytest.mark.nightly),
        pytest.param("spark-read", marks=pytest.mark.nightly),
    ],
)
def test_readers_read_all_of_it(history: Path, kind: str) -> None:
    command = [sys.executable, str(SCRIPTS / "spark_bench_readers.py"), kind, str(history)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["rows"] == JOBS
    assert result["seconds"] > 0


@pytest.mark.nightly
def test_beside_a_server_at_work() -> None:
    """What is printed at the end: a row for each load, with a ratio."""
    small = ["--jobs", "2000", "--rounds", "1", "--load", "2000"]
    command = [sys.executable, str(SCRIPTS / "spark_bench.py"), "--beside", *small]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("|")]
    found = {row[0]: row for row in rows[2:]}
    assert {"push", "push-batch", "drain"} <= found.keys()
    assert all(float(found[name][-1]) > 0 for name in ("push", "push-batch", "drain"))


def test_the_most_that_a_number_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    from spark_bench import Peak

    values = [3.0, 7.0, 1.0]
    peak = Peak(lambda: values.pop() if values else 0.0)
    wait_until(lambda: not values, "it has looked three times")
    assert peak.stop() == 7.0


def test_memory_is_that_of_a_process_and_all_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    from spark_bench import family_memory

    inner = "import sys; block = bytearray(b'x') * 50_000_000; print(flush=True); sys.stdin.read()"
    outer = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    command = [sys.executable, "-c", outer, inner]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 50 < family_memory(process.pid) < 150
        process.communicate()
    assert family_memory(process.pid) == 0
