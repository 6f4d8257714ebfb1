"""The official clients of other languages, as `make test-interop` installs them; what runs scenarios."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .server import ROOT, Server

SCENARIOS = ROOT / "tests" / "interop"
INSTALLED = ROOT / ".interop"
BUN = INSTALLED / "node_modules" / ".bin" / "bun"
PYTHON = INSTALLED / "venv" / "bin" / "python"
HINT = "The official clients are not installed: `make test-interop` puts them into .interop, and runs this."
SCENARIO_S = 180.0  # many times what the longest takes on a busy machine

Run = Callable[..., str]
"""Runs a scenario against a server: ``run(name, server, **environment)``; what it printed."""


def run_scenario(command: list[str], folder: Path, server: Server, environment: dict[str, str]) -> str:
    """Run a scenario to its end; it may ask to have the server killed, and started again."""
    ours = ("PYTHONPATH", "PORT", "TOKEN", "CA")
    environ = {key: value for key, value in os.environ.items() if key not in ours}
    environ |= {"PORT": str(server.port), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=folder, env=environ, text=True, **pipes) as process:
        try:
            output = _serve(process, server)
        finally:
            process.kill()
    assert process.returncode == 0, f"{' '.join(command)}\n{output}"
    return output


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
