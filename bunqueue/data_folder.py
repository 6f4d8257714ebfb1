"""The folder of a server: for how many shards it was made, in which format, and who may work on it.

Jobs are found by their shard, so the same files under another number of shards would hide jobs from
their queues.  Therefore the number is written down before the first shard starts, and checked from
then on.  `bunqueue reshard` changes it, together with the files.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TextIO

import msgspec

NAME = "manifest.json"
LOCK = "server.lock"
FORMAT = 1
RESHARD = ".reshard"  # where `bunqueue reshard` makes new files; without `COMPLETE` in it nobody needs it
DATABASE = b"SQLite format 3\0"  # how every file of jobs begins, unless it is empty
COMPLETE = "complete.json"  # they are whole and take the place of the old ones, whatever happens


class DataFolderError(Exception):
    """The folder cannot be used like that; the text is one line that says what to do."""


class Manifest(msgspec.Struct):
    """What ``manifest.json`` holds."""

    format: int
    shards: int = 0  # a newer format may say it otherwise


def open_data_folder(folder: Path, shards: int) -> None:
    """Make ``folder`` and its manifest if need be.  DataFolderError unless it is a folder for ``shards``, and
    its files can be what they should be."""
    with _usable(folder):
        if is_resharded(folder):
            refuse(folder, "has an interrupted reshard: run bunqueue reshard again to finish it")
        found = _read(folder)
        if found is None:
            _check_files(folder)
            write_manifest(folder, shards)
        elif found.shards != shards:
            refuse(
                folder,
                f"was made for {found.shards} shards, not {shards}; start with --shards {found.shards}, "
                f"change it with bunqueue reshard --shards {shards}, or choose another --data-dir",
            )
        else:
            _check_files(folder)


def _check_files(folder: Path) -> None:
    """Refuse what would stop a shard again and again, and jobs that SQLite would throw away in silence."""
    for file in sorted(folder.glob("shard-*.db")):
        if not may_be_database(file):
            refuse(
                folder,
                f"has a {file.name} that is no database; restore that file from a backup of the folder",
            )
    for log in sorted(folder.glob("*.db-wal")):
        file = log.with_name(log.name.removesuffix("-wal"))
        if log.stat().st_size and not (file.exists() and file.stat().st_size):
            refuse(
                folder,
                f"has a {log.name}, which holds the newest jobs of {file.name}, but not that file; "
                f"put both there, or take {log.name} away",
            )


def may_be_database(file: Path) -> bool:
    """Whether an existing file begins as those of SQLite do, or is empty."""
    with file.open("rb") as opened:
        return opened.read(len(DATABASE)) in (b"", DATABASE)


def own_data_folder(folder: Path) -> TextIO:
    """Make ``folder`` if need be, and keep other servers out for as long as the handle is open;
    DataFolderError when one is in already.

    The system takes the lock back when this process ends, however it ends.
    """
    with _usable(folder):
        handle = (folder / LOCK).open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        refuse(folder, "is in use by another server; stop that one, or choose another --data-dir")
    return handle


def is_resharded(folder: Path) -> bool:
    """Whether new files for another number of shards have to take the place of the old ones."""
    return (folder / RESHARD / COMPLETE).exists()


def shards_of(folder: Path) -> int:
    """The number of shards that an existing data folder was made for; DataFolderError if it is none."""
    found = _read(folder)
    if found is None:
        refuse(folder, f"is none: there is no {NAME} in it; check --data-dir")
    return found.shards


def shard_file(folder: Path, shard: int) -> Path:
    """The file that keeps the jobs of a shard."""
    return folder / f"shard-{shard:02d}.db"


def refuse(folder: Path, why: str) -> NoReturn:
    raise DataFolderError(f"the data folder {folder} {why}")


def write_manifest(folder: Path, shards: int) -> None:
    """Say for how many shards the folder is."""
    write_whole(folder / NAME, Manifest(FORMAT, shards))
    for place in folder.parents:  # the folders above may be as new as this one
        with suppress(PermissionError):  # those are not
            sync(place)


def write_whole(path: Path, content: msgspec.Struct) -> None:
    """Write a JSON file whole or not at all, and so that it is still there after a power loss."""
    temporary = path.with_name(f".{path.name}.new")  # left behind by a crash, and then written over
    with open(temporary, "wb", opener=private) as file:
        file.write(msgspec.json.encode(content) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def private(path: str, flags: int) -> int:
    """An `opener`: a new file is nobody's but its owner's, whatever the umask."""
    return os.open(path, flags, 0o600)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Make ``folder`` if need be; DataFolderError when it cannot be used."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            refuse(folder, "cannot be written to; change its owner or mode")
        yield
    except OSError as error:
        raise DataFolderError(f"the data folder {folder} cannot be used: {error.strerror}") from error


def _read(folder: Path) -> Manifest | None:
    path = folder / NAME
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        if any(folder.glob("shard-*.db")):
            refuse(folder, f"has shards but no {NAME}; restore that file from a backup of the folder")
        return None
    except msgspec.DecodeError as error:
        refuse(folder, f"has a damaged {NAME} ({error}); restore that file from a backup of the folder")
    if found.format > FORMAT:
        newer = f"a newer version of bunqueue (format {found.format})"
        refuse(folder, f"was written by {newer}; upgrade bunqueue")
    if found.shards < 1:
        refuse(
            folder,
            f"has a {NAME} that does not say for how many shards it is: write "
            f'{{"format": {FORMAT}, "shards": N}} there, or restore that file from a backup of the folder',
        )
    return found
