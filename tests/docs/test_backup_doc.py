"""The page about backups: what its commands make of a server that works is whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.server import PROGRAM, ROOT, StartServer

from bunqueue import Queue

PAGE = (ROOT / "docs" / "backup.md").read_text(encoding="utf-8")


def test_what_its_commands_make_while_the_server_runs_has_all_jobs(
    tmp_path: Path, make_server: StartServer
) -> None:
    server = make_server(data_dir=tmp_path / "data", shards=2)
    server.start()
    names = [f"backup-{number}" for number in range(8)]  # on both shards
    for name in names:
        with Queue(name, port=server.port) as queue:
            queue.add_bulk([("n", number) for number in range(50)])
    function = f"bunqueue() {{ PYTHONPATH={ROOT} {sys.executable} -c '{PROGRAM}' \"$@\"; }}\n"
    script = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
    subprocess.run(["sh", "-ec", function + script], cwd=tmp_path, check=True, timeout=120)
    with Queue("backup-0", port=server.port) as queue:
        queue.add("too late")
    for made in (tmp_path / "restored", tmp_path / "copy"):
        for path in [made, made / "manifest.json", *made.glob("*.db")]:
            assert path.stat().st_mode & 0o077 == 0, f"others may read {path.name}"
        copy = make_server(data_dir=made, shards=2)
        copy.start()
        for name in names:
            with Queue(name, port=copy.port) as queue:
                assert sorted(job.data for job in queue.iter_jobs()) == list(range(50))
        copy.stop()
