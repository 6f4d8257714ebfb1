"""What is read of a file that is being written to is the file at one moment, however its log is reset."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.budget import NIGHTLY, budget

from bunqueue.backup.live_file import LiveFile, one_moment
from bunqueue.server.folder.unreadable import UnreadableShard

PAGE = 1024
CHECKPOINTS = ("passive", "restart", "truncate")
CHANGES = 200


class Writer:
    """Changes a file at random, as SQLite lets it: also rolled back, shrunk, written anew."""

    def __init__(self, file: Path, chance: random.Random) -> None:
        self._chance = chance
        self.db = sqlite3.connect(file, isolation_level=None)
        self.db.executescript(
            f"pragma page_size={PAGE}; pragma auto_vacuum=incremental; pragma journal_mode=wal;"
            f"pragma wal_autocheckpoint={chance.choice([4, 10, 40])};"
            f"pragma journal_size_limit={chance.choice([5_000, 20_000, 200_000])};"
            "pragma synchronous=off; pragma busy_timeout=0; create table t (k integer primary key, v blob)"
        )

    def step(self) -> None:
        kind = self._chance.random()
        if kind < 0.8:
            self._transaction()
        elif kind < 0.87:
            self.db.execute("pragma incremental_vacuum(3)").fetchall()
        elif kind < 0.97:
            self.db.execute(f"pragma wal_checkpoint({self._chance.choice(CHECKPOINTS)})").fetchall()
        else:
            self.db.execute("vacuum")

    def _transaction(self) -> None:
        chance = self._chance
        self.db.execute("begin")
        for _ in range(chance.randrange(1, 20)):
            key = chance.randrange(200)
            if chance.random() < 0.6:
                value = chance.randbytes(chance.randrange(1, 3000))
                self.db.execute("insert or replace into t values (?, ?)", (key, value))
            else:
                upto = key + chance.choice([0, 0, 0, 50])
                self.db.execute("delete from t where k between ? and ?", (key, upto))
        self.db.execute("rollback" if chance.random() < 0.15 else "commit")


def rows(database: sqlite3.Connection) -> list[tuple[int, bytes]]:
    return database.execute("select * from t order by k").fetchall()


def check(pages: dict[int, bytes], count: int, reader: sqlite3.Connection, scratch: Path) -> None:
    assert sorted(pages) == list(range(1, count + 1))
    copy = bytearray(b"".join(body for _, body in sorted(pages.items())))
    copy[18:20] = b"\1\1"  # without a log
    scratch.write_bytes(copy)
    with closing(sqlite3.connect(scratch)) as database:
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert rows(database) == rows(reader)


def run(seed: int, folder: Path) -> None:
    chance = random.Random(seed)
    writer = Writer(folder / "live.db", chance)
    pages: dict[int, bytes] = {}
    with closing(LiveFile(folder / "live.db")) as live, closing(writer.db):
        for _ in range(CHANGES):
            kind = chance.random()
            if kind < 0.7:
                writer.step()
            elif kind < 0.85:
                live.follow()
            elif kind < 0.92:
                with live.fixed():
                    writer.step()
                    pages.update(live.take(chance.randrange(1, 30)))
            else:
                with live.fixed() as reader:
                    for _ in range(chance.randrange(3)):
                        writer.step()
                    while taken := live.take(7):
                        pages.update(taken)
                    pages = {number: body for number, body in pages.items() if number <= live.fixed_pages}
                    check(pages, live.fixed_pages, reader, folder / "copy.db")


def seeds() -> Iterator[int]:
    first = random.randrange(1_000_000) if NIGHTLY else 0
    yield from range(first, first + budget(8, 500))


def test_pages_that_are_taken_make_the_file_at_one_moment(tmp_path: Path) -> None:
    for seed in seeds():
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            run(seed, folder)
        except Exception as error:
            raise AssertionError(f"with the seed {seed}") from error


def test_unchanged_pages_are_not_taken_again(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "live.db", random.Random(1))
    with closing(writer.db) as db, closing(LiveFile(tmp_path / "live.db")) as live:
        db.execute("pragma wal_autocheckpoint = 1000")
        db.execute("pragma journal_size_limit = 1000000")
        for key in range(100):
            db.execute("insert into t values (?, zeroblob(3000))", (key,))
        with live.fixed():
            assert len(live.take(10_000)) > 300
        live.follow()
        assert live.changed == 0
        db.execute("update t set v = 'x' where k = 50")
        db.execute("pragma wal_checkpoint(restart)").fetchall()
        db.execute("update t set v = 'y' where k = 60")  # at the beginning of the log
        live.follow()
        assert 0 < live.changed < 20
        assert live.lost_track == 0


def test_the_moment_of_several_files_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that changes one file after the other: neither is ever seen to be ahead by more."""
    files = [tmp_path / f"{number}.db" for number in range(3)]
    databases = [sqlite3.connect(file, isolation_level=None) for file in files]
    for db in databases:
        db.executescript("pragma journal_mode = wal; create table t (k integer primary key)")
    lives = [LiveFile(file) for file in files]
    for number in range(30):
        for at, db in enumerate(databases):
            db.execute("insert into t values (?)", (number,))
            with one_moment(lives) as readers:
                assert [r.execute("select count(*) from t").fetchone()[0] - number for r in readers] == [
                    int(place <= at) for place in range(3)
                ]
                db.execute("insert into t values (?)", (1000 + number,))  # nobody waits for the reader
                db.execute("delete from t where k >= 1000")
    monkeypatch.setattr("bunqueue.backup.live_file.MOMENTS", 2)
    databases[0].execute("begin immediate")  # a shard that is always busy: the moment is not exact
    with one_moment(lives) as readers:
        assert rows_of(readers[0]) == 30
    for each in (*lives, *databases):
        each.close()


def rows_of(reader: sqlite3.Connection) -> int:
    return int(reader.execute("select count(*) from t").fetchone()[0])


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableShard, match=r"none\.db cannot be read: No such file"):
        LiveFile(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("a text is no database" * 100)
    with pytest.raises(UnreadableShard, match="cannot be read: file is not a database"):
        LiveFile(tmp_path / "text.db")
