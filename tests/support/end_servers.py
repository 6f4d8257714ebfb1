"""Ends the servers of a test run that could not do so itself, because it was killed.

    python end_servers.py PREFIX

waits for the end of its standard input, which is the end of the test run, and then kills every process whose
temporary folder begins with PREFIX, and removes these folders.
"""

from __future__ import annotations

import atexit
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

TRIES = 50
PAUSE_S = 0.1


@cache
def folder_prefix() -> str:
    """What the temporary folders of this run begin with; from the first call on they are watched."""
    prefix = f"bqt-{os.getpid()}-"
    watched = os.path.join(tempfile.gettempdir(), prefix)
    watcher = subprocess.Popen(
        [sys.executable, __file__, watched], stdin=subprocess.PIPE, start_new_session=True, cwd="/"
    )

    def end() -> None:
        watcher.communicate()

    atexit.register(end)
    return prefix


def _victims(prefix: str) -> list[int]:
    wanted = f"TMPDIR={prefix}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                environ = (entry / "environ").read_bytes().split(b"\0")
                if any(variable.startswith(wanted) for variable in environ):
                    found.append(int(entry.name))
    return found


def main(prefix: str) -> None:
    sys.stdin.buffer.read()
    for _ in range(TRIES):  # a router that is being killed may just have started a shard
        victims = _victims(prefix)
        if not victims:
            break
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)  # until they are gone
    for folder in glob.glob(glob.escape(prefix) + "*"):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
