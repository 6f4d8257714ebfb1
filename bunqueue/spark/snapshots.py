"""Copies of data folders, made while a server works: what one reads again and again stays the same.

A copy is a data folder itself.  It holds up nobody; the log of each shard grows by what is written while that
shard is copied.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bunqueue.data_folder import write_manifest

from .errors import NotReadable
from .folders import find_shards
from .shard_file import opened

AT_ONCE = 4  # shards; more would only wait for the disk


def copy(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> Path:
    """Copy a data folder into the new folder ``target``, each shard as it is at one moment; ``target``.

    NotReadable when ``path`` cannot be read or ``target`` exists; then there is no copy.
    """
    place, folder = Path(path), Path(target)
    shards = find_shards([str(place)], ["copied"])
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise NotReadable(f"{folder} exists already; give a folder that does not") from None
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda shard: _copy_shard(Path(shard.path), folder), shards))
        if place.is_dir():
            write_manifest(folder, len(shards))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder if place.is_dir() else folder / place.name


def _copy_shard(path: Path, folder: Path) -> None:
    with opened(path) as file:
        file.copy_to(folder / path.name)


@contextmanager
def snapshot(path: str | os.PathLike[str], scratch: str | os.PathLike[str] | None = None) -> Iterator[str]:
    """A copy of a data folder for as long as it is used: ``with snapshot(folder) as still: ...``.

    ``scratch`` is where it is made, by default the system's temporary folder; it takes as much room as the
    jobs.
    """
    with tempfile.TemporaryDirectory(prefix="bunqueue-snapshot-", dir=scratch) as folder:
        yield str(copy(path, Path(folder) / "data"))
