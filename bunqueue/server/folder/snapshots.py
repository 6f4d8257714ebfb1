"""Copies of data folders, for backups and inspection: each shard as it is at one moment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bunqueue.server.folder.data_folder import NAME, is_resharded, private, shard_file, shards_of, sync
from bunqueue.server.folder.shard_file import KEPT_FREE, current
from bunqueue.server.folder.unreadable import NoRoom, UnreadableShard

AT_ONCE = 4  # shards in parallel: keeps their moments close; more would only wait for the disk


class SnapshotError(Exception):
    """No snapshot could be made; the text is one line that says what to do."""


def take(source: Path, target: Path) -> list[Path]:
    """Copy the data folder ``source`` into ``target``, a new or empty folder; return the copied files.

    Raise SnapshotError, or DataFolderError if ``source`` is not a data folder; ``target`` is then unchanged.
    While a shard is copied, its log cannot be reset; nothing waits for the copy.
    """
    files = [shard_file(source, number) for number in range(shards_of(source))]
    if is_resharded(source):
        raise SnapshotError(
            f"{source} has an interrupted reshard; run bunqueue reshard again to finish it, then copy it"
        )
    if source.resolve() in (target.resolve(), *target.resolve().parents):
        raise SnapshotError(f"{target} is in the data folder {source}; give another with --out")
    with _new_folder(target):
        _check_room(files, target)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda file: _copy(file, target / file.name), files))
        _write(
            target / NAME, (source / NAME).read_bytes()
        )  # written last: without it the folder is not a data folder
        sync(target)
    return [target / file.name for file in files]


def _copy(file: Path, target: Path) -> None:
    try:
        with current(file) as shard:
            shard.copy_to(target)
    except (UnreadableShard, NoRoom) as error:
        text = str(error).replace(", or leave it out with the option unreadable=skip", "")  # Spark's option
        raise SnapshotError(text) from error
    sync(target)


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb", opener=private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _check_room(files: Sequence[Path], target: Path) -> None:
    sizes = (path.stat().st_size for file in files for path in (file, _log(file)) if path.exists())
    needed, free = sum(sizes) + KEPT_FREE, shutil.disk_usage(target).free
    if needed > free:
        raise SnapshotError(
            f"the snapshot needs up to {needed / 1e6:,.0f} MB, and {target} has {free / 1e6:,.0f} MB left: "
            "give a folder on another disk with --out"
        )


def _log(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


@contextmanager
def _new_folder(target: Path) -> Iterator[None]:
    """Provide the empty folder ``target``.  If the block fails, it is emptied, or removed if it was new."""
    existed = target.exists()
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise SnapshotError(f"{target} is not empty; give a new folder with --out")
    except OSError as error:
        raise SnapshotError(f"{target} cannot be used: {error.strerror}; give another with --out") from error
    try:
        yield
    except BaseException as error:
        for file in target.iterdir():
            file.unlink()
        if not existed:
            target.rmdir()
        if isinstance(error, OSError):
            raise SnapshotError(f"{target} cannot be written to: {error.strerror}") from error
        raise
