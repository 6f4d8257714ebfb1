"""Copies of data folders in object stores: ``s3://bucket/backup``, and whatever else Arrow can open.

SQLite needs a file, so each task fetches the shard that it reads.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from bunqueue.data_folder import COMPLETE, NAME, RESHARD, DataFolderError, shards_of

from .errors import NotReadable, UnreadableShard


def is_remote(path: str) -> bool:
    """Whether a path is the address of something elsewhere."""
    return "://" in path


def remote_shards(uri: str) -> list[str]:
    """The addresses of a folder's shards.  NotReadable when it is no data folder, or cannot be reached."""
    uri = uri.rstrip("/")
    with tempfile.TemporaryDirectory(prefix="bunqueue-") as scratch:
        try:
            _fetch(f"{uri}/{NAME}", Path(scratch))
            if _exists(f"{uri}/{RESHARD}/{COMPLETE}"):
                raise NotReadable(
                    f"{uri} is a copy of a folder with an interrupted reshard; make another one"
                )
            count = shards_of(Path(scratch))
        except DataFolderError as error:
            raise NotReadable(str(error).replace(scratch, uri)) from None
        except (OSError, pa.ArrowException) as error:
            raise NotReadable(f"{uri} cannot be reached: {_line(error)}") from error
    return [f"{uri}/shard-{number:02d}.db" for number in range(count)]


@contextmanager
def fetched(path: str) -> Iterator[Path]:
    """A shard's file on this machine, for as long as it is used.  UnreadableShard when it cannot be had."""
    if not is_remote(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="bunqueue-") as scratch:
        try:
            found = _fetch(path, Path(scratch))
            _fetch(f"{path}-wal", Path(scratch))  # the newest jobs, if the copy was made by copying files
        except (OSError, pa.ArrowException) as error:
            raise UnreadableShard(f"{path} cannot be fetched: {_line(error)}") from error
        if not found:
            raise UnreadableShard(f"{path} is missing; put it there, or leave it out with unreadable=skip")
        yield Path(scratch) / path.rpartition("/")[2]


def _exists(uri: str) -> bool:
    system, path = fs.FileSystem.from_uri(uri)
    return bool(system.get_file_info(path).type == fs.FileType.File)


def _fetch(uri: str, folder: Path) -> bool:
    """Put a file into a folder; whether there is one."""
    if not _exists(uri):
        return False
    fs.copy_files(uri, (folder / uri.rpartition("/")[2]).as_uri())
    return True


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
