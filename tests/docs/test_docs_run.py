"""The samples of the pages do what they show: those of a page run in turn, against a server of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
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
    "errors",
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
    if page == "workflows":
        said = [text for text in re.findall(r"print\(.*\)  # (.+)", "\n".join(blocks)) if "..." not in text]
        assert len(said) == 7
        assert [text for text in said if text not in done.stdout] == []


def test_a_workflow_from_a_terminal(make_server: StartServer, tmp_path: Path) -> None:
    """What stands at the beginning of the page, with its first program as shop.py."""
    server = make_server()
    server.start()
    (tmp_path / "shop.py").write_text(samples("workflows")[0], encoding="utf-8")
    text = (ROOT / "docs" / "workflows.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    script = f"set -eum\ntrap 'kill -9 -- -$!' EXIT\n{block}"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BUNQUEUE_URL": f"bunqueue://{server.host}:{server.port}",
    }
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert '{"charge":"charge of 4200 for 7","parcels":["parcel with lamp"]}' in done.stdout, done.stderr
    steps = [line.split("\t")[1:4] for line in done.stdout.splitlines() if re.match(r"\d+\t", line)]
    assert steps == [
        ["charge", "step", "completed"],
        ["cooling-off", "sleep", "completed"],
        ["approval", "signal", "completed"],
        ["pack", "child", "completed"],
        ["ship", "step", "completed"],
    ]


def test_programs_of_others_are_programs() -> None:
    """What they are compared with; it is not run, as theirs need servers."""
    text = (ROOT / "docs" / "workflows.md").read_text(encoding="utf-8")
    theirs = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    assert len(theirs) == 3
    for block in theirs:
        compile(block, "workflows.md", "exec", flags=PyCF_ALLOW_TOP_LEVEL_AWAIT)
