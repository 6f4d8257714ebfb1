"""``bunqueue backup`` and ``restore`` on a server that works."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.cli import Cli
from support.naming import queues_on
from support.server import NotStarted, StartServer
from support.table import table
from support.waiting import PATIENCE_S, wait_until
from support.wire import now_ms

from bunqueue import Admin, FlowJob, FlowProducer, Queue
from bunqueue.backup.create import create
from bunqueue.backup.repository import Repository
from bunqueue.backup.targets import target_of
from bunqueue.cli.commands.top.numbers import samples_of
from bunqueue.cli.framework import exits

SHARDS = 2


def test_a_backup_under_load_is_one_moment_of_all_shards(make_server: StartServer, tmp_path: Path) -> None:
    """Flows whose jobs are on several shards are pushed all the time: each is there whole, or not at all."""
    server = make_server(shards=SHARDS)
    server.start()
    cli, target = Cli(server), str(tmp_path / "target")
    data = str(server.data_dir)
    parents, children = next(queues_on(0, "parents", SHARDS)), next(queues_on(1, "children", SHARDS))
    pushed: list[tuple[str, list[str]]] = []
    ended, pushes = threading.Event(), threading.Event()

    def push() -> None:
        number = 0
        with FlowProducer(port=server.port) as flows:
            while not ended.is_set():
                ids = [f"c{number}-{child}" for child in range(2)]
                first, second = (FlowJob("c", queue=children, job_id=each) for each in ids)
                flows.add(FlowJob("p", queue=parents, job_id=f"p{number}").after(first, second))
                pushed.append((f"p{number}", ids))
                pushes.set()
                number += 1

    pusher = threading.Thread(target=push)
    pusher.start()
    try:
        assert pushes.wait(PATIENCE_S)
        before = len(pushed)
        made = cli.json("backup", "create", target, "--data-dir", data)
        after = len(pushed)
        cli("backup", "create", target, "--data-dir", data)
    finally:
        ended.set()
        pusher.join()
    assert len(cli.json("backup", "list", target)) == 2
    found = cli.json("backup", "verify", target, made["id"])
    assert {each["status"] for each in found} == {"ok"}
    (tmp_path / "new").mkdir()
    new = str(tmp_path / "new")
    plan = cli.json("restore", target, "--data-dir", new, "--dry-run")
    assert plan["bytes"] >= made["bytes"]
    said = cli.json("restore", target, "--data-dir", new, "--at", made["id"])
    assert said["moment"] == made["moment"]
    assert abs(said["jobs"] - made["jobs"]) < 3
    assert "is not empty" in cli("restore", target, "--data-dir", new, status=exits.FAILED).err
    server.stop()
    copy = make_server(data_dir=tmp_path / "new", shards=SHARDS)
    copy.start()
    with Queue(parents, port=copy.port) as of_parents, Queue(children, port=copy.port) as of_children:

        def there(parent: str, ids: list[str]) -> list[bool]:
            jobs = [of_parents.get_job(parent), *(of_children.get_job(each) for each in ids)]
            return [job is not None for job in jobs]

        # One flow may have been in the middle of its push: the shards agree about it when they have started.
        wait_until(lambda: all(len(set(there(*flow))) == 1 for flow in pushed), "no flow is there by half")
        whole = sum(there(*flow)[0] for flow in pushed)
    assert abs(3 * whole - made["jobs"]) < 3
    assert before <= whole <= after + 1


def test_what_changes_is_shipped_and_said(make_server: StartServer, tmp_path: Path) -> None:
    target = tmp_path / "target"
    server = make_server("--backup", str(target), shards=SHARDS)
    server.start()
    cli = Cli(server)

    def figure(name: str) -> float:
        with Admin(port=server.port) as admin:
            return samples_of(admin.prometheus())[f"backup_{name}", frozenset()]

    def is_stored() -> bool:
        return not figure("failing") and not figure("lag_bytes") and figure("last_base_timestamp_seconds") > 0

    def finding() -> str:
        found = cli.json("doctor", status=None)
        return next(each["status"] for each in found if each["check"] == "backup")

    with Queue("jobs", port=server.port) as queue:
        queue.add("first")
        wait_until(is_stored, "the first is stored")
        assert finding() == "ok"
        target.rename(tmp_path / "away")
        target.write_text("no folder")
        queue.add("second")
        wait_until(lambda: figure("failing") == 1, "the target is missed")
        assert figure("lag_bytes") > 0
        assert figure("lag_seconds") > 0
        assert finding() == "problem"
        wait_until(lambda: "what changes cannot be stored; tried again" in server.log(), "it is logged")
        target.unlink()
        (tmp_path / "away").rename(target)
        wait_until(is_stored, "the second is stored")
        queue.add("last")
    server.stop()  # stores what is left
    assert not list(Path(server.data_dir).glob("*-wal"))
    assert cli.json("backup", "list", str(target))[-1]["until"] > 0
    said = cli.json("restore", str(target), "--data-dir", str(tmp_path / "new"))
    assert said["jobs"] == 3


def test_a_clock_that_was_ahead_is_said_and_hides_no_failure(
    make_server: StartServer, tmp_path: Path
) -> None:
    target, server = tmp_path / "target", make_server(shards=1)
    server.start()
    two_hours = 7_200_000
    repository = Repository(target_of(str(target)))
    create(Path(server.data_dir), repository, now_ms=lambda: round(now_ms()) + two_hours)
    cli = Cli(server)
    done = cli("backup", "create", str(target), "--data-dir", str(server.data_dir))
    assert "the backups are 1h 59m ahead of this machine's clock" in done.err
    server.stop()
    server.flags = ("--backup", str(target))
    server.start()
    wait_until(lambda: "ahead of this machine's clock" in server.log(), "it is logged")
    target.rename(tmp_path / "away")
    target.write_text("no folder")
    with Queue("jobs", port=server.port) as queue, Admin(port=server.port) as admin:
        queue.add("first")
        wait_until(lambda: admin.backup_status().backup.lag > 0, "it waits to be stored")


@table(
    ("flags", "text"),
    [
        (["--backup", "relative"], "flag --backup: 'relative' is not allowed; give an absolute path, s3://"),
        (["--backup-key", "/key"], "backup_key: only with backup or follow"),
        (["--backup", "/tmp/b", "--data-dir", ":memory:"], "backup: give a data_dir that is a folder"),
        (["--backup", "/tmp/b", "--backup-key", "/none"], "backup: the key file /none cannot be read"),
    ],
)
def test_settings_that_cannot_be_used(flags: list[str], text: str, make_server: StartServer) -> None:
    server = make_server(*flags)
    with pytest.raises(NotStarted) as refused:
        server.start()
    assert text in refused.value.stderr
    assert refused.value.status == exits.USAGE


def test_what_is_wrong_is_said(tmp_path: Path, make_server: StartServer) -> None:
    cli = Cli(make_server(shards=1))
    for arguments, status, text in (
        (["backup", "list", str(tmp_path / "none")], exits.FAILED, "has no backups: check the place"),
        (["backup", "verify", str(tmp_path / "none")], exits.FAILED, "has no backups: check the place"),
        (["backup", "create", "sftp://x/y"], exits.USAGE, "SFTP has no conditional writes"),
        (["backup", "list", str(tmp_path), "--key-command", "false"], exits.FAILED, "failed with status 1"),
        (["backup", "list", str(tmp_path), "--key-command", "echo x"], exits.FAILED, "printed no key"),
        (["backup", "list", str(tmp_path), "--key-command", "/none"], exits.FAILED, "cannot be run"),
        (["backup", "create", "http://x"], exits.USAGE, "is no place for backups; give a folder, or s3://"),
        (["backup", "create", "t", "--rate", "-1"], exits.USAGE, "--rate: give a number"),
        (["backup", "create", "t", "--data-dir", ":memory:"], exits.USAGE, "which keeps nothing"),
        (["backup", "create", "t", "--data-dir", str(tmp_path)], exits.FAILED, "there is no manifest.json"),
        (["backup", "create", "t", "--key-file", str(tmp_path / "k")], exits.FAILED, "key file"),
        (["backup", "prune", "t", "--last", "0"], exits.USAGE, "--last: 0 is not allowed; give at least 1"),
        (["restore", "t", "--data-dir", "n", "--shards", "3"], exits.USAGE, "--shards: 3 is not allowed"),
        (["restore", "t", "--data-dir", "n", "--at", "yesterday"], exits.USAGE, "is no moment"),
        (["restore", "t", "--data-dir", "n", "--at", "2026-01-01"], exits.USAGE, "with its time zone"),
        (["restore", str(tmp_path / "t"), "--data-dir", "n"], exits.FAILED, "has no backups"),
    ):
        assert text in cli(*arguments, status=status).err, arguments
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "repository").write_text("no JSON")
    for key, code in (("", "backup_damaged"), (str(tmp_path / "none"), "backup_key")):
        done = cli(
            "backup", "list", str(tmp_path), "--json", *["--key-file", key] * bool(key), status=exits.FAILED
        )
        assert f'"code":"{code}"' in done.err
