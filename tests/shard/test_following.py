"""A standby's folder follows what a primary ships, and becomes that of the primary."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import cast

import msgspec
import pytest
from support.budget import budget
from support.killed_at_step import killed_at, steps_of
from support.s3 import s3_server
from support.small_disks import small_disk
from support.small_folder import make

from bunqueue.backup import follower as following
from bunqueue.backup import shipper as shipping
from bunqueue.backup.create import create
from bunqueue.backup.follower import Follower, Resharded, followed, settle
from bunqueue.backup.primary import Claim, Superseded, newest, passed, read_primary
from bunqueue.backup.prune import Keep, prune
from bunqueue.backup.repository import Repository, ms_of
from bunqueue.backup.restore import Wanted, restore, source_of
from bunqueue.backup.sealing import Damaged
from bunqueue.backup.shipped import ChangedFile, Changes, decoded, latest
from bunqueue.backup.shipper import Shipper
from bunqueue.backup.targets import TargetError, target_of
from bunqueue.server.folder.data_folder import (
    DataFolderError,
    copy_of,
    is_standby,
    open_data_folder,
    read_manifest,
    save_manifest,
    shard_file,
)
from shardproc.view import View

SHARDS = 2
KEY = b"k" * 32


class World:
    """A primary that changes, the place that it ships to, and a standby."""

    def __init__(self, folder: Path, target: str = "") -> None:
        self.data, self.here = folder / "data", folder / "standby"
        self.target = target or str(folder / "target")
        make(self.data, SHARDS, jobs=4)
        self.now = 1_000_000
        self.value = 0
        self.databases = [
            sqlite3.connect(shard_file(self.data, n), isolation_level=None) for n in range(SHARDS)
        ]
        self.shipper = self.new_shipper(self.data)
        self.here.mkdir()

    @property
    def repository(self) -> Repository:
        return Repository(target_of(self.target), KEY)

    def new_shipper(self, data: Path) -> Shipper:
        return Shipper(data, self.repository, self.tick, "primary:6789")

    def follower(self) -> Follower:
        return Follower(self.here, lambda: self.repository, self.target)

    def tick(self) -> int:
        self.now += 1000
        return self.now

    def change(self, size: int = 0) -> None:
        self.value += 1
        for db in self.databases:
            db.execute("insert or replace into meta values ('value', ?)", (str(self.value),))
            db.execute("insert or replace into meta values ('large', hex(randomblob(?)))", (size,))

    def ship(self, size: int = 0) -> None:
        self.change(size)
        self.shipper.step()

    def close(self) -> None:
        self.shipper.close()
        for db in self.databases:
            db.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def value_in(folder: Path) -> int:
    """What the files say; all of them, and they are whole."""
    found = set()
    for shard in range(SHARDS):
        with closing(sqlite3.connect(f"file:{shard_file(folder, shard)}?immutable=1", uri=True)) as db:
            assert db.execute("pragma quick_check").fetchall() == [("ok",)]
            row = db.execute("select value from meta where key = 'value'").fetchone()
            found.add(0 if row is None else int(row[0]))
    (value,) = found
    return value


def catch_up(follower: Follower) -> None:
    follower.step()
    while follower.has_new:
        follower.apply()
        follower.step()


def promote(follower: Follower) -> None:
    follower.claim()
    follower.finish()


def test_it_follows_through_backups_restarts_and_pruning(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PIECE", 20_000)  # bytes: a change of backups takes several files
    follower = world.follower()
    with pytest.raises(TargetError, match="nobody ships to"):
        follower.step()
    world.ship()
    catch_up(follower)
    for size in (10, 100_000, 0):
        world.ship(size)
        follower.step()
        assert follower.has_new
    before = value_in(world.here)
    assert before < world.value  # what is fetched is not written while somebody may read
    follower.apply()
    assert value_in(world.here) == world.value
    assert follower.shown == follower.until == world.shipper.until
    world.ship()
    monkeypatch.setattr(shipping, "LARGEST", 4)  # pages: the next changes become a backup
    world.ship(100_000)
    base = world.shipper.base
    monkeypatch.setattr(shipping, "LARGEST", 8192)
    prune(world.repository, Keep(1, 0, 0, 0))
    follower = world.follower()  # after a restart
    assert follower.shown
    world.ship(10)
    catch_up(follower)
    state = followed(world.here)
    assert state is not None
    assert state.base == base
    assert value_in(world.here) == world.value
    for shard in range(SHARDS):
        assert not world.here.joinpath(f"shard-{shard:02}.db-wal").exists()
    create(world.data, world.repository, now_ms=world.tick)  # somebody's backup beside it
    world.ship()
    catch_up(follower)
    assert value_in(world.here) == world.value


def test_a_promoted_standby_goes_on_and_the_old_primary_ends(world: World) -> None:
    world.ship()
    follower = world.follower()
    catch_up(follower)
    world.ship()
    promote(follower)
    assert value_in(world.here) == world.value
    assert not is_standby(world.here)
    open_data_folder(world.here, SHARDS)
    assert read_manifest(world.here).followed == world.target
    held = latest(world.repository)
    world.change()
    world.shipper._ship(world.tick())  # it has not noticed yet: this does not count
    assert latest(world.repository) == held
    with pytest.raises(Superseded, match=r"has taken over \(term 2\)"):
        world.shipper._beat()
    world.shipper.base = ""
    before = world.repository.ids()
    with pytest.raises(Superseded):
        world.shipper.step()
    with pytest.raises(Superseded):  # also after a restart, and by hand
        world.new_shipper(world.data).step()
    with pytest.raises(Superseded):
        create(world.data, world.repository)
    assert world.repository.ids() == before
    with closing(sqlite3.connect(shard_file(world.here, 0), isolation_level=None)) as db:
        db.execute("insert or replace into meta values ('value', 'new')")
    again = world.new_shipper(world.here)
    again.step()
    backup = next(newest(world.repository))
    assert backup.id == again.base
    assert backup.term == 2
    again.close()
    made = restore(source_of(target_of(world.target), KEY, None), world.here.with_name("new"), Wanted())
    assert made.shards == SHARDS
    third = world.new_shipper(world.here.with_name("new"))  # what is restored takes over as well
    third.step()
    third.close()
    assert read_primary(world.repository)[0].term == 3
    with pytest.raises(Superseded):
        world.new_shipper(world.here).step()


def test_a_backup_of_a_passed_primary_does_not_count(world: World) -> None:
    """It was about to publish one when another took over; its clock is two hours ahead."""
    world.ship()
    follower = world.follower()
    catch_up(follower)
    promote(follower)
    world.now += 7_200_000
    assert world.shipper._claim is not None
    world.shipper._claim.check = lambda: None  # type: ignore[method-assign]  # it was asked a moment before
    world.shipper.base, world.shipper._beat_at = "", 1e18
    assert world.shipper._following is not None
    world.shipper._begin(world.shipper._following)
    late = world.shipper.base
    world.now -= 7_200_000
    assert passed(world.repository) == {late}
    again = world.new_shipper(world.here)
    again.step()
    base = again.base
    again.close()
    assert base < late
    assert next(newest(world.repository)).id == base
    source = source_of(target_of(world.target), KEY, None)
    assert source.moment is not None
    assert source.moment < ms_of(late)
    assert late in prune(world.repository, Keep(5, 0, 0, 0)).removed


def test_of_two_claims_one_fails_and_a_lost_answer_does_no_harm(world: World) -> None:
    world.ship()
    one, other = (Claim(world.repository, copy) for copy in ("one", "other"))
    one.take()
    one.close(1)
    other.take()
    other.close(2)
    with pytest.raises(Superseded):
        one.beat("", 0)
    with pytest.raises(Superseded):
        one.take()
    found, _ = read_primary(world.repository)
    assert [(each.copy, each.until) for each in found.ended] == [(copy_of(world.data), 1), ("one", 2)]
    same = Claim(world.repository, "other")
    same.take()  # another process of the same folder
    with pytest.raises(Superseded, match="another process ships the same folder"):
        other.beat("", 0)
    target = world.repository.target
    body, tag = target.read_tagged("primary")
    assert target.replace("primary", body, tag)
    assert not target.replace("primary", body + b"x", "no tag")


def test_conditional_writes_to_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        world = World(tmp_path, "s3://jobs/standby")
        world.ship()
        follower = world.follower()
        catch_up(follower)
        world.ship()
        promote(follower)
        assert value_in(world.here) == world.value
        with pytest.raises(Superseded):
            world.shipper._beat()
        world.close()


def test_a_folder_that_does_not_fit_is_refused(world: World) -> None:
    world.ship()
    with pytest.raises(DataFolderError, match="has jobs of its own"):
        Follower(world.data, lambda: world.repository, world.target).step()
    follower = world.follower()
    catch_up(follower)
    with pytest.raises(DataFolderError, match="that of a standby"):
        open_data_folder(world.here, SHARDS)
    with pytest.raises(DataFolderError, match="not s3://elsewhere"):
        following.check_folder(world.here, "s3://elsewhere")
    manifest = read_manifest(world.data)
    save_manifest(world.data, msgspec.structs.replace(manifest, generation=manifest.generation + 1))
    world.shipper.close()
    world.ship()
    with pytest.raises(Resharded):
        follower.step()
    follower.step()  # anew
    assert value_in(world.here) == world.value


def test_a_full_disk_is_waited_for(world: World, tmp_path: Path) -> None:
    with small_disk(tmp_path, "tmpfs", 80) as disk:
        world.here = disk / "standby"
        world.here.mkdir()
        world.ship()
        follower = world.follower()
        catch_up(follower)
        filler = disk / "filler"

        def fill() -> None:
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))

        world.ship(200_000)
        fill()
        with pytest.raises(OSError, match="No space"):
            follower.step()
        assert value_in(world.here) == world.value - 1
        filler.unlink()
        follower.step()
        fill()
        with pytest.raises(OSError, match="No space"):
            follower.apply()
        filler.unlink()
        catch_up(world.follower())
        assert value_in(world.here) == world.value


def test_numbers_beyond_their_bounds_are_refused() -> None:
    size = 512
    good = ChangedFile(2, size, (1).to_bytes(4, "little"), bytes(size))

    def body(**what: object) -> bytes:
        return msgspec.msgpack.encode(Changes(1, [msgspec.structs.replace(good, **what)]))

    assert decoded(body(), "x", 1).files == [good]
    for wrong in (
        {"page_size": 513},
        {"page_size": -512},
        {"numbers": b"abc"},
        {"numbers": (3).to_bytes(4, "little")},
        {"numbers": bytes(4)},
        {"bodies": bytes(size - 1)},
        {"pages": -1},
        {"pages": 1 << 40},
    ):
        with pytest.raises(Damaged):
            decoded(body(**wrong), "x", 1)
    with pytest.raises(Damaged, match="changes of 1 files, and there are 2"):
        decoded(body(), "x", 2)


def test_a_view_leaves_the_files_as_they_are(world: World) -> None:
    world.ship()
    follower = world.follower()
    catch_up(follower)
    files = [shard_file(world.here, shard) for shard in range(SHARDS)]
    before = [file.read_bytes() for file in files]
    for _ in range(2):
        views = [
            View(str(shard_file(world.here, n)), "go elsewhere", full_sync=False, shard=n, shards=SHARDS)
            for n in range(SHARDS)
        ]
        for view in views:
            assert view.recover(view.now(), "view", lambda loaded, total: None) > 0
            view.tick()
            view.execute(view.client(1, 3), msgspec.msgpack.encode({"cmd": "PUSH", "queue": "q"}), view.now())
            view.execute(view.client(1, 3), msgspec.msgpack.encode({"cmd": "Stats"}), view.now())
            refused, answered = (cast("object", reply) for _, reply in view.commit())
            assert "go elsewhere" in str(refused)
            assert "waiting" in str(answered)
            view.end()
            view.close()
    assert [file.read_bytes() for file in files] == before
    assert not list(world.here.glob("*-wal"))


ROOMS = ("bunqueue/backup/follower.py", "bunqueue/backup/targets.py", "bunqueue/backup/primary.py")


def test_whenever_it_is_killed_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each call and return: while it follows, changes to another backup, and is promoted."""
    monkeypatch.setattr(shipping, "LARGEST", 4)
    world = World(tmp_path)
    follower = world.follower()
    world.ship()
    catch_up(follower)
    world.change(100_000)
    world.shipper.step()  # another backup
    monkeypatch.setattr(shipping, "LARGEST", 8192)
    world.ship()
    world.close()
    saved = tmp_path / "saved"
    for each in (world.here, Path(world.target)):
        shutil.copytree(each, saved / each.name)

    def again() -> None:
        for each in (world.here, Path(world.target)):
            shutil.rmtree(each)
            shutil.copytree(saved / each.name, each)

    def work() -> None:
        follower = world.follower()
        catch_up(follower)
        promote(follower)

    steps = steps_of(work, ROOMS)
    for step in range(1, steps, max(1, steps // budget(12, 200))):
        again()
        killed_at(step, work, ROOMS)
        if is_standby(world.here):
            follower = world.follower()
            catch_up(follower)
            if follower.is_claimed:
                follower.finish()
            else:
                promote(follower)
        settle(world.here)
        assert value_in(world.here) == world.value, step
        open_data_folder(world.here, SHARDS)
        primary, _ = read_primary(world.repository)
        assert primary.copy == copy_of(world.here)
        assert primary.term == 2
        assert all(each.until for each in primary.ended)
        assert sorted(path for path in os.listdir(world.here) if not path.startswith("shard")) == [
            "manifest.json"
        ]
