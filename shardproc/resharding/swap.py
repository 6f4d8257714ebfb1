"""Replacing the old files with the new ones, in steps after any of which the process may end.

Until `complete` the old files count, and the contents of the folder `RESHARD` are of no use. After it the new
ones count, and `finish` puts them in place, however often it has to start over.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec

from bunqueue.model.ids import MAX_SHARDS
from bunqueue.server.folder import data_folder
from bunqueue.server.folder.data_folder import COMPLETE, RESHARD, Manifest, shard_file, sync

FORMAT = 1


Shards = Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS)]


class Change(msgspec.Struct):
    """The change to finish: the contents of the file `COMPLETE`."""

    format: int
    old: Shards = 0
    new: Shards = 0
    id: str = ""  # of the folder
    generation: int = 1


def begin(folder: Path) -> Path:
    """Make an empty folder for the new files."""
    place = folder / RESHARD
    shutil.rmtree(place, ignore_errors=True)  # left over from an earlier run
    place.mkdir(mode=0o700)
    return place


def give_up(folder: Path) -> None:
    """Keep the old files, and remove the incomplete new ones as far as possible."""
    if not data_folder.is_resharded(folder):
        shutil.rmtree(folder / RESHARD, ignore_errors=True)


def complete(folder: Path, old: int, manifest: Manifest) -> None:
    """The new files are whole and on disk: make them count, with ``manifest`` as the folder's."""
    sync(folder / RESHARD)  # their names as well
    sync(folder)
    change = Change(FORMAT, old, manifest.shards, manifest.id, manifest.generation)
    data_folder.write_whole(folder / RESHARD / COMPLETE, change)


def finish(folder: Path) -> Change:
    """Put the new files in place; returns the change."""
    place = folder / RESHARD
    change = _read(folder)
    made = [number for number in range(change.new) if shard_file(place, number).exists()]
    for number in made:  # first the logs of old files, which new files of the same name must never meet
        for end in ("-wal", "-shm"):
            Path(f"{shard_file(folder, number)}{end}").unlink(missing_ok=True)
    sync(folder)
    for number in made:
        shard_file(place, number).replace(shard_file(folder, number))
    sync(folder)
    sync(place)
    data_folder.save_manifest(folder, _manifest(change))
    for number in range(change.new, change.old):
        for left in folder.glob(f"{shard_file(folder, number).stem}.*"):
            left.unlink(missing_ok=True)
    sync(folder)
    shutil.rmtree(place)
    with suppress(OSError):  # it is done; at worst it is done again
        sync(folder)
    return change


def _manifest(change: Change) -> Manifest:
    return Manifest(
        data_folder.FORMAT, change.new, change.id, change.generation, created=list(range(change.new))
    )


def _read(folder: Path) -> Change:
    file = folder / RESHARD / COMPLETE
    try:
        change = data_folder.read_whole(file, Change)
    except msgspec.DecodeError as error:
        _refuse(file, f"is damaged ({error}); restore the data folder from a backup")
    if change.format > FORMAT:
        _refuse(file, "was written by a newer version of bunqueue; upgrade bunqueue")
    return change


def _refuse(file: Path, why: str) -> NoReturn:
    raise data_folder.DataFolderError(f"{file} {why}")
