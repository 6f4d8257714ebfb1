"""The shards at a path: those of a server's folder, of a copy of it, or one embedded file."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bunqueue.server.folder.data_folder import (
    NAME,
    DataFolderError,
    is_resharded,
    may_be_database,
    shard_file,
    shards_of,
)

from ..errors import BadOption, NotReadable
from .remote import is_remote, remote_shards


class Shard(NamedTuple):
    """A shard's file, on this machine or at an address, and the machine that it came from."""

    host: str
    number: int
    path: str


def find_shards(paths: Sequence[str], hosts: Sequence[str]) -> list[Shard]:
    """All shards at these paths. ``hosts`` names the machine of each path, if given.

    Raises NotReadable if a path has no shards. An unreadable file is found only when it is opened.
    """
    if not paths:
        raise BadOption('path: give the data folder, as in .load("/var/lib/bunqueue")')
    if hosts and len(hosts) != len(paths):
        raise BadOption(
            f"hosts: {len(hosts)} names for {len(paths)} paths; give one for each, in their order"
        )
    if not hosts and len(paths) > 1:
        raise BadOption(
            f"hosts: needed to tell the rows of {len(paths)} paths apart; give a name for each, with commas"
        )
    names = hosts or [socket.gethostname()]
    return [shard for path, host in zip(paths, names, strict=True) for shard in _shards_at(path, host)]


def _shards_at(path: str, host: str) -> Iterator[Shard]:
    if is_remote(path):
        for number, address in enumerate(remote_shards(path)):
            yield Shard(host, number, address)
        return
    place = Path(path)
    if place.is_file():
        if not may_be_database(place):
            raise NotReadable(
                f"{path} is no file of bunqueue; give a data folder, or an embedded queue's file"
            )
        yield Shard(host, 0, str(place.absolute()))
        return
    if not place.is_dir():
        raise NotReadable(f"there is no folder {path}; give the --data-dir of a server, or a copy of it")
    if snapshots := kept_snapshots(place):
        yield from (Shard(host, number, str(file)) for number, file in enumerate(snapshots))
        return
    try:
        if is_resharded(place):
            raise NotReadable(f"{path} has an interrupted reshard; run bunqueue reshard again to finish it")
        count = shards_of(place)
    except DataFolderError as error:
        raise NotReadable(str(error)) from None
    except OSError as error:
        raise NotReadable(f"{path} cannot be read: {error.strerror}; run this as a user who may") from error
    for number in range(count):
        yield Shard(host, number, str(shard_file(place.absolute(), number)))


def kept_snapshots(folder: Path) -> list[Path]:
    """The newest snapshot of each shard, if a store keeps them in this folder. Otherwise an empty list.

    For a shard without a snapshot the file does not exist yet.
    """
    if (folder / NAME).exists():
        return []
    found = {int(file.name[6:8]): file for file in sorted(folder.glob("shard-[0-9][0-9].*.db.gz"))}
    count = 1 << max(found, default=0).bit_length()  # a power of two
    none = "shard-{:02}.none.db.gz"
    return [found.get(number, folder / none.format(number)) for number in range(count)] if found else []
