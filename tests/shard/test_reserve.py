"""The file that sets space aside has blocks for all of its size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardproc.storage.reserve import BLOCK, STEP, Reserve


def allocated(path: Path) -> int:
    return path.stat().st_blocks * BLOCK


def test_it_grows_by_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked = tmp_path / "shard-00.reserve", []
    allocate = os.posix_fallocate

    def counted(descriptor: int, begin: int, size: int) -> None:
        asked.append((begin, size))
        allocate(descriptor, begin, size)

    monkeypatch.setattr(os, "posix_fallocate", counted)
    reserve = Reserve(path)
    assert all(reserve.ensure(size, STEP) for size in (STEP, 3 * STEP - 1, 2 * STEP))
    assert asked == [(0, STEP), (STEP, 2 * STEP)]
    assert reserve.size == path.stat().st_size == 3 * STEP <= allocated(path)


def test_a_copy_that_is_a_hole_gets_its_blocks_when_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "shard-00.reserve"
    with path.open("wb") as file:
        file.truncate(STEP)
    assert allocated(path) < STEP
    assert Reserve(path).ensure(2 * STEP, 0)
    assert allocated(path) >= 2 * STEP
