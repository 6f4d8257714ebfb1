"""Copies of data folders, made while a server runs, so that repeated reads see the same data.

A copy is itself a data folder.  Making it blocks no client.  While a shard is copied, its log grows by all
new writes.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bunqueue.server.folder.shard_file import identity
from bunqueue.server.folder.snapshots import copy_files, copy_manifest, new_folder

from ..errors import NotReadable, UnreadableShard
from .folders import find_shards
from .remote import is_remote, is_snapshot

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
    """Copy a data folder into ``target``, a new or empty folder, each shard as of one moment.  Return
    ``target``.

    Raises NotReadable when ``path`` cannot be read or ``target`` is not empty; then there is no copy.  With
    ``skip_unreadable``, unreadable shards are left out and logged.
    """
    place, folder = Path(path), Path(target)
    files = [Path(shard.path) for shard in find_shards([str(place)], ["copied"])]
    if any(is_snapshot(str(file)) for file in files):
        raise NotReadable(f"{place} holds snapshots of a store, which do not change: read them as they are")
    with new_folder(folder):
        copy_files(files, folder, partial(logger.warning, "skipped: %s") if skip_unreadable else None)
        if place.is_dir():
            copy_manifest(place, folder)
    return folder if place.is_dir() else folder / place.name


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
    try:
        folder = tempfile.TemporaryDirectory(prefix="bunqueue-snapshot-", dir=scratch)
    except OSError as error:
        place = scratch or tempfile.gettempdir()
        raise NotReadable(
            f"scratch: no copy can be made in {place} ({error.strerror}); give a folder that you may write to"
        ) from error
    with folder as inside:
        yield str(copy(path, Path(inside) / name, skip_unreadable=skip_unreadable))
