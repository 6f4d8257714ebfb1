"""Reshards copies of a folder over and over, and is killed each time a bit later.

    python reshard_killer.py TEMPLATE WORK SHARDS POINTS

Each child of this process kills itself before one of the calls that may change something on disk: before each
of those after the new files are whole, and before POINTS of the others.  What it leaves behind has to be
valid, and a second run has to finish it.  Writes a line of JSON: how often the child was killed before and
after the new files were whole.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.folders import contents, is_sound, shards_of

from bunqueue.server.folder.data_folder import (
    RESHARD,
    DataFolderError,
    is_resharded,
    open_data_folder,
    shard_file,
)
from shardproc.resharding import swap
from shardproc.resharding.process import reshard

FILES = (
    "open",
    "write",
    "flush",
    "close",
    "fsync",
    "replace",
    "rename",
    "unlink",
    "remove",
    "mkdir",
    "rmdir",
)
CHANGING = frozenset((*FILES, "execute", "executemany", "executescript"))


def watch(act: Callable[[int], None]) -> None:
    """Call ``act`` with 1, 2, ... before each call that may change something."""
    count = 0

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if event == "c_call" and argument.__name__ in CHANGING:
            count += 1
            act(count)

    sys.setprofile(look)


def child(work: Callable[[], None]) -> int:
    """Do it in a child; its exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def calls(template: Path, work: Path, shards: int) -> tuple[int, int]:
    """How many calls there are until the new files are whole, and in all."""
    seen = [0, 0]

    def note(count: int) -> None:
        seen[1] = count

    complete = swap.complete

    def completed(*arguments: Any) -> None:
        complete(*arguments)
        seen[0] = seen[1]

    def run() -> None:
        swap.complete = completed
        watch(note)
        reshard(work, shards, dry_run=False)
        sys.setprofile(None)
        (work / "calls").write_text(json.dumps(seen))

    shutil.copytree(template, work)
    assert child(run) == 0
    before, total = json.loads((work / "calls").read_text())
    shutil.rmtree(work)
    return before, total


def kill_at(point: int, work: Path, shards: int) -> None:
    def die(count: int) -> None:
        if count == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def run() -> None:
        watch(die)
        reshard(work, shards, dry_run=False)

    assert child(run) == -signal.SIGKILL


def main(template: Path, work: Path, shards: int, points: int) -> None:
    old, expected = shards_of(template), contents(template)
    shutil.copytree(template, work)
    reshard(work, shards, dry_run=False)  # loads all that it needs, which would count as calls
    shutil.rmtree(work)
    whole, total = calls(template, work, shards)
    step = max(1, whole // points)
    found = {"before": 0, "after": 0}
    for point in [*range(1, whole, step), *range(whole - 8, total)]:
        shutil.copytree(template, work)
        kill_at(point, work, shards)
        if is_resharded(work):
            found["after"] += 1
            with pytest.raises(DataFolderError, match="run bunqueue reshard again"):
                open_data_folder(work, old)
        elif shards_of(work) == old:
            found["before"] += 1
            open_data_folder(work, old)
            assert contents(work) == expected, point
        if is_resharded(work) or shards_of(work) == old:
            reshard(work, shards, dry_run=False)
        open_data_folder(work, shards)
        assert contents(work) == expected, point
        assert is_sound(work)
        assert not [number for number in range(shards, old) if shard_file(work, number).exists()]
        assert not (work / RESHARD).exists() or not any((work / RESHARD).iterdir())
        shutil.rmtree(work)
    print(json.dumps(found), file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
