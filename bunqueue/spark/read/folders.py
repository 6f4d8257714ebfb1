"""The shards at a path: those of a server's folder, of a copy of it, or one embedded file."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bunqueue.errors import OptionError
from bunqueue.server.folder.data_folder import (
    NAME,
    DataFolderError,
    is_resharded,
    may_be_database,
    shard_file,
    shards_of,
)

from ..errors import NotReadable
from .remote import is_remote, newest_snapshots, remote_shards, shown


class Shard(NamedTuple):
    """A shard's file, on this machine or at an address, and the machine that it came from."""

    host: str
    number: int
    path: str


def find_shards(paths: Sequence[str], hosts: Sequence[str]) -> list[Shard]:
    """All shards at these paths. ``hosts`` names the machine of each path; see `host_names`.

    Raises NotReadable if a path has no shards. An unreadable file is found only when it is opened.
    """
    if not paths:
        raise OptionError('path: give the data folder, as in .load("/var/lib/bunqueue")')
    names = host_names(paths, hosts)
    return [shard for path, host in zip(paths, names, strict=True) for shard in _shards_at(path, host)]


def host_names(paths: Sequence[str], hosts: Sequence[str]) -> list[str]:
    """A name for the machine of each path: the given ones, or this machine's name for a single path, or the
    names of the folders.

    Raises OptionError when there are too few or too many names, or when two are the same.
    """
    if hosts and len(hosts) != len(paths):
        raise OptionError(
            f"hosts: {len(hosts)} names for {len(paths)} paths; give one for each, in their order"
        )
    own = [Path(shown(path) if is_remote(path) else path).name for path in paths]
    names = list(hosts) or (own if len(paths) > 1 else [socket.gethostname()])
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OptionError(f"hosts: {twice!r} names two paths; give each a name of its own")
    return names


def _shards_at(path: str, host: str) -> Iterator[Shard]:
    try:
        files = remote_shards(path) if is_remote(path) else [str(file) for file in _files_at(Path(path))]
    except OSError as error:
        raise NotReadable(
            f"{path} cannot be read: {error.strerror}; run this as a user who may read it"
        ) from error
    for number, file in enumerate(files):
        yield Shard(host, number, file)


def _files_at(place: Path) -> list[Path]:
    if place.is_file():
        if not may_be_database(place):
            raise NotReadable(
                f"{place} is no file of bunqueue; give a data folder, or an embedded queue's file"
            )
        return [place.absolute()]
    if not place.is_dir():
        raise NotReadable(f"there is no folder {place}; give the --data-dir of a server, or a copy of it")
    if snapshots := kept_snapshots(place):
        return snapshots
    if is_resharded(place):
        raise NotReadable(f"{place} has an interrupted reshard; run bunqueue reshard again to finish it")
    try:
        count = shards_of(place)
    except DataFolderError as error:
        raise NotReadable(str(error)) from None
    return [shard_file(place.absolute(), number) for number in range(count)]


def kept_snapshots(folder: Path) -> list[Path]:
    """The newest snapshot of each shard, if a store keeps them in this folder. Otherwise an empty list."""
    if (folder / NAME).exists():
        return []
    return [folder / name for name in newest_snapshots(file.name for file in folder.iterdir())]
