"""``bunqueue doctor --data-dir``: checks the files of a stopped server, in a process of the server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bunqueue.server.host.lifeline import lifeline
from bunqueue.server.settings import SettingsError
from bunqueue.text import plural

from ...output.progress import waiting
from ..server import check_packages


def recount(folder: str) -> Iterator[dict[str, Any]]:
    """Findings with ``check`` and ``problem``, and counts of queues. Raises SettingsError."""
    import msgspec

    if not Path(folder).is_dir():
        raise SettingsError(f"--data-dir: there is no folder {folder!r}")
    check_packages()
    command = [sys.executable, "-P", "-m", "shardproc.recount", folder]
    with waiting(f"counting {folder}"), lifeline() as line:
        done = subprocess.run(command, stdin=line, capture_output=True, check=False)
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SettingsError(text or f"counting {folder} failed with status {done.returncode}")
    for each in done.stdout.splitlines():
        yield msgspec.json.decode(each)


def findings(folder: str) -> Iterator[tuple[str, str, str | None]]:
    """Each check, its result when all is well, and its problem or None."""
    queues, jobs = 0, dict.fromkeys(("unfinished", "completed", "dead"), 0)
    checks: dict[str, list[str]] = {}
    for found in recount(folder):
        if "queue" in found:
            queues += 1
            for state in jobs:
                jobs[state] += found[state]
            continue
        wrong = checks.setdefault(found["check"], [])
        if found["problem"]:
            wrong.append(f"shard {found['shard']}: {found['problem']}")
    for check, wrong in checks.items():
        yield check, "as it should be", "; ".join(wrong) or None
    counts = ", ".join(f"{count:,} {state}" for state, count in jobs.items())
    yield "jobs", f"{counts}, in {plural(queues, 'queue')}", None
