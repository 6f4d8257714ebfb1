"""Copies of data folders, for backups and inspection: each shard as it is at one moment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bunqueue.server.folder.data_folder import NAME, is_resharded, private, shard_file, shards_of, sync
from bunqueue.server.folder.shard_file import KEPT_FREE, current
from bunqueue.server.folder.unreadable import NotReadable, UnreadableShard

AT_ONCE = 4  # shards in parallel: keeps their moments close; more would only wait for the disk


def take(source: Path, target: Path) -> list[Path]:
    """Copy the data folder ``source`` into ``target``, a new or empty folder; return the copied files.

    Raise NotReadable, or DataFolderError if ``source`` is not a data folder; ``target`` is then unchanged.
    While a shard is copied, its log cannot be reset; nothing waits for the copy.
    """
    files = [shard_file(source, number) for number in range(shards_of(source))]
    if is_resharded(source):
        raise NotReadable(
            f"{source} has an interrupted reshard; run bunqueue reshard again to finish it, then copy it"
        )
    if source.resolve() in (target.resolve(), *target.resolve().parents):
        raise NotReadable(f"{target} is in the data folder {source}; give another folder")
    with new_folder(target):
        copied = copy_files(files, target)
        for file in copied:
            sync(file)
        copy_manifest(source, target)
    return copied


def copy_files(
    files: Sequence[Path], target: Path, skipped: Callable[[UnreadableShard], object] | None = None
) -> list[Path]:
    """Copy the files of shards, each as of one moment, into a folder.  With ``skipped``, those that cannot be
    read are left out, and it is called for each.  Raises NotReadable."""

    def copy(file: Path) -> Path | None:
        copied = target / file.name
        try:
            with current(file) as shard:
                shard.copy_to(copied)
        except UnreadableShard as error:
            if skipped is None:
                raise
            copied.unlink(missing_ok=True)
            skipped(error)
            return None
        return copied

    _check_room(files, target)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [copied for copied in pool.map(copy, files) if copied is not None]


def copy_manifest(source: Path, target: Path) -> None:
    """Make a folder with copied files a data folder."""
    _write(target / NAME, (source / NAME).read_bytes())
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
        raise NotReadable(
            f"the copy needs up to {needed / 1e6:,.0f} MB, and {target} has {free / 1e6:,.0f} MB left: "
            "give a folder on another disk"
        )


def _log(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


@contextmanager
def new_folder(target: Path) -> Iterator[None]:
    """Provide the empty folder ``target``.  If the block fails, it is emptied, or removed if it was new."""
    existed = target.exists()
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise NotReadable(f"{target} is not empty; give a new folder")
    except OSError as error:
        raise NotReadable(f"{target} cannot be used: {error.strerror}; give another folder") from error
    try:
        yield
    except BaseException as error:
        for file in target.iterdir():
            file.unlink()
        if not existed:
            target.rmdir()
        if isinstance(error, OSError):
            raise NotReadable(f"{target} cannot be written to: {error.strerror}") from error
        raise
