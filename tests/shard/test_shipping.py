"""What changes in a folder is shipped, and any moment that was shipped can be restored."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

import pytest
from support.budget import budget
from support.killed_at_step import killed_at, steps_of
from support.small_folder import make

from bunqueue.backup import shipper as shipping
from bunqueue.backup.create import create
from bunqueue.backup.prune import Keep, prune
from bunqueue.backup.repository import Backup, Repository, id_of, ms_of
from bunqueue.backup.restore import Wanted as Wanted_
from bunqueue.backup.restore import restore, source_of
from bunqueue.backup.sealing import Damaged
from bunqueue.backup.shipped import segments_of
from bunqueue.backup.shipper import Shipper
from bunqueue.backup.targets import TargetError, target_of
from bunqueue.backup.trail import Appended, append
from bunqueue.backup.verify import verify
from bunqueue.server.audit.entries import Entry
from bunqueue.server.audit.trail import Trail, Wanted, latest, problems_in
from bunqueue.server.folder.data_folder import shard_file
from bunqueue.server.folder.unreadable import UnreadableShard
from bunqueue.server.settings.settings import Settings

SHARDS = 2
ROOMS = ("bunqueue/backup/targets.py",)


class World:
    """A folder that changes, a target that may be away, and a clock that goes on by a second each time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data, self.target = folder / "data", folder / "target"
        make(self.data, SHARDS, jobs=4)
        self.now = 1_000_000
        self.values: dict[int, int] = {}  # what the folder said at a moment
        self.value = 0
        self.databases = [
            sqlite3.connect(shard_file(self.data, n), isolation_level=None) for n in range(SHARDS)
        ]

    @property
    def repository(self) -> Repository:
        return Repository(target_of(str(self.target)), b"k" * 32)

    @property
    def newest(self) -> Backup:
        return self.repository.backup(self.repository.ids()[-1])

    def change(self, size: int = 0) -> None:
        self.value += 1
        for db in self.databases:
            db.execute("insert or replace into meta values ('value', ?)", (str(self.value),))
            db.execute("insert or replace into meta values ('large', hex(randomblob(?)))", (size,))

    def tick(self) -> int:
        self.now += 1000
        self.values[self.now] = self.value
        return self.now

    def restored(self, at: int | None = None) -> int:
        """What a folder says that is restored."""
        folder = self.folder / "restored"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        source_of(target_of(str(self.target)), b"k" * 32, at).fill(folder, lambda done, total: None)
        found = set()
        for shard in range(SHARDS):
            with closing(sqlite3.connect(shard_file(folder, shard))) as db:
                assert db.execute("pragma quick_check").fetchall() == [("ok",)]
                row = db.execute("select value from meta where key = 'value'").fetchone()
                found.add(0 if row is None else int(row[0]))
        (value,) = found
        return value


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    for db in made.databases:
        db.close()


@contextmanager
def shipper_of(world: World) -> Iterator[Shipper]:
    made = Shipper(world.data, world.repository, world.tick)
    try:
        yield made
    finally:
        made.close()


def test_every_moment_can_be_restored(world: World) -> None:
    with shipper_of(world) as shipper:
        shipper.step()
        moments = [shipper.until]
        for size in (10, 100_000, 0, 50_000, 10):
            world.change(size)
            shipper.step()
            moments.append(shipper.until)
            assert shipper.pending == 0
        shipper.step()  # nothing has changed: nothing is stored
        assert len(segments_of(world.repository, shipper.base)) == 5
        assert shipper.until > moments[-1]
        for at in (moments[0], moments[2], moments[4]):
            assert world.restored(at) == world.values[at] == world.restored(at + 999)
        assert world.restored() == 5
    made = restore(source_of(target_of(str(world.target)), b"k" * 32, None), world.folder / "new", Wanted_())
    assert made.shards == SHARDS
    backup = world.repository.backup(world.repository.ids()[-1])
    assert [each.problem for each in verify(world.repository, backup) if each.problem] == []


def test_what_changes_while_the_target_is_away_is_stored_when_it_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shipper_of(world) as shipper:
        shipper.step()
        base, until = shipper.base, shipper.until
        world.target.rename(world.folder / "away")
        world.target.write_text("not a folder")
        for _ in range(3):
            world.change()
            with pytest.raises(TargetError):
                shipper.step()
        assert shipper.until == until
        assert shipper.pending > 0
        world.target.unlink()
        (world.folder / "away").rename(world.target)
        shipper.step()
        assert shipper.base == base
        assert world.restored() == 3
        monkeypatch.setattr(shipping, "LARGEST", 4)  # pages: more has changed than a segment may have
        world.change(100_000)
        shipper.step()
        assert shipper.base != base
        assert world.restored() == 4
        assert world.restored(until) == 0
        monkeypatch.setattr(shipping, "LARGEST", 8192)
        base = shipper.base
        monkeypatch.setattr(shipper, "_most", 1000)  # bytes, that may be shipped before the next backup
        for _ in range(2):
            world.change(10_000)
            shipper.step()
        assert shipper.base != base
        assert world.restored() == 6


def test_the_trail_of_who_changed_what_comes_along(world: World) -> None:
    settings = Settings(data_dir=str(world.data))
    trail = Trail(settings, "router-0")

    def note(at: int) -> None:
        trail.add(Entry(at=at, what="Pause", outcome="ok"))

    def noted(folder: Path) -> list[float]:
        assert problems_in(str(folder))[1] == []
        return [entry.at for entry in latest(str(folder), Wanted(), 100)]

    note(1)
    with shipper_of(world) as shipper:
        shipper.step()
        moment = shipper.until
        note(2)
        shipper.step()
        note(3)
        world.change()
        shipper.step()
    target = target_of(str(world.target))
    for at, name, found in ((None, "new", [1, 2, 3]), (moment, "old", [1])):
        (world.folder / name).mkdir()
        source_of(target, b"k" * 32, at).fill(world.folder / name, lambda done, total: None)
        assert noted(world.folder / name) == found
    assert noted(world.folder / "old") == [1]
    create(world.data, world.repository, now_ms=world.tick)
    prune(world.repository, Keep(1, 0, 0, 0))
    checked = [each.check for each in islice(verify(world.repository, world.newest), 3)]
    assert checked == ["pages", "changes since", "trail"]
    kept = {path.name for path in (world.target / "trail").iterdir()}
    assert set(world.newest.trail.values()) <= kept
    (world.folder / "copy").mkdir()
    source_of(target_of(str(world.data)), None, None).fill(world.folder / "copy", lambda done, total: None)
    assert noted(world.folder / "copy") == [1, 2, 3]
    for name in ("../evil.000001.jsonl", "router-0.jsonl", "a.000001.jsonl/x"):
        with pytest.raises(Damaged):
            append([Appended(name, 0, b"x")], world.folder / "new")
    with pytest.raises(Damaged):
        append([Appended("router-0.000001.jsonl", 1 << 40, b"x")], world.folder / "new")


def test_what_comes_before_a_missing_or_damaged_segment_is_restored(world: World) -> None:
    with shipper_of(world) as shipper:
        shipper.step()
        for _ in range(3):
            world.change()
            shipper.step()
        segments = segments_of(world.repository, shipper.base)
        assert [each.number for each in segments] == [1, 2, 3]
        second = world.target / segments[1].name
        shutil.copy(second, second.with_name(f"{second.name[:8]}-{id_of(world.now)}"))  # stored twice
        assert [each.number for each in segments_of(world.repository, shipper.base)] == [1, 2, 2, 3]
        before = f"--at {segments[0].moment}"
        for path in second.parent.glob("00000002-*"):
            path.write_bytes(b"")
        with pytest.raises(Damaged, match=f"00000002-.* is damaged or not whole.*{before}"):
            world.restored()
        for path in second.parent.glob("00000002-*"):
            path.unlink()
        assert [each.number for each in segments_of(world.repository, shipper.base)] == [1]
        said = f"has no shipped/{shipper.base}/00000002, so 1 after it cannot be used: .*{before}"
        with pytest.raises(Damaged, match=said):
            world.restored()
        with pytest.raises(Damaged, match=said):
            list(verify(world.repository, world.newest))
        assert world.restored(ms_of(segments[0].moment)) == 1


def test_backups_and_pruning_beside_it_take_nothing_away(world: World) -> None:
    with shipper_of(world) as shipper:
        shipper.step()
        world.change()
        shipper.step()
        create(world.data, world.repository, now_ms=world.tick)
        world.change()
        shipper.step()
        done = prune(world.repository, Keep(1, 0, 0, 0))
        assert done.removed == []  # the newest one, and the one that goes on
        assert world.restored() == 2
        old = shipper.base
    with shipper_of(world) as shipper:  # after a restart it begins with a backup
        shipper.step()
        assert shipper.base != old
        assert prune(world.repository, Keep(1, 0, 0, 0)).kept == [shipper.base]
        world.change()
        shipper.step()
        assert world.restored() == 3
        assert {path.name for path in (world.target / "shipped").iterdir() if any(path.iterdir())} == {
            shipper.base
        }


def test_a_clock_that_was_ahead_hides_nothing(world: World) -> None:
    world.now += 7_200_000
    with shipper_of(world) as shipper:
        shipper.step()
        world.change()
        shipper.step()
        world.now -= 7_200_000  # corrected
        world.change()
        shipper.step()
        assert world.restored() == 2
    world.change()
    create(world.data, world.repository, now_ms=world.tick)
    assert world.restored() == 3
    with shipper_of(world) as shipper:
        world.change()
        shipper.step()
        assert world.restored() == 4


def test_a_file_that_is_replaced_is_noticed(world: World) -> None:
    with shipper_of(world) as shipper:
        shipper.step()
        file = shard_file(world.data, 1)
        shutil.copy(file, world.folder / "other")
        (world.folder / "other").rename(file)
        with pytest.raises(UnreadableShard, match="was deleted or replaced"):
            shipper.step()
        shipper.step()
        assert len(world.repository.ids()) == 2


def test_whenever_it_is_killed_what_was_shipped_is_there(world: World) -> None:
    """At each object: what an earlier process has shipped can be restored, and the next one goes on."""

    def work() -> None:
        with shipper_of(world) as shipper:
            for _ in range(2):
                shipper.step()
                world.change(20_000)
            shipper.step()
            prune(world.repository, Keep(1, 0, 0, 0))

    steps = steps_of(work, ROOMS)
    value = 0
    for step in range(1, steps, max(1, steps // budget(5, 60))):
        killed_at(step, work, ROOMS)
        world.now += 1_000_000
        assert world.restored() >= value
        with shipper_of(world) as shipper:
            shipper.step()
            world.change()
            shipper.step()
        for db in world.databases:
            (found,) = db.execute("select value from meta where key = 'value'").fetchone()
        value = int(found)
        assert world.restored() == value
        world.value = value
