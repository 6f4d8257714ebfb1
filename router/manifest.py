"""The manifest of a data folder: for how many shards it was made, in which format.

Jobs are found by their shard, so the same files under another number of shards would hide jobs from
their queues.  Therefore the number is written down before the first shard starts, and checked from
then on.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TextIO

import msgspec

from .errors import StartError

NAME = "manifest.json"
LOCK = "server.lock"
FORMAT = 1
_TEMPORARY = ".manifest.json.new"  # left behind by a crash, and then written over by the next start


class Manifest(msgspec.Struct):
    """What ``manifest.json`` holds."""

    format: int
    shards: int = 0  # a newer format may say it otherwise


def open_data_dir(folder: Path, shards: int) -> None:
    """Make ``folder`` and its manifest if need be.  StartError unless it is a folder for ``shards``."""
    with _usable(folder):
        found = _read(folder)
        if found is None:
            _write(folder, Manifest(FORMAT, shards))
        else:
            _check(folder, found, shards)


def own_data_dir(folder: Path) -> TextIO:
    """Keep other servers out for as long as the handle is open; StartError when one is in already.

    The system takes the lock back when this process ends, however it ends.
    """
    with _usable(folder):
        handle = (folder / LOCK).open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        _refuse(folder, "is in use by another server; stop that one, or choose another --data-dir")
    return handle


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Make ``folder`` if need be; StartError when it cannot be used."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            _refuse(folder, "cannot be written to; change its owner or mode")
        yield
    except OSError as error:
        raise StartError(f"the data folder {folder} cannot be used: {error.strerror}") from error


def _read(folder: Path) -> Manifest | None:
    path = folder / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        if any(folder.glob("shard-*.db")):
            _refuse(folder, f"has shards but no {NAME}; restore that file from a backup of the folder")
        return None
    except msgspec.DecodeError as error:
        _refuse(folder, f"has a damaged {NAME} ({error}); restore that file from a backup of the folder")


def _check(folder: Path, found: Manifest, shards: int) -> None:
    if found.format > FORMAT:
        _refuse(
            folder, f"was written by a newer version of bunqueue (format {found.format}); upgrade bunqueue"
        )
    if found.shards != shards:
        _refuse(
            folder,
            f"was made for {found.shards} shards, not {shards}; start with --shards {found.shards}, or "
            "choose another --data-dir",
        )


def _refuse(folder: Path, why: str) -> NoReturn:
    raise StartError(f"the data folder {folder} {why}")


def _write(folder: Path, manifest: Manifest) -> None:
    """Write it whole or not at all, and so that it is still there after a power loss."""
    temporary = folder / _TEMPORARY
    with open(temporary, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(msgspec.json.encode(manifest) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / NAME)
    for place in (folder, *folder.parents):  # the folders above may be as new as this one
        with suppress(PermissionError):  # those are not
            _sync(place)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
