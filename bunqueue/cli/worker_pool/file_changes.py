"""Detects changes of a program's files by polling their modification times: enough for development."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

POLL_INTERVAL = 0.5  # seconds
SKIPPED = frozenset({"__pycache__", "node_modules", "venv", "site-packages"})


def times(folder: str) -> dict[str, float]:
    """The modification time of each Python file below a folder, except in hidden folders and libraries."""
    found = {}
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".")]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(where, name)
                try:
                    found[path] = os.stat(path).st_mtime
                except OSError:  # it was removed meanwhile
                    continue
    return found


async def changes(folders: list[str]) -> AsyncIterator[str]:
    """The path of a file that was written, added or removed; one path for all that changed in an interval."""
    before = await asyncio.to_thread(_all, folders)
    while True:
        await asyncio.sleep(POLL_INTERVAL)
        now = await asyncio.to_thread(_all, folders)
        if now != before:
            changed = next(path for path in {**now, **before} if now.get(path) != before.get(path))
            before = now
            yield changed


def _all(folders: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for folder in folders:
        found |= times(str(Path(folder)))
    return found
