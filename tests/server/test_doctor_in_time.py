"""`bunqueue doctor` answers within five seconds, and a start that is refused ends at once."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from support.cli import Cli
from support.server import NotStarted, Server, StartServer
from support.waiting import wait_until

from bunqueue.server.host.machine_memory import oom_kills
from router.processes.deaths import Deaths

LONGEST_S = 25.0  # 5 s where nobody else works; without bounds it was 30 s and more


def test_doctor_answers_while_a_shard_hangs(make_server: StartServer) -> None:
    server = make_server(shards=2)
    server.start()
    hanging = server.shard_processes()[0].pid
    os.kill(hanging, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        found = Cli(server).json("doctor", status=1)
        assert time.monotonic() - begun < LONGEST_S
        assert (found[0]["status"], found[0]["check"]) == ("problem", "shards"), found
        assert any(row["check"] == "connection" for row in found)
    finally:
        os.kill(hanging, signal.SIGCONT)


def test_a_downgrade_is_refused_at_once(make_server: StartServer) -> None:
    server = make_server(shards=1)
    server.start()
    server.stop()
    with closing(sqlite3.connect(Path(server.data_dir) / "shard-00.db")) as db:
        db.execute("pragma user_version = 9999")
    with pytest.raises(NotStarted) as refused:
        server.start()
    assert refused.value.stderr.count("cannot open the data") == 1
    assert "newer version" in refused.value.stderr


def test_a_shard_that_dies_again_and_again_is_said_first(make_server: StartServer) -> None:
    server = make_server(shards=2)
    server.start()
    for number in range(3):
        server.shard(0).kill()
        wait_until(lambda number=number: deaths(server) == number + 1, "the router sees it")
        wait_until(lambda: len(server.shard_processes()) == 2, "it runs again")
    found = Cli(server).json("doctor", status=1)
    assert found[0]["check"] == "shards"
    assert "shard 0 has died 3 times in the last hour: it was killed by signal 9" in found[0]["finding"]


def test_a_shard_whose_file_cannot_be_opened_says_why(make_server: StartServer) -> None:
    server = make_server(shards=1)
    server.start()
    (process,) = server.shard_processes()
    os.kill(process.pid, signal.SIGSTOP)
    with closing(sqlite3.connect(Path(server.data_dir) / "shard-00.db")) as db:
        db.execute("pragma user_version = 9999")
    process.kill()
    wait_until(lambda: server.log().count("cannot open the data") >= 3, "it tries again")
    found = Cli(server).json("doctor", status=1)
    assert found[0]["check"] == "shards"
    assert "it cannot open shard-00.db" in found[0]["finding"]
    assert "newer version" in found[0]["finding"]


def deaths(server: Server) -> int:
    return server.log().count("shard ended")


def test_kills_of_the_kernel_are_counted_in_the_group(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    own = tmp_path / "fs" / "a" / "b"
    own.mkdir(parents=True)
    groups.write_text("0::/a/b\n")
    assert oom_kills(groups, tmp_path / "fs") == 0
    (own / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 1\n")
    assert oom_kills(groups, tmp_path / "fs") == 2
    groups.write_text("7:memory:/a/b\n")
    (tmp_path / "fs" / "memory" / "a" / "b").mkdir(parents=True)
    (tmp_path / "fs" / "memory" / "a" / "b" / "memory.oom_control").write_text("under_oom 0\noom_kill 5\n")
    assert oom_kills(groups, tmp_path / "fs") == 5


def test_signal_9_while_the_count_went_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([1, 1, 2])
    monkeypatch.setattr("router.processes.deaths.oom_kills", lambda: next(counts))
    deaths = Deaths()
    assert deaths.note(0, -9, "") == "it was killed by signal 9"
    assert "had used up its memory" in deaths.note(0, -9, "")
