"""Another program that holds the write lock of a shard's file, as an open sqlite3 would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
db.execute("begin immediate")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def write_locked(file: Path) -> Iterator[int]:
    """The file is locked within, by the process whose number this gives."""
    command = [sys.executable, "-c", _PROGRAM, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"locked\n"
        yield program.pid
        assert program.stdin is not None
        program.stdin.close()
