"""The commits of a lake: the files that each run added, and the positions that it had reached.

A run writes to a staging folder, commits by writing one small file, and then moves its files into the lake.
A run that is killed before the commit has changed nothing.  If it is killed after the commit, the next run
finishes the moves.  So no row is ever duplicated or lost, not even in a power cut, and readers of the Parquet
files need not know about commits.

::

    jobs/date=2026-11-21/000001-....parquet     (attempts/ and events/ alike)
    _log/000001.json       a `Commit`
    _staging/              a run in progress; readers of Parquet folders skip names with _
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bunqueue.server.folder.data_folder import sync
from bunqueue.spark.errors import NotReadable

FORMAT = 2
TABLES = ("events", "attempts", "jobs")  # see `bunqueue.analytics.exporting`
_LOG, _STAGING, _LOCK = "_log", "_staging", "_lock"


class Reached(msgspec.Struct):
    """The last event that was read of a shard: its number, and its epoch ms."""

    seq: int
    at: int


class Gap(msgspec.Struct):
    """Events that were removed before they were read: numbers ``first`` to ``last`` of a shard."""

    host: str
    shard: int
    first: int
    last: int
    since: int  # epoch ms of the event before them
    until: int  # and of the one after them


class Commit(msgspec.Struct):
    """One run.  ``reached``: host -> shard -> position; ``missing``: by queue, the number of ended jobs that
    were gone before they were read; ``files``: the destination of each file, by its place in the staging
    folder; ``shards``: the number of shards of each host; ``begun``: the start (epoch ms) of the export of a
    host that is not exported completely; ``replaces``: its files contain everything that earlier runs had
    added to their days."""

    number: int
    made_at: int  # epoch ms
    rows: dict[str, int]
    reached: dict[str, dict[int, Reached]]
    gaps: list[Gap] = []
    missing: dict[str, int] = {}
    files: dict[str, str] = {}
    shards: dict[str, int] = {}
    begun: dict[str, int] = {}
    replaces: bool = False
    format: int = FORMAT


class LakeLog:
    """The commits of the lake in a folder.  Use it within `LakeLog.opened`, which excludes other runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.staging = folder / _STAGING

    @contextmanager
    def opened(self) -> Iterator[Commit | None]:
        """Finish what an interrupted run had committed, discard the rest, and yield the last commit.

        Raises NotReadable when another run works on the lake, a file is missing, or a newer version wrote the
        lake.
        """
        (self.folder / _LOG).mkdir(parents=True, exist_ok=True)
        with (self.folder / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise NotReadable(f"another export into {self.folder} is running; wait for it") from None
            last = self.last()
            if last is not None:
                self._place(last)
            shutil.rmtree(self.staging, ignore_errors=True)
            yield last
            # Not after an error: committed files may still be there, and the next run moves them.
            shutil.rmtree(self.staging, ignore_errors=True)

    def check_placed(self) -> None:
        """Raise NotReadable unless all files of the last commit are in the lake."""
        last = self.last()
        if last is None:
            return
        there = all(
            (self.folder / target).exists() or self._is_removed(source, target)
            for source, target in last.files.items()
        )
        if not there or self._replaced(last):
            raise NotReadable(
                f"the last export into {self.folder} is not complete: wait for it if it runs, or repeat it"
            )

    def last(self) -> Commit | None:
        """The last commit."""
        paths = self._paths()
        return self._read(paths[-1]) if paths else None

    def commits(self) -> list[Commit]:
        """All commits, the oldest first."""
        return [self._read(path) for path in self._paths()]

    def _paths(self) -> list[Path]:
        return sorted((self.folder / _LOG).glob("*.json"))

    def _read(self, path: Path) -> Commit:
        try:
            commit = msgspec.json.decode(path.read_bytes(), type=Commit)
        except msgspec.DecodeError as error:
            raise NotReadable(f"{path} is no commit of a lake ({error}); restore it from a backup") from None
        if commit.format < FORMAT:
            raise NotReadable(
                f"the lake {self.folder} was written by a version of bunqueue before 0.1.0 (format"
                f" {commit.format}); export into a new folder"
            )
        if commit.format > FORMAT:
            raise NotReadable(
                f"the lake {self.folder} was written by a newer version of bunqueue (format"
                f" {commit.format}); upgrade bunqueue"
            )
        return commit

    def commit(self, commit: Commit) -> None:
        """Make all files of the staging folder part of the lake."""
        for path in sorted(self.staging.rglob("*.parquet")):
            place = path.relative_to(self.staging)
            target = place.with_name(f"{commit.number:06}-{place.name}")
            commit.files[str(place)] = str(target)
            sync(path)
        self._sync_folders(self.staging / place for place in commit.files)
        path = self.folder / _LOG / f"{commit.number:06}.json"
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(commit), indent=1))
        sync(temporary)
        temporary.replace(path)
        self._sync_folders([path])
        self._place(commit)

    def _place(self, commit: Commit) -> None:
        """Move the staged files of a commit, and then remove the files that they replace.  Rows may be there
        twice for a moment, but are never missing."""
        moved = []
        for source, target in commit.files.items():
            path, place = self.staging / source, self.folder / target
            if path.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                path.replace(place)
                moved.append(place)
            elif not place.exists() and not self._is_removed(source, target):
                raise NotReadable(
                    f"{place} is missing, which the last export had written; restore it from a backup, or"
                    f" take it out of the files of {self.folder / _LOG / f'{commit.number:06}.json'}"
                )
        self._sync_folders(moved)
        replaced = self._replaced(commit)
        for path in replaced:
            path.unlink()
        self._sync_folders(replaced)

    def _is_removed(self, source: str, target: str) -> bool:
        """Whether a file was removed with all of its day, as people do with days that they keep no longer."""
        return not (self.staging / source).exists() and not (self.folder / target).parent.exists()

    def _replaced(self, commit: Commit) -> list[Path]:
        """The files that a commit replaces and that still exist."""
        folders = {(self.folder / target).parent for target in commit.files.values()}
        if not commit.replaces:
            return []
        files = (path for folder in folders for path in folder.glob("*.parquet"))
        numbers = ((path, path.name.partition("-")[0]) for path in files)
        return [path for path, number in numbers if number.isdecimal() and int(number) < commit.number]

    def _sync_folders(self, paths: Iterable[Path]) -> None:
        """Sync the folders, so that the names of files survive a power cut."""
        for folder in {folder for path in paths for folder in path.parents}:
            if folder.is_relative_to(self.folder):
                sync(folder)
