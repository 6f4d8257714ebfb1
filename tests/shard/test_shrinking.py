"""The file of a shard that serves gets smaller after a purge, in slices, and nothing of it is lost."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from engine.shard_driver import Driver

from shardproc.storage import shrinking
from shardproc.storage.database import PAGE_SIZE

JOBS, SIZE = 60, 200_000  # 12 MB


def fill(driver: Driver) -> list[str]:
    ids = [driver.push(queue=f"q{number % 2}", data="x" * SIZE, n=number) for number in range(JOBS)]
    driver.commit()
    return ids


def size(driver: Driver) -> int:
    driver.shard.store.database.checkpoint("passive")
    return Path(driver.path).stat().st_size


def shrink(driver: Driver) -> int:
    """Let it shrink; the most pages that were released at once."""
    most, pages = 0, driver.shard.store.database.pages
    for _ in range(400):
        driver.now += 1_000 if not driver.shard._shrinking.is_running else shrinking.PACE_MS
        before = pages()[0]
        driver.shard._give_back(driver.now)
        most = max(most, before - pages()[0])
    return most


@pytest.fixture
def filled(tmp_path: Path) -> Driver:
    driver = Driver(str(tmp_path / "jobs.db"))
    fill(driver)
    return driver


def test_a_file_shrinks_after_a_purge_and_what_is_left_is_whole(filled: Driver) -> None:
    before = size(filled)
    assert before > JOBS * SIZE
    filled.ask(cmd="Drain", queue="q0")
    most = shrink(filled)
    pages, free = filled.shard.store.database.pages()
    assert free < shrinking.MIN_FREE / 2
    assert size(filled) == pages * PAGE_SIZE < before * 0.75
    assert 0 < most <= shrinking.SLICE, "which takes some 0.3 ms"
    assert filled.rows("pragma integrity_check") == [("ok",)]
    left = filled.rows("select length(data) from jobs")
    assert len(left) == JOBS // 2
    filled.restart()
    assert filled.ask(cmd="GetJobCounts", queue="q1")["counts"]["waiting"] == JOBS // 2
    filled.close()


def test_a_slice_is_as_large_as_it_says(filled: Driver) -> None:
    filled.ask(cmd="Drain", queue="q0")
    database = filled.shard.store.database
    pages, free = database.pages()
    assert database.release_pages(shrinking.SLICE) == shrinking.SLICE
    assert database.pages() == (pages - shrinking.SLICE, free - shrinking.SLICE)
    filled.close()


def test_space_that_is_soon_used_again_stays(filled: Driver) -> None:
    before = size(filled)
    filled.ask(cmd="Drain", queue="q0")
    for _ in range(shrinking.PATIENCE_MS // 2_000):
        filled.now += 1_000
        filled.shard._give_back(filled.now)
    assert size(filled) == before
    fill(filled)
    assert size(filled) < before * 1.6
    filled.close()


def test_a_crash_between_two_slices_leaves_a_whole_file(filled: Driver) -> None:
    filled.ask(cmd="Drain", queue="q0")
    slices = 0
    while slices < 3:
        filled.now += 1_000
        filled.shard._give_back(filled.now)
        slices += filled.shard._shrinking.is_running
    filled.restart()
    assert filled.rows("pragma integrity_check") == [("ok",)]
    shrink(filled)
    assert filled.shard.store.database.pages()[1] < shrinking.MIN_FREE / 2
    filled.close()


def test_a_file_of_an_older_version_is_left_alone_until_it_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as old:
        old.execute("pragma page_size = 8192")
        old.execute("pragma journal_mode = wal")
        old.execute("create table t (a)")
        old.execute("drop table t")
    old.close()
    driver = Driver(str(path))
    fill(driver)
    assert not driver.shard.store.database.is_incremental()
    driver.ask(cmd="Drain", queue="q0")
    driver.ask(cmd="Drain", queue="q1")
    shrink(driver)
    driver.shard.compact()
    assert driver.shard.store.database.is_incremental()
    driver.close()
