"""The samples of the pages do what they show: those of a page run in turn, against a server of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import StartServer

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "app",
    "bounds",
    "client",
    "codecs",
    "coming-from",
    "dependencies",
    "events",
    "fairness",
    "find",
    "flows",
    "mcp",
    "middleware",
    "retries",
    "types",
    "unique",
    "workers",
    "workflows",
]


def samples(page: str) -> list[str]:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_samples_run(page: str, make_server: StartServer, tmp_path: Path) -> None:
    server = make_server()  # of its own: pages use the same queues for jobs with different data
    server.start()
    blocks = samples(page)
    assert blocks
    script = tmp_path / f"page_{page}.py"  # not the name of a module that it imports
    script.write_text("\n".join(blocks), encoding="utf-8")
    command = [sys.executable, "-W", "error", script]
    environment = {**os.environ, "BUNQUEUE_URL": f"bunqueue://{server.host}:{server.port}"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
