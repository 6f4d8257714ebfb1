"""Copies of data folders in object stores (``s3://bucket/backup``, and any other store that Arrow can open),
and snapshots of a bunqueue store in a folder.

SQLite needs a file, so each task fetches or expands the shard that it reads.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from bunqueue.server.folder.data_folder import COMPLETE, NAME, RESHARD, DataFolderError, shards_of

from ..errors import NotReadable, UnreadableShard

CHUNK = 4 << 20  # bytes


def is_remote(path: str) -> bool:
    """Whether a path is an address rather than a file path."""
    return "://" in path


def remote_shards(uri: str) -> list[str]:
    """The addresses of a folder's shards.  Raises NotReadable when it is not a data folder, or cannot be
    reached."""
    with tempfile.TemporaryDirectory(prefix="bunqueue-") as scratch:
        try:
            names = _names(uri)
            if NAME not in names and (snapshots := newest_snapshots(names)):
                return [_within(uri, name) for name in snapshots]
            _fetch(_within(uri, NAME), Path(scratch))
            if _exists(_within(uri, f"{RESHARD}/{COMPLETE}")):
                raise NotReadable(
                    f"{shown(uri)} is a copy of a folder with an interrupted reshard; make another one"
                )
            count = shards_of(Path(scratch))
        except DataFolderError as error:
            raise NotReadable(str(error).replace(scratch, shown(uri))) from None
        except (OSError, pa.ArrowException) as error:
            # Without a chained error, which would contain the address with its keys.
            raise NotReadable(f"{shown(uri)} cannot be reached: {_line(error, uri)}") from None
    return [_within(uri, f"shard-{number:02d}.db") for number in range(count)]


def shown(uri: str) -> str:
    """An address that is safe to show: without keys and without the options after the path."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


@contextmanager
def fetched(path: str) -> Iterator[Path]:
    """A shard's file on this machine, while it is used.  Raises UnreadableShard when it cannot be fetched."""
    if not is_remote(path):
        with expanded(Path(path), path) if is_snapshot(path) else nullcontext(Path(path)) as file:
            yield file
        return
    with tempfile.TemporaryDirectory(prefix="bunqueue-") as scratch:
        parts = urlsplit(path)
        log = urlunsplit(parts._replace(path=f"{parts.path}-wal"))
        try:
            found = _fetch(path, Path(scratch))
            _fetch(log, Path(scratch))  # the newest jobs, if the files were copied one by one
        except (OSError, pa.ArrowException) as error:
            raise UnreadableShard(f"{shown(path)} cannot be fetched: {_line(error, path, log)}") from None
        file = Path(scratch) / _file_name(path)
        if is_snapshot(path):
            with expanded(file, shown(path)) as inside:
                yield inside
        elif found:
            yield file
        else:
            raise UnreadableShard(
                f"{shown(path)} is missing; put it there, or leave it out with unreadable=skip"
            )


def is_snapshot(path: str) -> bool:
    """Whether a shard's file is a snapshot of a store: compressed."""
    return (urlsplit(path).path if is_remote(path) else path).endswith(".db.gz")


def newest_snapshots(names: Iterable[str]) -> list[str]:
    """The newest snapshot of each shard of a store, if there are any among these files.  For a shard without
    one, the name of a file that does not exist."""
    matching = sorted(name for name in names if fnmatch(name, "shard-[0-9][0-9].*.db.gz"))
    found = {int(name[6:8]): name for name in matching}
    count = 1 << max(found, default=0).bit_length()  # a power of two
    return [found.get(number, f"shard-{number:02}.none.db.gz") for number in range(count)] if found else []


@contextmanager
def expanded(snapshot: Path, named: str) -> Iterator[Path]:
    """The shard's file inside a snapshot, while it is used.  Raises UnreadableShard when it cannot be read;
    its text says where it is, as ``named``."""
    with tempfile.TemporaryDirectory(prefix="bunqueue-") as scratch:
        file = Path(scratch) / f"{snapshot.name.partition('.')[0]}.db"
        try:
            with gzip.open(snapshot) as packed, file.open("wb") as target:
                shutil.copyfileobj(packed, target, CHUNK)
        except FileNotFoundError:
            raise UnreadableShard(
                f"{named.rpartition('/')[0]} has no snapshot of shard {snapshot.name[6:8]}, or not any more: "
                "make one with bunqueue store snapshot, or leave it out with unreadable=skip"
            ) from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UnreadableShard(
                f"{named} is damaged, or not whole ({error}); make another one with bunqueue store "
                "snapshot, or leave it out with unreadable=skip"
            ) from None
        except OSError as error:
            raise UnreadableShard(f"{named} cannot be read: {error.strerror}") from None
        yield file


def _within(uri: str, name: str) -> str:
    """The address of a file in a folder.  The store's options stay after the path."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def _file_name(uri: str) -> str:
    return urlsplit(uri).path.rpartition("/")[2]


def _names(uri: str) -> set[str]:
    """The names of the files in a folder."""
    system, path = fs.FileSystem.from_uri(uri)
    return {info.base_name for info in system.get_file_info(fs.FileSelector(path, allow_not_found=True))}


def _exists(uri: str) -> bool:
    system, path = fs.FileSystem.from_uri(uri)
    return bool(system.get_file_info(path).type == fs.FileType.File)


def _fetch(uri: str, folder: Path) -> bool:
    """Copy a file into a folder.  Return whether the file exists."""
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
