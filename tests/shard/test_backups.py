"""Backups of a data folder that no server uses: what they store, and what does not harm them."""

from __future__ import annotations

import base64
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from support.budget import budget
from support.folders import contents
from support.killed_at_step import killed_at, steps_of
from support.s3 import s3_server
from support.small_disks import small_disk
from support.small_folder import make

from bunqueue.backup.create import BackupError, Throttle, create
from bunqueue.backup.fetch import fetch
from bunqueue.backup.primary import newest
from bunqueue.backup.prune import Keep, kept_of, prune
from bunqueue.backup.repository import Backup, Repository, id_of
from bunqueue.backup.sealing import Damaged, KeyRefused, key_from
from bunqueue.backup.targets import TargetError, target_of
from bunqueue.backup.verify import verify

SHARDS = 2
KEY = bytes(range(32))
NEWEST = Keep(1, 0, 0, 0)
SHORT = ("bunqueue/backup/targets.py",)  # each object that is written, read or removed


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "data"
    make(folder, SHARDS, jobs=40)
    return folder


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "data"))


def repository(where: Path | str, key: bytes | None = None) -> Repository:
    return Repository(target_of(str(where)), key)


def change(data: Path, value: str) -> None:
    """Change few pages of a file."""
    with closing(sqlite3.connect(data / "shard-00.db")) as db, db:
        db.execute("insert or replace into meta values ('changed', ?)", (value,))


def changed(folder: Path) -> str:
    with closing(sqlite3.connect(folder / "shard-00.db")) as db:
        row = db.execute("select value from meta where key = 'changed'").fetchone()
    return "" if row is None else str(row[0])


def fetched(found: Repository, backup: Backup, folder: Path) -> Path:
    folder.mkdir()
    fetch(found, backup, folder)
    return folder


def problems(found: Repository, backup: Backup) -> list[str]:
    return [f"{each.check}: {each.problem}" for each in verify(found, backup) if each.problem]


def packs(target: Path) -> set[str]:
    return {path.name for path in (target / "packs").iterdir()}


@pytest.fixture(scope="module")
def s3() -> Iterator[None]:
    with s3_server() as environ, pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        yield


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_backup_is_the_folder_and_the_next_one_stores_what_changed(
    place: str, data: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if place == "bucket":
        request.getfixturevalue("s3")
    found = repository("s3://jobs/backups" if place == "bucket" else tmp_path / "target", KEY)
    expected = contents(data)
    first = create(data, found)
    change(data, "once")
    second = create(data, found)
    assert second.new_bytes < first.new_bytes / 2
    assert [each.backup for each in found.backups()] == [first, second]
    assert contents(fetched(found, first, tmp_path / "first")) == expected
    assert (changed(tmp_path / "first"), changed(fetched(found, second, tmp_path / "second"))) == ("", "once")
    done = prune(found, NEWEST)
    assert (done.removed, done.kept) == ([first.id], [second.id])
    assert problems(found, second) == []


def test_only_who_has_the_key_reads_it(data: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    made = create(data, repository(target, KEY))
    stored = b"".join(path.read_bytes() for path in target.rglob("*") if path.is_file())
    assert b"SQLite" not in stored
    assert {path.stat().st_mode & 0o077 for path in target.rglob("*")} == {0}
    for key, text in ((None, "are encrypted: give the file"), (bytes(32), "encrypted with another key")):
        with pytest.raises(KeyRefused, match=text):
            create(data, repository(target, key))
        with pytest.raises(KeyRefused, match=text):
            prune(repository(target, key), NEWEST)
        with pytest.raises(KeyRefused, match=r"is encrypted|not encrypted|another key"):
            fetched(repository(target, key), made, tmp_path / str(key))
    create(data, repository(tmp_path / "plain"))
    with pytest.raises(KeyRefused, match="are not encrypted: leave out"):
        create(data, repository(tmp_path / "plain", KEY))


def test_key_files(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(base64.b64encode(KEY).decode() + "\n")
    assert key_from(file) == KEY

    for content in ("", "no base 64!", base64.b64encode(KEY[1:]).decode(), "ä" * 4000):
        file.write_text(content)
        with pytest.raises(KeyRefused, match="has no key: give 32 bytes as Base64"):
            key_from(file)
    with pytest.raises(KeyRefused, match="cannot be read: No such file"):
        key_from(tmp_path / "none")


def test_damage_is_found_and_the_next_backup_is_whole(data: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    found = repository(target)
    made = create(data, found)
    pack = next((target / "packs").iterdir())
    whole = pack.read_bytes()

    for content in (whole[:-1], b"", whole[:10], whole[:-1] + bytes([whole[-1] ^ 1])):
        pack.write_bytes(content)
        with pytest.raises(Damaged, match=r"packs/\w+ is damaged or not whole"):
            list(verify(found, made))
    pack.unlink()
    with pytest.raises(TargetError, match="has no packs/"):
        list(verify(found, made))
    again = create(data, found)  # notices that the pack is not there
    assert problems(found, again) == []
    pages = target / "pages" / again.id
    pages.write_bytes((target / "pages" / made.id).read_bytes())
    with pytest.raises(Damaged, match="is not what the backup has stored"):
        list(verify(found, again))
    (target / "pages" / again.id).write_bytes(b"")
    with pytest.raises(Damaged):
        prune(found, NEWEST)  # what it needs is not known, so nothing is removed
    assert pack.name not in packs(target)
    assert len(found.ids()) == 2
    (target / "pages" / again.id).unlink()
    with pytest.raises(Damaged, match="has no pages/"):
        list(verify(found, again))
    last = create(data, found)
    assert again.id in prune(found, Keep(9, 9, 9, 9)).removed  # it cannot be restored any more
    assert problems(found, last) == []


def test_wrong_counts_are_found(data: Path, tmp_path: Path) -> None:
    found = repository(tmp_path / "target")
    made = create(data, found)
    made.counts[1].dead += 1
    assert problems(found, made) == [
        f"counts: shard 1: {made.counts[1].jobs - made.counts[1].completed - made.counts[1].dead + 1:,} "
        f"unfinished jobs, and the backup had "
        f"{made.counts[1].jobs - made.counts[1].completed - made.counts[1].dead:,}; "
        f"shard 1: {made.counts[1].dead - 1:,} dead jobs, and the backup had {made.counts[1].dead:,}"
    ]


def test_each_server_has_a_place_of_its_own(data: Path, tmp_path: Path) -> None:
    create(data, repository(tmp_path / "target"))
    other = tmp_path / "other"
    make(other, 1)
    with pytest.raises(TargetError, match="has the backups of another server"):
        create(other, repository(tmp_path / "target"))
    stranger = create(other, repository(tmp_path / "elsewhere"))
    shutil.copytree(
        tmp_path / "elsewhere", tmp_path / "target", dirs_exist_ok=True, ignore=lambda *_: ["repository"]
    )
    found = repository(tmp_path / "target")
    found.open()
    with pytest.raises(Damaged, match=f"backups/{stranger.id} is a backup of another server"):
        next(newest(found))
    (data / "shard-01.db").unlink()
    with pytest.raises(Exception, match=r"has no shard-01\.db: start its server once"):
        create(data, repository(tmp_path / "target"))


def test_one_process_at_a_time_changes_it(data: Path, tmp_path: Path) -> None:
    found = repository(tmp_path / "target")
    create(data, found)
    with found.locked(), pytest.raises(TargetError, match=f"being changed by process {os.getpid()} on "):
        prune(found, NEWEST)
    with found.locked() as lock:
        (tmp_path / "target" / "lock").write_bytes(
            b'{"host": "elsewhere", "pid": 7, "started": "1", "secret": "s"}'
        )
        with pytest.raises(TargetError, match="process 7 on elsewhere has taken over"):
            lock.check()


def test_whenever_it_is_killed_no_backup_is_harmed(data: Path, tmp_path: Path) -> None:
    """At each object that is written or removed: good backups stay good, and the next run ends well."""
    target = tmp_path / "target"
    found = repository(target)
    good = create(data, found)

    def work() -> None:
        change(data, "more")
        create(data, repository(target))
        prune(repository(target), Keep(2, 0, 0, 0))

    steps = steps_of(work, SHORT)
    every = max(1, steps // budget(6, steps))
    for number, step in enumerate(range(1, steps, every)):
        killed_at(step, work, SHORT)
        if good.id in found.ids():
            fetched(found, good, tmp_path / f"good-{number}")
        change(data, f"after {number}")
        good = create(data, found)
        prune(found, Keep(2, 0, 0, 0))
        assert changed(fetched(found, good, tmp_path / f"next-{number}")) == f"after {number}"
    prune(found, NEWEST)
    kept = {name for name, _ in found.pages(good.id).packs}
    assert packs(target) == kept  # nothing is left of the interrupted ones
    assert {path.name for path in target.iterdir()} == {"repository", "packs", "pages", "backups"}
    assert problems(found, good) == []


def test_an_interrupted_backup_continues(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = repository(tmp_path / "target")
    monkeypatch.setattr("bunqueue.backup.create.PACK_PAGES", 4)
    write, stored = found.target.write, []

    def fails(name: str, body: bytes) -> int:
        if name.startswith("packs/"):
            if len(stored) == 5:
                raise TargetError("the network is down")
            stored.append(name)
        return write(name, body)

    monkeypatch.setattr(found.target, "write", fails)
    with pytest.raises(TargetError, match="the network is down"):
        create(data, found)
    assert found.ids() == []
    monkeypatch.undo()
    made = create(data, found)
    assert {name.removeprefix("packs/") for name in stored} <= {
        name for name, _ in found.pages(made.id).packs
    }
    assert problems(found, made) == []


def test_a_full_disk_leaves_what_was_there(data: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path, "tmpfs", 1) as disk:
        found = repository(disk / "target", KEY)
        good = create(data, found)
        (disk / "filler").write_bytes(b"x" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - 8192))
        with closing(sqlite3.connect(data / "shard-00.db")) as db, db:
            db.execute("insert into meta values ('big', ?)", (os.urandom(100_000).hex(),))
        with pytest.raises(TargetError, match="the disk is full: make room there"):
            create(data, found)
        assert found.ids() == [good.id]
        (disk / "filler").unlink()
        assert problems(found, create(data, found)) == []


def test_folders_that_are_no_target(data: Path, tmp_path: Path, s3: None) -> None:
    file = tmp_path / "file"
    file.write_text("mine")

    for where, text in (
        (str(file), "is a file, or below one: give a folder"),
        ("relative", "is neither a path nor s3://bucket/prefix"),
        ("s3://none/backups", "there is no such bucket"),
    ):
        with pytest.raises(TargetError, match=text):
            create(data, repository(where))
    assert file.read_text() == "mine"
    with pytest.raises(BackupError, match="is in the data folder"):
        create(data, repository(data / "backups"))
    assert not (data / "backups").exists()
    (data / "manifest.json").write_bytes(b'{"format":2,"shards":2,"id":"a","store":"s"}')
    with pytest.raises(BackupError, match="belongs to a store"):
        create(data, repository(tmp_path / "target"))


def test_a_bucket_without_an_access_key(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "there is no access key, and this machine has no role: set AWS_ACCESS_KEY_ID"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "half")
    with pytest.raises(TargetError, match=said):
        target_of("s3://bucket/backups")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")  # of the machine's role
    with pytest.raises(TargetError, match=said):
        target_of("s3://bucket/backups", hasty=True).create("repository", b"")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("AccessDenied", "access is denied: the access key, or the machine's role, needs the right to list"),
        ("RequestTimeTooSkewed", "this machine's clock is too far from that of the bucket: set it"),
    ],
)
def test_a_bucket_that_refuses(code: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuse(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(403)
            self.end_headers()
            self.wfile.write(f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refuse) as bucket:
        threading.Thread(target=bucket.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{bucket.server_port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        with pytest.raises(TargetError, match=text):
            target_of("s3://bucket/backups", hasty=True).create("repository", b"")
        bucket.shutdown()


def test_a_rate_is_kept() -> None:
    throttle, began = Throttle(1_000_000), time.monotonic()
    for _ in range(3):
        throttle.wait(100_000)
    assert time.monotonic() - began >= 0.2
    Throttle(0).wait(10**12)  # no rate, no wait


DAY = 86_400_000
NOW = 1_795_960_000_000  # 2026-11-29, a Sunday


def test_which_backups_are_kept() -> None:
    hourly = [id_of(NOW - hour * 3_600_000) for hour in range(24 * 100)]
    kept = kept_of(hourly, Keep(3, 7, 4, 3))
    assert kept == sorted(kept)
    assert kept[-3:] == sorted(hourly[:3])
    days = {each[:8] for each in kept}
    assert {id_of(NOW - day * DAY)[:8] for day in range(7)} <= days
    assert {"20261122", "20261115", "20261108"} <= days  # Sundays
    assert {"20261031", "20260930"} <= days
    assert len(kept) == 3 + 6 + 3 + 2  # the last Sunday is one of the days
    assert kept_of(hourly, Keep(0, 0, 0, 0)) == [hourly[0]]
    assert kept_of([], Keep()) == []
