"""The examples run and print what they say, as they are, and with a server instead of `embedded=True`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.budget import budget
from support.server import Server, StartServer

FOLDER = Path(__file__).resolve().parents[2] / "examples"
MARK = "\n# Output:\n"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if MARK in path.read_text(encoding="utf-8"))


def expected(text: str) -> list[str]:
    return [line.removeprefix("# ").rstrip() for line in text.partition(MARK)[2].strip().splitlines()]


def printed(script: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_there_are_some() -> None:
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_print_what_they_say(name: str) -> None:
    path = FOLDER / f"{name}.py"
    assert printed(path) == expected(path.read_text(encoding="utf-8"))


ON_A_SERVER = [name for name in EXAMPLES if "file" not in name]


@pytest.mark.parametrize("name", budget(ON_A_SERVER[::3], ON_A_SERVER))
def test_examples_do_the_same_on_a_server(name: str, make_server: StartServer, tmp_path: Path) -> None:
    server: Server = make_server()
    server.start()
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    script = tmp_path / f"{name}.py"
    script.write_text(text.replace(", embedded=True", ""), encoding="utf-8")
    assert "embedded=True" not in script.read_text(encoding="utf-8").split('"""')[2]
    assert printed(script, BUNQUEUE_URL=f"bunqueue://{server.host}:{server.port}") == expected(text)
