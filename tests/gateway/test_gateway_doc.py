"""The page about HTTP: its examples run as they stand, and it says what there is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from support.server import Server
from support.web import client

from bunqueue.gateway.http.resources import RESOURCES
from bunqueue.model.events import NAMES, UNPUBLISHED

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def run(command: list[str], server: Server, folder: Path) -> str:
    environ = {**os.environ, "URL": server.url, "NO_PROXY": "*"}
    done = subprocess.run(
        command, env=environ, cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_commands_run(web_server: Server, tmp_path: Path) -> None:
    assert shutil.which("curl"), "the examples use curl: install it"
    text = run(["bash", "-euc", "\n".join(f"{block}\necho" for block in blocks("sh"))], web_server, tmp_path)
    assert '"ok":false' not in text
    assert '"result":{"sent":true}' in text
    assert '"eventType":"pushed","queue":"orders"' in text
    assert "# HELP" in text


def test_programs_run(web_server: Server, tmp_path: Path) -> None:
    for block in blocks("python"):
        text = run([sys.executable, "-W", "error", "-c", block], web_server, tmp_path)
        assert "connect" not in block or '"eventType":"pushed"' in text


def test_every_kind_of_event_is_told() -> None:
    assert {f"`{NAMES[kind]}`" for kind in UNPUBLISHED} <= set(re.findall(r"`[\w-]+`", PAGE))


async def test_every_resource_is_documented(web_server: Server) -> None:
    async with client(web_server) as web:
        document = (await web.get("/openapi.json")).json()
        page = await web.get("/docs")
    for each in RESOURCES:
        operation = document["paths"][each.path][each.method.lower()]
        assert operation["summary"]
        assert each.path in page.text
    names = [way["operationId"] for path in document["paths"].values() for way in path.values()]
    assert len(set(names)) == len(names)
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/", "/docs", "/queues/q"])
async def test_what_browsers_get(web_server: Server, path: str) -> None:
    headers = {"Accept": "text/html,application/xhtml+xml"}
    async with client(web_server, follow_redirects=True) as web:
        answer: httpx2.Response = await web.get(path, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["x-content-type-options"] == "nosniff"
