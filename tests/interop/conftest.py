"""The official clients of other languages, as `make test-interop` installs them; what runs scenarios."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.server import Server, StartServer

HERE = Path(__file__).resolve().parent
INSTALLED = HERE.parents[1] / ".interop"
BUN = INSTALLED / "node_modules" / ".bin" / "bun"
PYTHON = INSTALLED / "venv" / "bin" / "python"
HINT = "The official clients are not installed: `make test-interop` puts them into .interop, and runs this."
SCENARIO_S = 180.0  # many times what the longest takes on a busy machine

Run = Callable[..., None]
"""Runs a scenario against a server: ``run(name, server, **environment)``."""


@pytest.fixture
def start(make_server: StartServer) -> StartServer:
    """Starts a server for clients that send no Hello: ``start(*flags, port=0)``."""

    def started(*flags: str, port: int = 0) -> Server:
        server = make_server("--default-protocol", "3", *flags, port=port)
        server.start()
        return server

    return started


@pytest.fixture(scope="session")
def bun_scenarios() -> Iterator[Path]:
    """The scenarios in a folder from which Bun finds the installed packages."""
    if not BUN.exists():
        pytest.fail(HINT, pytrace=False)
    with tempfile.TemporaryDirectory(dir=INSTALLED, prefix="run-") as folder:
        yield Path(shutil.copytree(HERE / "bun", Path(folder) / "bun"))


@pytest.fixture
def run_bun(bun_scenarios: Path) -> Run:
    """Runs a scenario of the npm package `bunqueue`."""

    def run(name: str, server: Server, **environment: str) -> None:
        test = ["test", "--timeout", "20000"] if name.endswith(".test.ts") else ["run"]
        _run([str(BUN), *test, f"./{name}"], bun_scenarios, server, environment)

    return run


@pytest.fixture
def run_python() -> Run:
    """Runs a scenario of the PyPI package `bunqueue-client`."""
    if not PYTHON.exists():
        pytest.fail(HINT, pytrace=False)

    def run(name: str, server: Server, **environment: str) -> None:
        path = HERE / "python" / name
        pytest_ = ["-m", "pytest", "-q", "-c", os.devnull, "--noconftest", "-p", "no:cacheprovider"]
        command = [str(path)] if "def main" in path.read_text(encoding="utf-8") else [*pytest_, str(path)]
        _run([str(PYTHON), *command], path.parent, server, environment)

    return run


def _run(command: list[str], folder: Path, server: Server, environment: dict[str, str]) -> None:
    """Run a scenario to its end; it may ask to have the server killed, and started again."""
    ours = ("PYTHONPATH", "PORT", "TOKEN")
    environ = {key: value for key, value in os.environ.items() if key not in ours}
    environ |= {"PORT": str(server.port), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=folder, env=environ, text=True, **pipes) as process:
        try:
            output = _serve(process, server)
        finally:
            process.kill()
    assert process.returncode == 0, f"{' '.join(command)}\n{output}"


def _serve(process: subprocess.Popen[str], server: Server) -> str:
    """What the scenario prints until its end; wishes (lines like ``@kill``) are granted meanwhile."""
    assert process.stdin is not None
    assert process.stdout is not None
    wishes = {"@kill": server.kill_all, "@start": server.restart}
    lines: queue.Queue[str] = queue.Queue()
    stdout = process.stdout
    threading.Thread(target=lambda: [*map(lines.put, stdout), lines.put("")], daemon=True).start()
    deadline = time.monotonic() + SCENARIO_S
    output = ""
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            pytest.fail(f"the scenario was not over within {SCENARIO_S:g} s:\n{output}", pytrace=False)
        if not line:
            process.wait(SCENARIO_S)
            return output
        output += line
        if line.strip() in wishes:
            wishes[line.strip()]()
            process.stdin.write("done\n")
            process.stdin.flush()
