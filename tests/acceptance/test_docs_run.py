"""The samples of the pages do what they show: each page's are run, one after the other, against a server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import Server

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["flows"]

# Samples name no port, as nobody has to; a test's server has another one than users'.
PRELUDE = """
import bunqueue.client.transport
bunqueue.client.transport.PORT = {port}
"""


def samples(page: str) -> list[str]:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_samples_run(page: str, shared_server: Server, tmp_path: Path) -> None:
    blocks = samples(page)
    assert blocks
    script = tmp_path / f"{page}.py"
    script.write_text("\n".join([PRELUDE.format(port=shared_server.port), *blocks]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
