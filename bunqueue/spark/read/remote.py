"""Copies of data folders in object stores: ``s3://bucket/backup``, and any other store that Arrow can open.

SQLite needs a file, so each task fetches the shard that it reads.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from bunqueue.data_folder import COMPLETE, NAME, RESHARD, DataFolderError, shards_of

from ..errors import NotReadable, UnreadableShard


def is_remote(path: str) -> bool:
    """Whether a path is an address rather than a file path."""
    return "://" in path


def remote_shards(uri: str) -> list[str]:
    """The addresses of a folder's shards.  NotReadable when it is no data folder, or cannot be reached."""
    with tempfile.TemporaryDirectory(prefix="bunqueue-") as scratch:
        try:
            _fetch(_within(uri, NAME), Path(scratch))
            if _exists(_within(uri, f"{RESHARD}/{COMPLETE}")):
                raise NotReadable(
                    f"{shown(uri)} is a copy of a folder with an interrupted reshard; make another one"
                )
            count = shards_of(Path(scratch))
        except DataFolderError as error:
            raise NotReadable(str(error).replace(scratch, shown(uri))) from None
        except (OSError, pa.ArrowException) as error:
            # No chained error: it contains the address, with its keys.
            raise NotReadable(f"{shown(uri)} cannot be reached: {_line(error, uri)}") from None
    return [_within(uri, f"shard-{number:02d}.db") for number in range(count)]


def shown(uri: str) -> str:
    """An address that is safe to show: without its keys and the options after the path."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


@contextmanager
def fetched(path: str) -> Iterator[Path]:
    """A shard's file on this machine, while it is used.  UnreadableShard when it cannot be fetched."""
    if not is_remote(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="bunqueue-") as scratch:
        parts = urlsplit(path)
        log = urlunsplit(parts._replace(path=f"{parts.path}-wal"))
        try:
            found = _fetch(path, Path(scratch))
            _fetch(log, Path(scratch))  # the newest jobs, if the copy was made by copying files
        except (OSError, pa.ArrowException) as error:
            raise UnreadableShard(f"{shown(path)} cannot be fetched: {_line(error, path, log)}") from None
        if not found:
            raise UnreadableShard(
                f"{shown(path)} is missing; put it there, or leave it out with unreadable=skip"
            )
        yield Path(scratch) / _file_name(path)


def _within(uri: str, name: str) -> str:
    """The address of a file in a folder; the store's options stay after the path."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def _file_name(uri: str) -> str:
    return urlsplit(uri).path.rpartition("/")[2]


def _exists(uri: str) -> bool:
    system, path = fs.FileSystem.from_uri(uri)
    return bool(system.get_file_info(path).type == fs.FileType.File)


def _fetch(uri: str, folder: Path) -> bool:
    """Copy a file into a folder; return whether the file exists."""
    if not _exists(uri):
        return False
    fs.copy_files(uri, (folder / _file_name(uri)).as_uri())
    return True


def _line(error: Exception, *uris: str) -> str:
    """An error's text in one line, with addresses that are safe to show."""
    text = " ".join(str(error).split())
    for uri in uris:
        parts = urlsplit(uri)
        secrets = (uri.rstrip("/"), parts.netloc.rpartition("@")[0] + "@", "?" + parts.query)
        for secret, instead in zip(secrets, (shown(uri), "", ""), strict=True):
            text = text.replace(secret, instead) if len(secret) > 1 else text
    return text
