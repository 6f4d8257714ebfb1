"""The work of the demonstration: which files there are, what a job does with one, and the worker process.

    python scripts/demo/demo_work.py HOST PORT

starts a worker process; it prints `ready`, and SIGTERM ends it. Counting and checking are elsewhere.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bunqueue import ActiveJob, Worker, run_forever

logging.getLogger("bunqueue").addHandler(logging.NullHandler())  # the report has the dead letters

SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages"})  # made by machines, or not the library's own
TEXT_SUFFIXES = frozenset({".py", ".txt"})
KINDS = ("text", "other")
LANES = 2  # names that differ in the last bit only belong to different shards, for every number of shards
QUEUES = tuple(f"{kind}-{lane}" for kind in KINDS for lane in range(LANES))
CONCURRENCY = 4  # files a worker has open at once; there is one worker a queue in every process


@dataclass(frozen=True, slots=True)
class Walk:
    """The files of a folder, in order, and notes about the others."""

    files: list[str]
    skipped: int = 0
    """Pipes and devices, which may never end, and files with a name that is not text."""
    closed: int = 0
    """Folders that could not be listed."""
    cut: bool = False
    """There are more files than the limit."""


def walk(top: Path, limit: int) -> Walk:
    """The first `limit` files below `top`, following no links to folders. OSError if `top` is no folder."""
    os.scandir(top).close()
    files: list[str] = []
    skipped = 0
    closed: list[OSError] = []
    for folder, folders, names in os.walk(top, onerror=closed.append):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for path in (os.path.join(folder, name) for name in sorted(names)):
            if not _is_work(path):
                skipped += 1
            elif len(files) == limit:
                return Walk(files, skipped, len(closed), cut=True)
            else:
                files.append(path)
    return Walk(files, skipped, len(closed))


def _is_work(path: str) -> bool:
    """Whether a job may read it; broken links, for example, are included, and fail."""
    try:
        path.encode()
        return stat.S_ISREG(os.stat(path).st_mode)
    except UnicodeEncodeError:
        return False
    except OSError:
        return True


def by_queue(files: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The queues with their files: text and other, and of each kind every second file in the other lane."""
    for kind in KINDS:
        chosen = [path for path in files if is_text(path) == (kind == "text")]
        for lane in range(LANES):
            yield f"{kind}-{lane}", chosen[lane::LANES]


def is_text(path: str) -> bool:
    """Whether the name promises text in UTF-8."""
    return os.path.splitext(path)[1] in TEXT_SUFFIXES


def examine(path: str) -> dict[str, Any]:
    """SHA-256, size and, for text, number of lines. OSError, or UnicodeError for text that is not UTF-8."""
    with open(path, "rb") as file:
        found: dict[str, Any] = {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}
        found["size"] = file.tell()
        if is_text(path):
            file.seek(0)
            found["lines"] = sum(1 for _ in io.TextIOWrapper(file, encoding="utf-8"))
    return found


def handle(job: ActiveJob) -> dict[str, Any]:
    """The handler: a plain function, which the worker runs in a thread."""
    return examine(job.data["path"])


def main() -> None:
    host, port = sys.argv[1:]
    print("ready", flush=True)
    options: dict[str, Any] = {"concurrency": CONCURRENCY, "host": host, "port": port}
    options["on_failed"] = lambda job, error: None  # dead letters are shown at the end
    run_forever(*(Worker(queue, handle, **options) for queue in QUEUES))


if __name__ == "__main__":
    main()
