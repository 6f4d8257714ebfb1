"""Makes a data folder from a backup, from a copy of one, or from a store's snapshots.

Everything is made in the folder `STAGE` inside the new one, checked there, and moved up at last; the manifest
goes last. So an interrupted restore leaves no folder that a server could use, and the next one begins again.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from bunqueue.server.audit.trail import FOLDER
from bunqueue.server.folder.data_folder import (
    FORMAT,
    LOCK,
    NAME,
    Manifest,
    is_standby,
    own_data_folder,
    private,
    read_identified,
    read_manifest,
    refuse,
    save_manifest,
    shard_file,
    sync,
)
from bunqueue.server.folder.shard_file import opened
from bunqueue.text import plural

from .create import BackupError
from .fetch import check_room, fetch, fetch_seconds
from .gzipped import unpacked
from .primary import newest
from .repository import REPOSITORY, Backup, Repository, id_of, ms_of
from .shipped import Segment, apply, changes_since, check_gapless
from .targets import Missing, Target, TargetError, read_whole
from .trail import fetch_trail
from .verify import CORES, Changes, ProgramFailed, examine, output_of

STAGE = ".restore"
CHECKED = 60e6  # bytes of files that a core checks in a second, about
SPARE = 1.1  # new files are made before the old ones are removed
_FILE = re.compile(r"shard-\d\d\.")  # whose name begins so is a shard's
_SNAPSHOT = re.compile(r"shard-(\d\d)\.(\d{20})\.db\.gz")
Report = Callable[[int, int], None]


class Source(Protocol):
    """What a folder can be restored from."""

    @property
    def about(self) -> str:
        """What it is, for people."""

    @property
    def moment(self) -> int | None:
        """The moment of its files, epoch ms; None if they do not say."""

    @property
    def bytes(self) -> int:
        """The size of the files."""

    @property
    def backup(self) -> Backup | None:
        """What the files should hold, if that is known."""

    @property
    def is_foreign(self) -> bool:
        """Whether the files belong to a store."""

    def seconds(self) -> float | None:
        """About how long a restore takes, as measured on a part of it; None if that is not worth it."""

    def fill(self, folder: Path, report: Report) -> None:
        """Make the files and the manifest in a folder."""


class Wanted(NamedTuple):
    """What to make of the files."""

    shards: int | None = None
    queues: list[str] = []  # noqa: RUF012  # never changed
    runs_missed: bool = False
    namespace: str = ""  # nothing but this one; ``queues`` are those in it


@dataclass
class Restored:
    """What was made, and what the next server does with it."""

    shards: int
    jobs: int  # that have not ended
    running: dict[str, int]  # by queue: jobs that were running, and run again
    schedules: list[str]  # whose times had passed
    dropped: list[str]  # queues that were left out


class FromBackup:
    """A backup."""

    is_foreign = False

    def __init__(self, repository: Repository, backup: Backup, segments: Sequence[Segment] = ()) -> None:
        """``segments``: what has changed since."""
        self._repository, self._backup, self._segments = repository, backup, segments
        self.backup = None if segments else backup  # what is counted is as it was in the backup
        self.about = f"backup {backup.id} in {repository.target.where}"
        self.moment: int | None = backup.moment
        if segments:
            self.about += f" and {plural(len(segments), 'change')} since"
            self.moment = ms_of(segments[-1].moment)
        self.bytes = backup.bytes

    def seconds(self) -> float | None:
        reading = fetch_seconds(self._repository, self._backup)
        return None if reading is None else reading + self.bytes / CHECKED / min(CORES, self._backup.shards)

    def fill(self, folder: Path, report: Report) -> None:
        fetch(self._repository, self._backup, folder, report)
        fetch_trail(self._repository, self._backup.trail, folder)
        apply(self._repository, self._segments, self._backup, folder)


class FromFolder:
    """A data folder, or a copy of one: `bunqueue snapshot`, the folder of a host that follows a store."""

    backup = None
    moment = None

    def __init__(self, folder: Path) -> None:
        """DataFolderError if it is none."""
        self._folder = folder
        self._manifest = read_identified(folder)
        self.is_foreign = bool(self._manifest.store)
        self._files = [shard_file(folder, shard) for shard in range(self._manifest.shards)]
        sizes = (path.stat().st_size for file in self._files for path in _parts(file))
        self.about, self.bytes = f"the folder {folder}", sum(sizes)

    def seconds(self) -> float | None:
        return None

    def fill(self, folder: Path, report: Report) -> None:
        for done, file in enumerate(self._files, 1):
            with opened(file) as shard:
                shard.check_pages()
                shard.copy_to(folder / file.name)
            report(done, len(self._files))
        if (self._folder / FOLDER).is_dir():
            shutil.copytree(self._folder / FOLDER, folder / FOLDER)
        plain = msgspec.structs.replace(self._manifest, format=FORMAT, store="", losses=[])
        save_manifest(folder, msgspec.structs.replace(plain, created=list(range(plain.shards))))


def _parts(file: Path) -> list[Path]:
    return [path for path in (file, Path(f"{file}-wal")) if path.exists()]


class FromSnapshots:
    """The snapshots of a store's shards, at the place of ``store_snapshots``. They hold no more than the
    store's log held when they were made."""

    backup = None
    moment = None
    is_foreign = True

    def __init__(self, target: Target) -> None:
        """TargetError if there are none."""
        self._target = target
        newest: dict[int, tuple[str, int]] = {}
        for name, size in sorted(target.names("")):
            if found := _SNAPSHOT.fullmatch(name):
                newest[int(found[1])] = (name, size)
        self._names = [newest[shard][0] for shard in sorted(newest)]
        count = len(newest)
        if not count:
            raise Missing(f"{target.where} has no backups, no data folder and no snapshots of a store")
        if sorted(newest) != list(range(count)) or count & (count - 1):
            raise TargetError(f"{target.where} has no snapshot of each shard: only of {sorted(newest)}")
        self.about = f"snapshots of a store in {target.where}"
        self.bytes = sum(size for _, size in newest.values())  # compressed

    def seconds(self) -> float | None:
        return None

    def fill(self, folder: Path, report: Report) -> None:
        for shard, name in enumerate(self._names):
            with open(shard_file(folder, shard), "wb", opener=private) as file:
                for part in unpacked(self._target.read(name), f"{self._target.where}: {name}"):
                    file.write(part)
                os.fsync(file.fileno())
            report(shard + 1, len(self._names))
        shards = list(range(len(self._names)))
        save_manifest(folder, Manifest(FORMAT, len(shards), secrets.token_hex(8), created=shards))


def source_of(target: Target, key: bytes | None, at: int | None) -> Source:
    """The backups, data folder or snapshots of a store at a target. ``at``: the newest backup
    that is not after this moment, epoch ms.

    TargetError, DataFolderError, or BackupError if there is nothing of that moment."""
    try:
        read_whole(target, REPOSITORY)
    except Missing:
        if at is not None:
            text = f"{target.where} has no backups, so no moment can be chosen: leave out --at"
            raise BackupError(text) from None
        folder = Path(target.where)
        if is_standby(folder):
            text = f"{folder} is the folder of a standby: make it the primary with bunqueue promote --force"
            raise BackupError(f"{text}, or restore the place that it follows") from None
        return FromFolder(folder) if (folder / NAME).exists() else FromSnapshots(target)
    repository = Repository(target, key)
    repository.open()
    until = None if at is None else id_of(at)
    held = newest(repository, until)
    first = next(held, None)
    if first is None:
        ids = repository.ids()
        when = f" before that moment: the first is {ids[0]}" if ids else ""
        raise BackupError(f"{target.where} has no backup{when}")
    return FromBackup(repository, *_latest(repository, first, held, until))


def _latest(
    repository: Repository, first: Backup, older: Iterable[Backup], until: str | None
) -> tuple[Backup, Sequence[Segment]]:
    """The backup, and the changes since, that come closest to a moment.  A server may have added changes to
    an earlier backup for longer than to the newest one, which somebody has made beside it."""
    for backup in chain([first], older):
        if backup.goes_on:
            segments = changes_since(repository, backup, until)
            if backup is first or (segments and segments[-1].moment > first.id):
                check_gapless(repository, backup, until)
                return backup, segments
            break
    return first, ()


def restore(
    source: Source, folder: Path, wanted: Wanted, report: Report = lambda done, total: None
) -> Restored:
    """Make a new data folder. BackupError if the files are not good; DataFolderError if the folder has
    something; TargetError, NoRoom and OSError. Then there is nothing that a server could use."""
    check_empty(folder)
    is_new = not folder.exists()
    try:
        with own_data_folder(folder):
            return _restore(source, folder, wanted, report)
    except BaseException:
        if is_new and folder.is_dir() and not [path for path in folder.iterdir() if path.name != LOCK]:
            shutil.rmtree(folder)
        raise


def _restore(source: Source, folder: Path, wanted: Wanted, report: Report) -> Restored:
    stage = folder / STAGE
    _clear(folder)
    stage.mkdir(mode=0o700)
    try:
        is_written_anew = wanted.shards or wanted.namespace
        check_room(int(source.bytes * (2 * SPARE if is_written_anew else 1)), folder)
        source.fill(stage, report)
        made = _prepare(source, stage, wanted)
    except BaseException:
        _clear(folder)
        raise
    _move_up(folder)
    return made


def check_empty(folder: Path) -> None:
    """DataFolderError unless a folder is new, empty, or what an interrupted restore has left, and apart from
    other data folders."""
    for around in folder.resolve().parents:
        if (around / NAME).exists():
            refuse(folder, f"would be in the data folder {around}; choose another --data-dir")
    if not folder.exists():
        return
    if not folder.is_dir():
        refuse(folder, "is not a folder; choose another --data-dir")
    names = {path.name for path in folder.iterdir()} - {LOCK}
    ours = STAGE in names and NAME not in names
    if names and not (ours and all(name in (STAGE, FOLDER) or _FILE.match(name) for name in names)):
        refuse(folder, "is not empty; choose another --data-dir, or move away what is there")


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name in (STAGE, FOLDER):
            shutil.rmtree(path)
        elif _FILE.match(path.name):
            path.unlink()


def _prepare(source: Source, stage: Path, wanted: Wanted) -> Restored:
    """Check the files, and make of them what is wanted."""
    changes = Changes(not wanted.runs_missed, wanted.queues, source.is_foreign, wanted.namespace)
    found = examine(stage, source.backup, changes)
    if found.problems:
        raise BackupError(f"{source.about} is not good: {'; '.join(found.problems)}")
    if (wanted.queues or wanted.namespace) and not found.kept:
        patterns = f" is like {' or '.join(map(repr, wanted.queues))}" if wanted.queues else ""
        where = f" in the namespace {wanted.namespace}" if wanted.namespace else ""
        raise BackupError(f"no queue{where}{patterns}: nothing was restored")
    if wanted.namespace and (stage / FOLDER).exists():  # the trail is about the whole server
        shutil.rmtree(stage / FOLDER)
    shards = read_manifest(stage).shards
    if wanted.shards not in (None, shards):
        _reshard(stage, wanted.shards or shards)
    return Restored(
        wanted.shards or shards,
        found.left,
        found.active,
        found.schedules,
        found.dropped,
    )


def _reshard(stage: Path, shards: int) -> None:
    try:
        output_of("shardproc.resharding", str(stage), str(shards))
    except ProgramFailed as error:
        raise BackupError(f"the number of shards cannot be changed: {error}") from error


def _move_up(folder: Path) -> None:
    """Put the files in their place; the manifest comes last."""
    stage = folder / STAGE
    for path in sorted(stage.iterdir(), key=lambda path: path.name == NAME):
        if path.suffix == ".lock":
            path.unlink()
            continue
        if path.name == NAME:
            sync(folder)
        path.replace(folder / path.name)
    sync(folder)
    shutil.rmtree(stage)
