"""The page about backups: what its sample copies from a server that works is whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import PROGRAM, ROOT, StartServer

from bunqueue import Queue

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "backup.md").read_text(encoding="utf-8")


def sample(language: str) -> str:
    return "".join(re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.parametrize("language", ["python", "sh"])
def test_a_copy_made_while_the_server_runs_has_all_jobs(
    tmp_path: Path, make_server: StartServer, language: str
) -> None:
    server = make_server(data_dir=tmp_path / "data", shards=2)
    server.start()
    names = [f"backup-{number}" for number in range(8)]  # on both shards
    for name in names:
        with Queue(name, port=server.port) as queue:
            queue.add_bulk([("n", number) for number in range(50)])
    function = f"bunqueue() {{ PYTHONPATH={ROOT} {sys.executable} -c '{PROGRAM}' \"$@\"; }}\n"
    program = [sys.executable, "-W", "error", "-c"] if language == "python" else ["sh", "-ec"]
    text = sample(language) if language == "python" else function + sample(language)
    subprocess.run([*program, text], cwd=tmp_path, check=True, timeout=60)
    for path in [tmp_path / "backup", *(tmp_path / "backup").iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, f"others may read {path.name}"
    with Queue("backup-0", port=server.port) as queue:
        queue.add("too late")
    copy = make_server(data_dir=tmp_path / "backup", shards=2)
    copy.start()
    for name in names:
        with Queue(name, port=copy.port) as queue:
            assert sorted(job.data for job in queue.iter_jobs()) == list(range(50))
