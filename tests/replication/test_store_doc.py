"""The page about stores: what it shows in a shell works, in turn."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from replication.conftest import StoredServer
from support import warm
from support.server import ROOT

from bunqueue import Queue

PAGE = (ROOT / "docs" / "store.md").read_text(encoding="utf-8")


def test_the_examples_run(database: str, stored_server: StoredServer, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    warm.program(programs)
    environ = {**os.environ, "STORE": database, "BUNQUEUE_STORE": database, "PYTHONPATH": str(ROOT)}
    environ["PATH"] = f"{programs}:{environ['PATH']}"
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        if number == 1:
            server = stored_server(database)
            server.start()
            with Queue("q", port=server.port) as queue:
                queue.add("job", 1)
        done = subprocess.run(
            ["sh", "-ec", block], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (block, done.stderr)
        assert "Traceback" not in done.stderr
