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
from support.server import NotStarted, StartServer

LONGEST_S = 15.0  # 5 s where nobody else works; without bounds it was 30 s and more


def test_doctor_answers_while_a_shard_hangs(make_server: StartServer) -> None:
    server = make_server(shards=2)
    server.start()
    hanging = server.shard_processes()[0].pid
    os.kill(hanging, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        found = Cli(server).json("doctor", status=1)
        assert time.monotonic() - begun < LONGEST_S
        assert any(row["status"] == "problem" for row in found), found
        assert found[0]["check"] == "connection"
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
