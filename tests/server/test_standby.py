"""A standby: it shows what its primary has shipped, refuses changes, and takes over."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from support.cli import Cli
from support.naming import queues_on
from support.procfs import children, runs
from support.server import NotStarted, Server, StartServer, quiet_port
from support.table import table
from support.waiting import wait_until

from bunqueue import Admin, CommandFailed, Queue, new_key
from bunqueue.cli.framework import exits
from bunqueue.server.folder.data_folder import is_standby

SHARDS = 2
ENDED = 9  # another server has taken over


def waiting(server: Server, names: list[str]) -> list[int]:
    with Admin(port=server.port) as admin:
        counts = {queue.name: queue.waiting for queue in admin.list_queues()}
    return [counts.get(name, 0) for name in names]


def test_it_shows_refuses_and_takes_over(make_server: StartServer, tmp_path: Path) -> None:
    target, port = str(tmp_path / "target"), quiet_port()
    primary = make_server("--backup", target, shards=SHARDS)
    primary.start()
    names = [next(queues_on(shard, "jobs", SHARDS)) for shard in range(SHARDS)]
    for name in names:
        with Queue(name, port=primary.port) as queue:
            queue.add("first")
    standby = make_server("--follow", target, data_dir=tmp_path / "standby", shards=SHARDS, http_port=port)
    standby.port = quiet_port()  # the same after it has restarted
    standby.start()
    wait_until(lambda: waiting(standby, names) == [1, 1], "the first jobs are shown")
    with Queue(names[0], port=standby.port) as queue:
        for change in (
            lambda: queue.add("no"),
            lambda: queue.pause(),
            lambda: queue.take(timeout=1).__enter__(),
        ):
            with pytest.raises(CommandFailed, match=f"primary at 127.0.0.1:{primary.port}") as refused:
                change()
            assert refused.value.server_code == "STANDBY"
    over_http = httpx.post(f"{standby.url}/queues/{names[0]}/jobs", json={"data": 1})
    assert (over_http.status_code, over_http.json()["code"]) == (503, "STANDBY")
    with Admin(port=standby.port) as admin, pytest.raises(CommandFailed, match="stop it first") as refused:
        admin.promote_standby()
    assert refused.value.server_code == "PRIMARY_ALIVE"
    with Admin(port=primary.port) as admin, pytest.raises(CommandFailed) as refused:
        admin.promote_standby()
    assert refused.value.server_code == "NO_STANDBY"

    assert httpx.get(f"{standby.url}/ready").status_code == 503
    health = httpx.get(f"{standby.url}/health").json()
    assert health["standby"]["source"] == target
    assert health["standby"]["lag"] < 60_000
    cli = Cli(standby)
    found = {each["check"]: each["status"] for each in cli.json("doctor", status=None)}
    assert found["standby"] == "ok"

    refused_copy = cli("snapshot", "--data-dir", str(tmp_path / "standby"), "--out", "x", status=exits.USAGE)
    assert "is that of a standby: start it with --follow" in refused_copy.err

    follower = next(child for child in children(standby.pid) if runs(child.pid, "following"))
    follower.kill()
    standby.shard(0).kill()
    with Queue(names[1], port=primary.port) as queue:
        queue.add("second")
    wait_until(lambda: waiting(standby, names) == [1, 2], "it goes on after its processes were killed")
    with Queue(names[0], port=primary.port) as queue:
        queue.add("last")
    assert primary.stop() == 0  # ships the rest
    cli("promote")
    assert waiting(standby, names) == [2, 2]
    with Queue(names[0], port=standby.port) as queue:
        queue.add("new")
    with pytest.raises(NotStarted) as not_started:
        primary.start()
    assert not_started.value.status == ENDED
    assert "has taken over (term 2)" in not_started.value.stderr
    standby.stop()
    assert not is_standby(tmp_path / "standby")
    standby.start()  # with --follow, as its service manager does
    assert waiting(standby, names) == [3, 2]


def test_a_primary_that_is_passed_ends(make_server: StartServer, tmp_path: Path) -> None:
    """It was not dead, only cut off; so was its standby, which was killed as it was promoted."""
    target = str(tmp_path / "target")
    primary = make_server("--backup", target, shards=1)
    primary.start()
    with Queue("jobs", port=primary.port) as queue:
        queue.add("one")
    standby = make_server("--follow", target, data_dir=tmp_path / "standby", shards=1)
    standby.start()
    wait_until(lambda: waiting(standby, ["jobs"]) == [1], "it has what the primary has")
    primary.signal(signal.SIGSTOP)
    primary.backup().kill(signal.SIGSTOP)
    with Admin(port=standby.port) as admin:
        assert admin.promote_standby(force=True).term == 2
    standby.kill_all()
    standby.start()
    wait_until(lambda: not is_standby(tmp_path / "standby"), "it has finished its promotion")
    assert waiting(standby, ["jobs"]) == [1]
    primary.signal(signal.SIGCONT)
    primary.backup().kill(signal.SIGCONT)
    assert primary.wait() == ENDED
    assert "another server has taken over" in primary.log()


@table(
    ("flags", "text"),
    [
        (["--follow", "bunqueue://primary"], "where the primary ships to with --backup: an absolute path"),
        (["--follow", "/tmp/f", "--backup", "/tmp/b"], "follow: leave out backup"),
        (["--follow", "/tmp/f", "--store", "postgresql://h/d"], "follow: not with a store"),
        (["--follow", "/tmp/f", "--data-dir", ":memory:"], "follow: give a data_dir that is a folder"),
        (["--follow", "/tmp/f", "--backup-key-command", "false"], "follow: the key command 'false' failed"),
    ],
)
def test_settings_that_cannot_be_used(flags: list[str], text: str, make_server: StartServer) -> None:
    server = make_server(*flags)
    with pytest.raises(NotStarted) as refused:
        server.start()
    assert text in refused.value.stderr
    assert refused.value.status == exits.USAGE


def test_the_service_that_has_its_key_is_away(make_server: StartServer, tmp_path: Path) -> None:
    """The process that follows starts again just then: it says why it waits, and goes on afterwards."""
    target, key = str(tmp_path / "target"), tmp_path / "key"
    key.write_text(new_key())
    command = ("--backup-key-command", f"cat {key}")
    primary = make_server("--backup", target, *command, shards=1)
    primary.start()
    with Queue("jobs", port=primary.port) as queue:
        queue.add("one")
    port = quiet_port()
    standby = make_server(
        "--follow", target, *command, data_dir=tmp_path / "standby", shards=1, http_port=port
    )
    standby.start()
    wait_until(lambda: waiting(standby, ["jobs"]) == [1], "the first job is shown")

    def view() -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{standby.url}/health").json()["standby"]
        return found

    key.rename(tmp_path / "away")
    next(child for child in children(standby.pid) if runs(child.pid, "following")).kill()
    wait_until(lambda: "the key command 'cat " in (view()["error"] or ""), "it says why it waits")
    assert view()["until"] > 0
    (tmp_path / "away").rename(key)
    wait_until(lambda: view()["error"] is None, "it goes on")


def test_a_folder_of_its_own_and_no_primary(make_server: StartServer, tmp_path: Path) -> None:
    server = make_server(shards=1)
    server.start()
    server.stop()
    server.flags = ("--follow", str(tmp_path / "target"))
    with pytest.raises(NotStarted, match="has jobs of its own"):
        server.start()
    lonely = make_server("--follow", str(tmp_path / "target"), data_dir=tmp_path / "standby", shards=1)
    lonely.launch()
    wait_until(lambda: "waits for a primary" in lonely.log(), "it says what it waits for")
    lonely.signal(signal.SIGTERM)
    lonely.wait()
