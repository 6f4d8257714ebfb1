"""SQLite without locks for threads, in a process of its own: the library is told for the whole process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, sqlite3, sys
from shardproc.storage.one_thread import without_locks

done = without_locks()
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("create table t (value)")
db.executemany("insert into t values (?)", [(number,) for number in range(1000)])
assert db.execute("select sum(value) from t").fetchone() == (499_500,)
library = ctypes.CDLL(sys.modules["_sqlite3"].__file__)
library.sqlite3_memory_used.restype = ctypes.c_int64
print(done, library.sqlite3_memory_used())
"""


def test_a_library_without_locks_works_and_counts_no_memory(tmp_path: object) -> None:
    command = [sys.executable, "-c", PROGRAM, f"{tmp_path}/a.db"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "0"], done.stderr
