"""Servers for clients that send no Hello, and the clients."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.official_clients import BUN, HINT, INSTALLED, PYTHON, SCENARIOS, Run, run_scenario
from support.server import Server, StartServer


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
        yield Path(shutil.copytree(SCENARIOS / "bun", Path(folder) / "bun"))


@pytest.fixture
def run_bun(bun_scenarios: Path) -> Run:
    """Runs a scenario of the npm package `bunqueue`."""

    def run(name: str, server: Server, **environment: str) -> str:
        test = ["test", "--timeout", "20000"] if name.endswith(".test.ts") else ["run"]
        return run_scenario([str(BUN), *test, f"./{name}"], bun_scenarios, server, environment)

    return run


@pytest.fixture
def run_python() -> Run:
    """Runs a scenario of the PyPI package `bunqueue-client`."""
    if not PYTHON.exists():
        pytest.fail(HINT, pytrace=False)

    def run(name: str | Path, server: Server, **environment: str) -> str:
        path = SCENARIOS / "python" / name
        pytest_ = ["-m", "pytest", "-q", "-c", os.devnull, "--noconftest", "-p", "no:cacheprovider"]
        has_tests = "def test_" in path.read_text(encoding="utf-8")
        command = [*pytest_, str(path)] if has_tests else [str(path)]
        return run_scenario([str(PYTHON), *command], path.parent, server, environment)

    return run
