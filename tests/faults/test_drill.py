"""The fire drill: a server ships what changes to S3, and dies with its disk. What was shipped is there."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from support.budget import budget
from support.cli import Cli
from support.naming import queues_on
from support.s3 import s3_server
from support.server import Server, StartServer
from support.waiting import wait_until
from support.wire import now_ms

from bunqueue import Admin, BunqueueError, Queue
from bunqueue.cli.commands.top.numbers import samples_of

SHARDS = 2
ROUNDS = budget(1, 6)
TARGET = "s3://jobs/drill"


class Load:
    """Clients that add jobs and complete them, and what the server has said to that."""

    def __init__(self, server: Server, round_: int) -> None:
        self._server, self._round = server, round_
        self.queues = [next(queues_on(shard, f"drill{round_}", SHARDS)) for shard in range(SHARDS)]
        self.added: dict[str, float] = {}  # id -> when the server had answered
        self.completed: dict[str, float] = {}
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=work, args=(queue,))
            for queue in self.queues
            for work in (self._add, self._complete)
        ]

    def _add(self, name: str) -> None:
        with Queue(name, port=self._server.port) as queue:
            while not self._ended.is_set():
                with suppress(BunqueueError):  # a shard was killed: whether they are there is not known
                    jobs = queue.add_bulk([("job", {"n": number, "fill": "x" * 200}) for number in range(5)])
                    self.added.update(dict.fromkeys((job.id for job in jobs), now_ms()))

    def _complete(self, name: str) -> None:
        with Queue(name, port=self._server.port) as queue:
            while not self._ended.is_set():
                with suppress(BunqueueError):
                    with queue.take(timeout=100) as job:
                        pass
                    if job is not None:
                        self.completed[job.id] = now_ms()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def dying(self) -> None:
        """The server dies now: from here on errors mean nothing."""
        self._ended.set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def shipped(server: Server) -> float:
    """Up to when all is stored, epoch ms."""
    with Admin(port=server.port) as admin:
        samples = samples_of(admin.prometheus())
    return samples["backup_last_success_timestamp_seconds", frozenset()] * 1000


def test_what_was_shipped_is_there_once(tmp_path: Path, make_server: StartServer) -> None:
    with s3_server() as environ, pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        data = tmp_path / "data-0"
        for round_ in range(ROUNDS):
            server = make_server("--backup", TARGET, data_dir=data, shards=SHARDS)
            server.environ = environ
            server.start()
            load = Load(server, round_)
            load.start()
            reach(server, load)
            server.kill_shards(only=round_ % SHARDS)  # the next one goes on with its log
            reach(server, load)
            server.backup().kill()  # the next one begins with a backup
            reach(server, load)
            until = now_ms()
            wait_until(lambda server=server, until=until: shipped(server) > until, "it is stored")
            load.dying()
            server.kill_all()
            load.join()
            shutil.rmtree(data)
            data = tmp_path / f"data-{round_ + 1}"
            made = Cli(server).json("restore", TARGET, "--data-dir", str(data))
            assert made["moment"] > until
            check(make_server(data_dir=data, shards=SHARDS), load, made["moment"])


def reach(server: Server, load: Load) -> None:
    """Wait until some work is done."""
    before = len(load.completed)
    wait_until(lambda: len(load.completed) > before + 50, "jobs complete")


def check(server: Server, load: Load, moment: float) -> None:
    server.start()
    found: dict[str, str] = {}
    for name in load.queues:
        with Queue(name, port=server.port) as queue:
            for state in ("waiting", "active", "completed", "failed", "delayed"):
                for job in queue.iter_jobs(state):
                    assert job.id not in found, "it is there twice"
                    found[job.id] = state
    missing = [each for each, at in load.added.items() if at <= moment and each not in found]
    assert missing == []
    again = [each for each, at in load.completed.items() if at <= moment and found[each] != "completed"]
    assert again == []
    assert {"completed", "waiting"} <= set(found.values())
    server.stop()
