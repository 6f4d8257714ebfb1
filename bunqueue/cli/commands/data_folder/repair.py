"""``bunqueue doctor --repair``: rebuilds damaged files, in a process of the server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bunqueue.server.host.lifeline import lifeline
from bunqueue.server.settings import SettingsError
from bunqueue.text import plural

from ..server import check_packages

SHOWN = 10
"""The number of ids of lost jobs that the text names."""


def findings(folder: str) -> Iterator[str]:
    """The outcome for each damaged file. Raises SettingsError when the repair fails.

    Progress goes to standard error."""
    import msgspec

    if not Path(folder).is_dir():
        raise SettingsError(f"--data-dir: there is no folder {folder!r}")
    check_packages()
    command = [sys.executable, "-P", "-m", "shardproc.repair", folder]
    with lifeline() as line:
        done = subprocess.run(command, stdin=line, stdout=subprocess.PIPE, check=False)
    for each in done.stdout.splitlines():
        yield _described(msgspec.json.decode(each), folder)
    if done.returncode:
        raise SettingsError(f"the repair of {folder} did not end: see above; run it again")


def _described(found: dict[str, Any], folder: str) -> str:
    if "fixed" in found:
        return _fixed(found)
    kept = plural(found["kept"].get("jobs", 0))
    text = f"shard {found['shard']}: {kept} kept; {plural(found['jobs'])} lost"
    if found["ids"]:
        ids = ", ".join(found["ids"][:SHOWN])
        text += f" ({ids}{' ...' if len(found['ids']) > SHOWN or found['jobs'] > len(found['ids']) else ''})"
    if found["unknown"]:
        text += f"; {plural(found['unknown'])} had ended in an unknown way and are dead letters now"
    if found["lost"]:
        rows = ", ".join(f"{table} {count:,}" for table, count in found["lost"].items())
        text += f"; places of rows that could not be read: {rows}"
    return f"{text}; the old file is {Path(folder) / found['keptAs']}"


def _fixed(found: dict[str, Any]) -> str:
    """The problem that was fixed in a file that is not damaged."""
    parts = [f"fixed: {what}" for what in found["fixed"].values()]
    parts += [f"cannot be fixed: {what}" for what in found["left"].values()]
    return f"shard {found['shard']}: {'; '.join(parts)}"
