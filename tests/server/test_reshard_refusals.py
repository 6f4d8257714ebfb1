"""What keeps a folder from being resharded is told in one line that says what to do, and changes nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import pytest
from support import small_folder
from support.folders import as_they_are, contents, shards_of
from support.naming import queue_on, shard_of

from bunqueue import cli
from bunqueue.server.folder.data_folder import (
    COMPLETE,
    RESHARD,
    DataFolderError,
    is_resharded,
    open_data_folder,
    own_data_folder,
)
from shardproc.resharding import build, process, swap
from shardproc.storage import transfer
from shardproc.storage.database import Database

Run = Callable[..., str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "data"
    small_folder.make(folder, 2)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A data folder for two shards of the test's own."""
    return shutil.copytree(made, tmp_path / "data")


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Reshards the folder; what it printed."""

    def run(shards: int, *flags: str, status: int = 0) -> str:
        capsys.readouterr()
        assert process.main([str(folder), str(shards), *flags]) == status
        printed = capsys.readouterr()
        if status == 0:
            return printed.out
        *progress, last = printed.err.splitlines(keepends=True)
        assert all(re.match("looking at|copying|flushing|.* jobs copied$", line) for line in progress)
        assert last.startswith("bunqueue: ")
        return last

    return run


@pytest.fixture
def refusal(folder: Path, run: Run) -> Run:
    """Why it is refused.  Nothing has changed then."""

    def refusal(shards: int = 4, *flags: str, status: int = 1) -> str:
        before = as_they_are(folder)
        text = run(shards, *flags, status=status)
        assert as_they_are(folder) == before
        assert not (folder / RESHARD).exists()
        return text

    return refusal


def sql(file: Path, statement: str, *parameters: Any) -> None:
    """Change a file behind the server's back."""
    with closing(sqlite3.connect(file)) as db, db:
        db.execute(statement, parameters)


# The folder


@pytest.mark.parametrize(("name", "exists"), [("nowhere", False), ("empty", True)])
def test_a_folder_without_jobs_is_none(
    tmp_path: Path, name: str, exists: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / name
    if exists:
        folder.mkdir()
    assert process.main([str(folder), "4"]) == 1
    assert f"the data folder {folder} is not one: there is no manifest.json in it" in capsys.readouterr().err
    assert folder.exists() == exists
    assert not exists or not any(folder.iterdir())


def test_the_same_number(refusal: Run) -> None:
    assert "is made for 2 shards already; start the server with --shards 2" in refusal(2)


@pytest.mark.parametrize("flags", [(), ("--dry-run",)], ids=["", "dry"])
def test_while_a_server_runs(folder: Path, refusal: Run, flags: tuple[str, ...]) -> None:
    with own_data_folder(folder):
        assert "is in use by another server; stop that one" in refusal(4, *flags)


def test_while_a_shard_that_lost_its_router_still_commits(
    folder: Path, refusal: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "LOCK_WAIT_S", 0.01)
    shard = Database(str(folder / "shard-01.db"), full_sync=False)
    try:
        assert "shard-01.db is in use by another process" in refusal()
    finally:
        shard.close()


def test_a_newer_format(folder: Path, refusal: Run) -> None:
    (folder / "manifest.json").write_text('{"format": 2}')
    assert "newer version of bunqueue (format 2); upgrade bunqueue" in refusal()


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (99, "shard-01.db: the data was written by a newer version (schema 99"),
        (0, "shard-01.db: it has no tables yet: start the server once and stop it"),
    ],
)
def test_another_schema(folder: Path, refusal: Run, version: int, words: str) -> None:
    sql(folder / "shard-01.db", f"pragma user_version = {version}")
    assert words in refusal()


def test_a_missing_file(folder: Path, refusal: Run) -> None:
    (folder / "shard-01.db").unlink()
    assert "shard-01.db is missing; restore it from a backup of this folder, or give it up" in refusal()


def test_somebody_else_than_the_server(refusal: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What root makes the server could not open."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert f"belongs to user {os.getuid()}; run this as that user" in refusal()


# What is in the files


def test_garbage_instead_of_a_file(folder: Path, refusal: Run) -> None:
    (folder / "shard-01.db-wal").unlink()
    (folder / "shard-01.db").write_bytes(b"garbage" * 10_000)
    assert "shard-01.db is damaged (file is not a database): restore it from a backup" in refusal()


def test_a_damaged_page(folder: Path, refusal: Run) -> None:
    file = folder / "shard-01.db"
    sql(file, "pragma journal_mode = delete")
    whole = bytearray(file.read_bytes())
    whole[8192:] = bytes(len(whole) - 8192)
    file.write_bytes(whole)
    assert "shard-01.db is damaged (" in refusal()


def test_a_damage_that_is_found_while_copying(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it had come after the check, or the check had not seen it."""
    queues, file = transfer.Source.queues, folder / "shard-01.db"
    sql(file, "pragma journal_mode = delete")

    def damage(source: transfer.Source) -> list[transfer.QueueSize]:
        found = queues(source)
        if source.path == file:
            whole = file.read_bytes()
            file.write_bytes(whole[:8192] + bytes(len(whole) - 8192))
        return found

    monkeypatch.setattr(transfer.Source, "queues", damage)
    monkeypatch.setattr(transfer.Source, "jobs", lambda self: 52)  # as there were
    assert re.search(r"data/shard-01.db is damaged \(", run(4, status=1))
    assert not (folder / RESHARD).exists()
    open_data_folder(folder, 2)


def test_a_damaged_event_log(folder: Path, refusal: Run) -> None:
    sql(folder / "shard-01.db", "update events set payload = x'c1'")
    assert "shard-01.db is damaged (" in refusal()


def test_jobs_of_no_queue(folder: Path, refusal: Run) -> None:
    sql(folder / "shard-01.db", "delete from queues where id = 1")
    assert "jobs belong to no queue" in refusal()


def test_the_file_of_another_shard(folder: Path, refusal: Run) -> None:
    """Somebody has mixed files up."""
    shutil.copy(folder / "shard-01.db", folder / "shard-00.db")
    shutil.copy(folder / "shard-01.db-wal", folder / "shard-00.db-wal")
    assert "shard-00.db is the file of shard 1, not of shard 0" in refusal()


@pytest.mark.parametrize("shards", [1, 4])
def test_flows_under_way(folder: Path, refusal: Run, shards: int) -> None:
    part = json.dumps({"coordinator": 0, "jobs": ""})
    sql(folder / "shard-01.db", "insert into records values ('flow_part', 'f', ?)", part)
    sql(folder / "shard-00.db", "insert into records values ('flow', 'f', ?)", '{"shards": [1]}')
    sql(folder / "shard-00.db", "insert into records values ('flow', 'g', ?)", '{"shards": [1]}')
    text = refusal(shards)
    assert "2 flow(s) were being pushed" in text
    assert "start it once with --shards 2, which settles them" in text


def test_records_of_the_future(folder: Path, refusal: Run) -> None:
    sql(folder / "shard-01.db", "insert into records values ('hologram', 'x', '{}')")
    assert "a kind that this version does not know (hologram): upgrade bunqueue" in refusal()


def test_a_schedule_that_is_there_twice(folder: Path, refusal: Run) -> None:
    """It moved to a queue of another shard, which was killed before it forgot it."""
    for shard in range(2):
        value = json.dumps({"name": "x", "queue": queue_on(shard), "repeatEvery": 1000, "nextRun": 1})
        sql(folder / f"shard-{shard:02d}.db", "insert into records values ('cron', 'x', ?)", value)
    assert "the schedule x is stored twice: start the server with --shards 2, set it again" in refusal(1)


def test_ids_of_removed_jobs_may_be_there_twice(folder: Path, run: Run) -> None:
    for shard in range(2):
        file = folder / f"shard-{shard:02d}.db"
        sql(file, "insert into records values ('gone', 'x', ?)", json.dumps({"at": shard}))
    run(1)
    assert contents(folder)["records"]["gone", "x"]


# The disk


def test_too_little_space(refusal: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 8, 100_000))
    assert "on the disk; nothing was changed" in refusal()
    assert "too little space: free" in refusal(4, "--dry-run")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_full_all_the_same(
    disk: Path, made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else took the space meanwhile."""
    monkeypatch.setattr(process, "_check_space", lambda folder, inventory: None)
    folder = shutil.copytree(made, disk / "data")
    before = as_they_are(folder)
    (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - 500_000))
    assert process.main([str(folder), "8"]) == 1
    text = capsys.readouterr().err
    assert "database or disk is full: free space on the disk of" in text
    assert "nothing was changed" in text
    assert as_they_are(folder) == before
    assert not (folder / RESHARD).exists()
    open_data_folder(folder, 2)


# Interruptions


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_the_user_loses_patience(refusal: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process._Report, "__call__", interrupt)
    assert refusal(4, status=130) == "bunqueue: interrupted; nothing was changed\n"


def complete_and_interrupt(*arguments: Any, complete: Callable[..., None] = swap.complete) -> None:
    complete(*arguments)
    interrupt()


@pytest.mark.parametrize(("step", "instead"), [("complete", complete_and_interrupt), ("finish", interrupt)])
def test_the_user_loses_patience_too_late(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, step: str, instead: Callable[..., None]
) -> None:
    before = contents(folder)
    with monkeypatch.context() as patch:
        patch.setattr(swap, step, instead)
        text = run(4, status=130)
    assert text == (
        "bunqueue: interrupted; the new files are whole: run bunqueue reshard again to put them in place\n"
    )
    assert run(4) == "finished an interrupted reshard from 2 to 4 shards\n"
    assert contents(folder) == before


@pytest.fixture
def interrupted(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, of which the new files for four shards are whole but not in place."""
    with monkeypatch.context() as patch:
        patch.setattr(swap, "finish", interrupt)
        run(4, status=130)
    assert is_resharded(folder)
    return folder


@pytest.mark.parametrize("shards", [2, 4])
def test_no_server_starts_then(interrupted: Path, shards: int) -> None:
    with pytest.raises(DataFolderError, match="run bunqueue reshard again to finish it"):
        open_data_folder(interrupted, shards)


def test_a_dry_run_does_not_finish_it(interrupted: Path, run: Run) -> None:
    assert "run it again without --dry-run to finish it" in run(4, "--dry-run", status=1)
    assert is_resharded(interrupted)


def test_another_number_after_an_interruption(interrupted: Path, run: Run) -> None:
    before = contents(interrupted)
    printed = run(8)
    assert printed.startswith("finished an interrupted reshard from 2 to 4 shards\n")
    assert shards_of(interrupted) == 8
    assert contents(interrupted) == before


@pytest.mark.parametrize(("text", "words"), [("{", "is damaged"), ('{"format": 9}', "upgrade bunqueue")])
def test_a_mark_that_nobody_understands(interrupted: Path, run: Run, text: str, words: str) -> None:
    mark = interrupted / RESHARD / COMPLETE
    mark.write_text(text)
    assert words in run(4, status=1)
    assert mark.exists()


def test_what_a_killed_run_left_is_thrown_away(folder: Path, run: Run) -> None:
    (folder / RESHARD).mkdir()
    (folder / RESHARD / "shard-00.db").write_bytes(b"half")
    open_data_folder(folder, 2)  # a server does not mind
    before = contents(folder)
    run(4)
    assert contents(folder) == before


# What it says


def test_a_dry_run_says_what_would_move_and_changes_nothing(folder: Path, run: Run) -> None:
    before = as_they_are(folder)
    names = set(folder.iterdir())
    printed = run(4, "--dry-run").splitlines()
    assert printed[0] == f"{folder}: from 2 to 4 shards, 104 jobs"
    assert printed[-1] == "nothing was changed (--dry-run)"
    table = [line.split() for line in printed[3:7]]
    assert [int(row[0]) for row in table] == [0, 1, 2, 3]
    stored = contents(folder)
    for row in table:
        shard = int(row[0])
        queues = [name for name in stored["queues"] if shard_of(name, 4) == shard]
        assert row[1:3] == [str(len(queues)), str(13 * len(queues))]
        assert row[5:7] == (row[1:3] if shard >= 2 else ["0", "0"])
    assert as_they_are(folder) == before
    assert {path.name for path in set(folder.iterdir()) - names} <= {
        "server.lock", "shard-00.lock", "shard-01.lock", "shard-00.db-shm", "shard-01.db-shm",
    }  # fmt: skip


def test_long_runs_say_how_far_they_are(
    folder: Path, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "REPORT_S", 0.0)
    monkeypatch.setattr(build, "WINDOW", 20)
    assert process.main([str(folder), "4"]) == 0
    printed = capsys.readouterr()
    assert "done in " in printed.out
    assert "start the server with --shards 4" in printed.out
    lines = printed.err.splitlines()
    assert lines[0] == "looking at file 1 of 2"
    assert lines[-1] == "flushing file 4 of 4"
    told = [int(line.split()[0]) for line in lines if line.endswith(" of 104 jobs copied")]
    assert told == sorted(told)
    assert len(told) >= 6
    assert told[-1] == 104


# The command line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shards", "3"], "--shards: 3 is not allowed; give a power of two from 1 to 64"),
        (["--shards", "128"], "a power of two from 1 to 64"),
        ([], "Missing option '--shards'"),
        (["--shards", "4", "--data-dir", ":memory:"], "keeps nothing; give the folder with --data-dir"),
    ],
)
def test_bad_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reshard", *arguments]) == cli.BAD_USAGE
    assert words in capsys.readouterr().err


def test_events_are_read_on(folder: Path, run: Run) -> None:
    """One log becomes several: whoever has read up to a number reads on from it in each of them."""
    with closing(sqlite3.connect(folder / "shard-01.db")) as db:
        (last,) = db.execute("select max(first_seq + count) - 1 from events").fetchone()
    run(4)
    for shard in (1, 3):
        with closing(sqlite3.connect(folder / f"shard-{shard:02d}.db")) as db:
            assert db.execute("select max(first_seq + count) - 1 from events").fetchone() == (last,)
    run(1)
    with closing(sqlite3.connect(folder / "shard-00.db")) as db:
        first, payload = db.execute("select min(first_seq), payload from events").fetchone()
    assert first > last, "nobody takes new events for those that he has read"
    assert msgpack.unpackb(payload, strict_map_key=False)
