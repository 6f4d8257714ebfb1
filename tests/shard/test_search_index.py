"""What is written for searches, where a job gets its number long before it is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from bunqueue.model.job import NIL, Job
from bunqueue.protocol.job_view import stored_options
from shardproc.storage.database import Database
from shardproc.storage.search.index import BITS, NAME, SearchIndex, word

SIZE, NOW = 1 << BITS, 1_700_000_000_000


def job(seq: int, name: str) -> Job:
    return Job(seq, f"id-{seq}", "q", name, NIL, stored_options(None), 0, NOW, NOW)


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("closed", [False, True])
def test_a_late_job_is_among_the_words_of_its_block(tmp_path: Path, others: bool, closed: bool) -> None:
    database = Database(str(tmp_path / "0.db"), full_sync=False)
    index = SearchIndex(database.connection)
    index.check()
    index.recover(1)
    if others:
        index.stored_other(job(1, "first"), NOW)
    index.wrote(SIZE if closed else SIZE - 10)  # the number of the late one was given away, too
    index.stored_other(job(500, "late"), NOW)
    if not closed:
        index.stored_other(job(SIZE - 2, "last"), NOW)
        index.wrote(SIZE)
    row = database.connection.execute("select words from search_blocks where block = 0").fetchone()
    assert row is None or word(NAME, "late") in {row[0][at : at + 4] for at in range(0, len(row[0]), 4)}
    assert (row is None) == (closed and not others)  # without one, the block is looked at by every search
    database.close()
