"""Killed at any moment, resharding leaves files of which one set is valid, and a second run finishes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import small_folder
from support.budget import budget
from support.folders import contents
from support.server import ROOT

from bunqueue.server.folder import data_folder
from bunqueue.server.folder.data_folder import COMPLETE, RESHARD
from shardproc.resharding.process import reshard

KILLER = Path(__file__).with_name("reshard_killer.py")
MEMORY = Path("/dev/shm")  # a kill loses nothing that was written, so nothing need go to the disk


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize(("old", "new"), [(4, 2), *budget([], [(2, 4)])])
def test_a_kill_at_any_moment(place: Path, old: int, new: int) -> None:
    small_folder.make(place / "template", old)
    result = subprocess.run(
        [sys.executable, str(KILLER), str(place / "template"), str(place / "work"), str(new), "20"],
        env={"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stderr.splitlines()[-1])
    assert found["before"] >= 20
    assert found["after"] >= 20


class Steps(list[tuple[str, str]]):
    """What happened to files, in order: ("sync" or "replace", name)."""

    def at(self, what: str, name: str) -> int:
        """When that happened last."""
        return max(place for place, step in enumerate(self) if step == (what, name))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Steps:
    found = Steps()
    fsync, replace = os.fsync, Path.replace

    def name_of(path: Path) -> str:
        return path.relative_to(tmp_path).as_posix() if path.is_relative_to(tmp_path) else "above"

    def record_sync(number: int) -> None:
        fsync(number)
        found.append(("sync", name_of(Path(os.readlink(f"/proc/self/fd/{number}")))))

    def record_replace(self: Path, target: Path) -> Path:
        found.append(("replace", name_of(Path(target))))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_replace)
    return found


def test_a_power_loss_finds_one_whole_set_of_files(tmp_path: Path, steps: Steps) -> None:
    """No test can cut the power; each step is on disk before the next one relies on it."""
    folder = tmp_path / "data"
    small_folder.make(folder, 2)
    before = contents(folder)
    steps.clear()
    reshard(folder, 4, dry_run=False)
    assert contents(folder) == before
    complete = steps.at("replace", f"data/{RESHARD}/{COMPLETE}")
    manifest = steps.at("replace", f"data/{data_folder.NAME}")
    synced = [name for what, name in steps[:complete] if what == "sync"]
    for number in range(4):
        assert f"data/{RESHARD}/shard-{number:02d}.db" in synced
        assert complete < steps.at("replace", f"data/shard-{number:02d}.db") < manifest
    assert synced[-3:] == [f"data/{RESHARD}", "data", f"data/{RESHARD}/.{COMPLETE}.new"]
    assert steps[complete + 1] == ("sync", f"data/{RESHARD}")
    last = max(steps.at("replace", f"data/shard-{number:02d}.db") for number in range(4))
    assert ("sync", "data") in steps[complete : last - 3], "the logs of the old files are gone for good"
    assert ("sync", "data") in steps[last:manifest]
    assert steps[-1] == ("sync", "data")
