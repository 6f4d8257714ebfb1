"""Finds the program that holds the write lock of a shard's file, for the text of a refusal.

Linux lists all locks in /proc/locks, by inode and byte. Elsewhere, or when the program is not visible (in
another container), the text says how to find it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_WRITE_LOCK = 120
"""The byte of the -shm file that a writer locks: https://sqlite.org/walformat.html#wal_locks."""
_MOST = 3  # programs that are named


def holder(path: str) -> str:
    """A description of the program that holds the lock."""
    return (
        _named(_holding(Path(f"{path}-shm")))
        or _named(_using(path))
        or f"a program that cannot be seen from here (fuser {path} names those that have the file open)"
    )


def _named(found: Iterator[int]) -> str:
    """Processes as text; "" without any."""
    others = [pid for pid in dict.fromkeys(found) if pid > 0 and pid != os.getpid()]
    return ", ".join(f"process {pid}{_name(pid)}" for pid in others[:_MOST])


def _name(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
    return f" ({''.join(each if each.isprintable() else '?' for each in text)})"


def _holding(shm: Path) -> Iterator[int]:
    """The processes that have the byte locked."""
    with suppress(OSError, ValueError, IndexError):
        inode = str(shm.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if "->" in fields or "POSIX" not in fields or fields[-3].rpartition(":")[2] != inode:
                continue  # it waits for a lock, or has one of another file
            last = float("inf") if fields[-1] == "EOF" else int(fields[-1])
            if "WRITE" in fields and int(fields[-2]) <= _WRITE_LOCK <= last:
                yield int(fields[-4])


def _using(path: str) -> Iterator[int]:
    """The processes of this user that have the file open; as root, those of all users."""
    with suppress(OSError):
        file = os.stat(path)
        for folder in Path("/proc").glob("[0-9]*/fd"):
            with suppress(OSError):
                for each in folder.iterdir():
                    with suppress(OSError):
                        if os.path.samestat(each.stat(), file):
                            yield int(folder.parent.name)
                            break
