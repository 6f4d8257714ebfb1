"""The files of a server that does not run are counted anew."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.cli import Cli
from support.server import ROOT, Server, StartServer
from support.waiting import wait_until

from bunqueue.cli.framework import exits

FILE = "shard-00.db"


@pytest.fixture
def stopped(make_server: StartServer, tmp_path: Path) -> tuple[Cli, Path]:
    """The folder of a server that was killed in the middle of its work."""
    server: Server = make_server(shards=1)
    server.start()
    cli = Cli(server)
    cli("push", "counted", "--lines", "-", "--max-attempts", "1", stdin="1\n2\n3\n4\n5\n")
    for verb in ("ack", "fail", "heartbeat"):
        job_id = cli("pull", "counted").value.split("\t")[0]
        cli(verb, job_id)
    server.kill_all()
    # A copy: what a server itself leaves has to be in order, and tests spoil this.
    return cli, Path(shutil.copytree(tmp_path / "data", tmp_path / "copy"))


def doctor(cli: Cli, folder: Path, status: int = exits.DONE) -> dict[str, tuple[str, str]]:
    rows = cli.json("doctor", "--data-dir", str(folder), status=status)
    return {row["check"]: (row["status"], row["finding"]) for row in rows}


def test_what_a_killed_server_leaves_is_in_order(stopped: tuple[Cli, Path]) -> None:
    found = doctor(*stopped)
    assert {status for status, _ in found.values()} == {"ok"}
    assert found["jobs"][1] == "3 unfinished, 1 completed, 1 dead, in 1 queue"
    assert len(found) >= 10


SECOND_STATE = (
    "insert into locks (seq, token, owner, ttl, started_at, conn) select seq, '', '', 1, 1, 1 from {}"
)
SPOILING = [
    ("completed jobs", "update queues set completed = 7", "1 queues count their completed jobs wrongly: c"),
    ("dead letters", "update queues set failed = 0", "1 queues count their dead letters wrongly: c"),
    ("one state a job", SECOND_STATE.format("completed"), "1 jobs are in two states at once"),
    ("one state a job", SECOND_STATE.format("dead_letters"), "1 jobs are in two states at once"),
    ("states have jobs", "delete from jobs where seq in (select seq from completed)", "belong to no job"),
    ("jobs have queues", "update jobs set queue_id = 99", "5 jobs belong to no queue"),
    ("unfinished jobs", "insert or replace into meta values ('live_from', '1000')", "would be passed over"),
    ("ids", "update jobs set id = 'same', own_id = 1", "several jobs"),
    ("unique keys", "update jobs set unique_key = 'k', holds_key = 1", "are held by several jobs"),
    ("results", "update completed set large = 1", "1 large results are missing"),
]


@pytest.mark.parametrize(("check", "statement", "words"), SPOILING)
def test_what_contradicts_itself_is_named(
    stopped: tuple[Cli, Path], check: str, statement: str, words: str
) -> None:
    cli, folder = stopped
    spoil(folder, lambda connection: connection.execute(statement))
    found = doctor(cli, folder, exits.FAILED)
    status, finding = found[check]
    assert (status, words in finding) == ("problem", True), finding
    assert finding.startswith("shard 0: ")


def spoil(folder: Path, work: Callable[[sqlite3.Connection], object]) -> None:
    with closing(sqlite3.connect(folder / FILE)) as connection:
        work(connection)
        connection.commit()


def test_a_damaged_file(stopped: tuple[Cli, Path]) -> None:
    cli, folder = stopped
    spoil(folder, lambda connection: connection.execute("pragma wal_checkpoint(truncate)"))
    data = bytearray((folder / FILE).read_bytes())
    data[8192:40960] = b"\xff" * (40960 - 8192)
    (folder / FILE).write_bytes(bytes(data))
    assert doctor(cli, folder, exits.FAILED)["file"][0] == "problem"


def test_folders_that_cannot_be_counted(server: Server, tmp_path: Path) -> None:
    cli = Cli(server)
    used = cli("doctor", "--data-dir", str(server.data_dir), status=exits.USAGE)
    assert "is in use by another server" in used.err
    none = cli("doctor", "--data-dir", str(tmp_path / "none"), status=exits.USAGE)
    assert "there is no folder" in none.err
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir()
    assert "is not one" in cli("doctor", "--data-dir", str(tmp_path / "empty"), status=exits.USAGE).err
    assert list((tmp_path / "empty").iterdir()) == []


def test_the_process_that_counts_ends_with_doctor(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 1, "shards": 1}')
    os.mkfifo(tmp_path / FILE)  # whoever opens it to read waits for a writer
    program = [sys.executable, "-m", "bunqueue", "doctor", "--data-dir", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    doctor = subprocess.Popen(program, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{doctor.pid}/task/{doctor.pid}/children")
    try:
        wait_until(lambda: children.read_text().strip(), "it has a child")
        (child,) = children.read_text().split()
        counting = Path(f"/proc/{child}/cmdline")
        wait_until(lambda: b"shardproc.recount" in counting.read_bytes(), "it counts")
        fifo = os.open(tmp_path / FILE, os.O_WRONLY)  # returns when somebody reads
        doctor.kill()
        doctor.wait()
        wait_until(lambda: not counting.exists() or not counting.read_bytes(), "it has ended")
        os.close(fifo)
    finally:
        doctor.kill()
        doctor.wait()
