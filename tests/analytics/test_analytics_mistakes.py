"""Plain mistakes at the command line: one line that says what to do, before anything is read where that can
be."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import PROGRAM, ROOT


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "analytics", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--data-dir", "nowhere"], "there is no folder nowhere; give the --data-dir of a server"),
        (
            ["--data-dir", "FULL", "--out", "FILE/x"],
            "--out: FILE/x cannot be written to (Not a directory); give",
        ),
        (["--data-dir", "FULL", "--out", "s3://x/y"], "--out: s3://x/y is an address; give a folder"),
        (["--data-dir", "FULL", "--out", "FULL"], "--out: FULL is a server's data folder; give another"),
        (["--data-dir", "FULL", "--tz", "Rome"], "--tz: there is no time zone"),
        (["--data-dir", "FULL", "--memory", "much"], "--memory: 'much' is no size; give one such as 4g"),
        (
            ["--data-dir", "FULL", "--memory", "200m", "--master", "local"],
            "--memory: 200m is not allowed; give 512m at least",
        ),
    ],
)
def test_mistakes(past: Path, tmp_path: Path, options: list[str], told: str) -> None:
    file = tmp_path / "file"
    file.touch()
    places = {"FULL": str(past), "FILE": str(file)}
    for name, place in places.items():
        options = [option.replace(name, place) for option in options]
        told = told.replace(name, place)
    running = start("aggregate", "--out", tmp_path / "out", *options)
    _, errors = running.communicate(timeout=240)
    assert running.returncode != 0
    lines = [line for line in errors.splitlines() if "starting Spark" not in line]
    assert len(lines) == 1, errors
    assert lines[0].startswith(f"bunqueue: {told}")


@pytest.mark.parametrize("master", [(), pytest.param(("--master", "local[2]"), marks=pytest.mark.nightly)])
def test_interrupted(past: Path, tmp_path: Path, master: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    running = start("aggregate", "--data-dir", past, "--out", out, *master)
    assert running.stderr is not None
    for line in running.stderr:
        if "reading jobs" in line or "starting Spark" in line:  # that is done, and more begins
            running.send_signal(signal.SIGINT)
            break
    rest = running.stderr.read()
    running.communicate(timeout=240)
    assert running.returncode == 130, rest
    assert "bunqueue: interrupted" in rest.splitlines()
    assert "Traceback" not in rest
    assert not out.exists()
