"""Copies of data folders, made while a server runs, so that repeated reads see the same data.

A copy is itself a data folder.  Making it blocks no client.  While a shard is copied, its log grows by all
new writes.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bunqueue.server.folder.data_folder import read_manifest, save_manifest
from bunqueue.server.folder.shard_file import KEPT_FREE, current, identity

from ..errors import NotReadable, UnreadableShard
from .folders import Shard, find_shards
from .remote import is_remote, is_snapshot

AT_ONCE = 4  # shards; more would only wait for the disk
logger = logging.getLogger("bunqueue.spark")


def is_live(path: str | os.PathLike[str]) -> bool:
    """Whether a server is writing to a data folder of this machine, or has left a log behind in a crash.

    Raises NotReadable if that path has no data folder.
    """
    if is_remote(str(path)):
        return False
    return any(_is_live(Path(shard.path)) for shard in find_shards([str(path)], ["any"]))


def _is_live(file: Path) -> bool:
    try:
        return identity(file) is None
    except UnreadableShard:  # reported when it is read
        return False


def copy(
    path: str | os.PathLike[str], target: str | os.PathLike[str], *, skip_unreadable: bool = False
) -> Path:
    """Copy a data folder into the new folder ``target``, each shard as of one moment.  Return ``target``.

    Raises NotReadable when ``path`` cannot be read or ``target`` exists; then there is no copy.  With
    ``skip_unreadable``, unreadable shards are left out and logged.
    """
    place, folder = Path(path), Path(target)
    shards = find_shards([str(place)], ["copied"])
    if any(is_snapshot(shard.path) for shard in shards):
        raise NotReadable(f"{place} holds snapshots of a store, which do not change: read them as they are")
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise NotReadable(f"{folder} exists already; give a folder that does not") from None
    try:
        _check_room(shards, folder)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda shard: _copy_shard(Path(shard.path), folder, skip_unreadable), shards))
        if place.is_dir():
            save_manifest(folder, read_manifest(place))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder if place.is_dir() else folder / place.name


def _check_room(shards: Sequence[Shard], folder: Path) -> None:
    """Raise NotReadable if the disk has too little free space."""
    needed = sum(Path(shard.path).stat().st_size for shard in shards if Path(shard.path).exists())
    needed += KEPT_FREE
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise NotReadable(
            f"a copy needs {needed / 1e6:,.0f} MB, and {folder.parent} has {free / 1e6:,.0f} MB left: give "
            "another place (scratch, or TMPDIR)"
        )


def _copy_shard(path: Path, folder: Path, skip: bool) -> None:
    target = folder / path.name
    try:
        with current(path) as file:
            file.copy_to(target)
    except UnreadableShard as error:
        if not skip:
            raise
        target.unlink(missing_ok=True)
        logger.warning("skipped: %s", error)


@contextmanager
def snapshot(
    path: str | os.PathLike[str],
    scratch: str | os.PathLike[str] | None = None,
    *,
    skip_unreadable: bool = False,
) -> Iterator[str]:
    """A copy of a data folder for as long as it is used: ``with snapshot(folder) as still: ...``.

    ``scratch`` is the folder for the copy, by default the system's temporary folder.  The copy takes as much
    space as the shards.  Raises NotReadable like `copy`.
    """
    name = Path(path).absolute().name or "data"
    with _temporary(scratch) as folder:
        yield str(copy(path, folder / name, skip_unreadable=skip_unreadable))


@contextmanager
def _temporary(scratch: str | os.PathLike[str] | None) -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="bunqueue-snapshot-", dir=scratch)
    except OSError as error:
        place = scratch or tempfile.gettempdir()
        raise NotReadable(
            f"scratch: no copy can be made in {place} ({error.strerror}); give a folder that you may write to"
        ) from error
    with folder as path:
        yield Path(path)
