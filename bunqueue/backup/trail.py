"""The trail of who changed what, in backups: each file as it was, and what has been appended since.

A file is stored under a name that follows from its content, so those that are full are stored once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from bunqueue.server.audit.trail import FOLDER, MAX_FILE, files_in, is_file_name

from .repository import TRAIL, Repository
from .sealing import Damaged

MOST = MAX_FILE  # bytes that are appended to a segment
LARGEST = 2 * MAX_FILE  # bytes of a file: its last entry may be long


class Appended(msgspec.Struct):
    """What was appended to a file."""

    name: str
    at: int  # byte
    body: bytes


class StoredTrail:
    """How much of a folder's trail is stored."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._sizes: dict[str, int] = {}

    def store(self, repository: Repository) -> dict[str, str]:
        """Store all of it; returns where each file is. TargetError."""
        there = {name for name, _ in repository.target.names(TRAIL)}
        found: dict[str, str] = {}
        for file in files_in(self._folder):
            body = _lines(file.path, 0, LARGEST)
            place = repository.sealer.content_name(body)
            name = f"{TRAIL}{place}"
            if name not in there:
                repository.target.write(name, repository.sealer.seal(name, body))
            found[file.path.name] = place
            self._sizes[file.path.name] = len(body)
        return found

    def appended(self) -> list[Appended]:
        """What is not stored yet, or some of it."""
        found: list[Appended] = []
        left = MOST
        for file in files_in(self._folder):
            at = self._sizes.get(file.path.name, 0)
            if body := _lines(file.path, at, left):
                found.append(Appended(file.path.name, at, body))
                left -= len(body)
        return found

    def stored(self, appended: Iterable[Appended]) -> None:
        """This is stored now."""
        for each in appended:
            self._sizes[each.name] = each.at + len(each.body)


def _lines(path: Path, at: int, most: int) -> bytes:
    """The whole lines of a file from a byte on, of so many bytes at the most."""
    try:
        with path.open("rb") as file:
            file.seek(at)
            body = file.read(most)
    except FileNotFoundError:  # it has just been removed by age
        return b""
    return body[: body.rfind(b"\n") + 1]


def fetch_trail(repository: Repository, trail: Mapping[str, str], folder: Path) -> None:
    """Make the files of a backup's trail in a data folder. TargetError, OSError."""
    for name, place in trail.items():
        body = read_trail(repository, name, place)
        append([Appended(name, 0, body)], folder)


def read_trail(repository: Repository, name: str, place: str) -> bytes:
    """A file of a backup's trail. TargetError."""
    _check(name, 0)
    if not place.isalnum():
        raise Damaged(f"the trail's file {name} is at {place[:64]!r}")
    body = repository.read(f"{TRAIL}{place}")
    if repository.sealer.content_name(body) != place:
        raise Damaged(f"the trail's file {name} is not what the backup has stored")
    return body


def append(appended: Iterable[Appended], folder: Path) -> None:
    """Write pieces of a trail into a data folder. Doing it twice does no harm. Damaged, OSError."""
    for each in appended:
        _check(each.name, each.at + len(each.body))
        (folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / FOLDER / each.name, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, each.body, each.at)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _check(name: str, size: int) -> None:
    if not is_file_name(name) or not 0 <= size <= LARGEST:
        raise Damaged(f"{name[:64]!r} is no file of a trail, or too large: {size:,} bytes")
