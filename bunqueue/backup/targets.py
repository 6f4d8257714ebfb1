"""Where backups and snapshots are kept: objects with names, in a folder or in a bucket.

An object appears whole or not at all. Names have slashes, as in ``packs/0f3a``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from bunqueue.server.folder.data_folder import private, sync

CHUNK = 4 << 20  # bytes of an object in memory at once
LARGEST = 1 << 30  # bytes of an object that is read in one piece
SMALL = 1 << 20  # bytes of those that say who uses a target
BUCKETS = ("s3://", "gs://", "az://")
RETRIES, RETRY_TIMEOUT = 6, timedelta(seconds=45)  # a short interruption is no failure
HASTE = timedelta(seconds=4)
_TOOK = re.compile(r" in [0-9.]+(?:[mµn]?s)\b")
# There is no key, or it was asked for at the URL at which machines with a role have theirs.
_NO_KEY = re.compile(r"Missing \w*Key|latest/(api/token|meta-data)|computeMetadata|metadata/identity")
_RIGHTS = "the right to list, read, write and delete there"
_PARTIAL = "."  # how the name of an unfinished file begins


class TargetError(Exception):
    """A target cannot be used, or an object not be written or read; the text is one line."""


class Missing(TargetError):
    """There is no such object."""


class Target(Protocol):
    """Keeps objects by name."""

    where: str

    def write(self, name: str, body: bytes | Iterable[bytes]) -> int:
        """Store an object atomically; return its size in bytes. An existing one is replaced."""

    def create(self, name: str, body: bytes) -> bool:
        """Store an object unless there is one of that name; whether it was stored."""

    def replace(self, name: str, body: bytes, tag: str) -> bool:
        """Store an object if the one of that name is still the one with that tag; whether it was stored."""

    def read(self, name: str) -> Iterator[bytes]:
        """Read an object, piece by piece."""

    def read_tagged(self, name: str) -> tuple[bytes, str]:
        """A small object, and the tag that tells it from what it was before."""

    def names(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        """Names and sizes of the objects whose names begin with ``prefix``, which ends in a slash. With
        ``after``: only those whose names come after that one, in order."""

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""


def is_target(where: str) -> bool:
    """Whether a setting names a place for objects."""
    return os.path.isabs(where) or where.startswith(BUCKETS)


def target_of(where: str, *, hasty: bool = False) -> Target:
    """The target at an absolute path, or at s3://bucket/prefix and the like. ``hasty``: give up after seconds
    if it does not answer. TargetError for anything else."""
    if where.startswith(BUCKETS):
        return Bucket(where, hasty=hasty)
    if os.path.isabs(where):
        return Folder(Path(where))
    raise TargetError(f"{where!r} is neither a path nor s3://bucket/prefix")


def read_whole(target: Target, name: str, most: int = LARGEST) -> bytes:
    """An object in one piece, of ``most`` bytes at the most. Missing or TargetError."""
    parts, size = [], 0
    for part in target.read(name):
        parts.append(part)
        size += len(part)
        if size > most:
            raise TargetError(f"{target.where}: {name} has more than {most:,} bytes: it is not ours")
    return b"".join(parts)


class Folder:
    """Keeps objects in files that only this user may read. The folder should be on a disk of its own."""

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._folder = folder

    def write(self, name: str, body: bytes | Iterable[bytes]) -> int:
        with self._written(name, [body] if isinstance(body, bytes) else body) as (made, path, size):
            os.replace(made, path)
            sync(path.parent)
        return size

    def create(self, name: str, body: bytes) -> bool:
        with self._written(name, [body]) as (made, path, _):
            try:
                os.link(made, path)
            except FileExistsError:
                return False
            sync(path.parent)
        return True

    def replace(self, name: str, body: bytes, tag: str) -> bool:
        with self._explaining(name):
            self._make(self._folder)
            with open(self._folder / f"{_PARTIAL}{name}.lock", "w", opener=private) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                try:
                    if self.read_tagged(name)[1] != tag:
                        return False
                except Missing:
                    return False
                self.write(name, body)
        return True

    @contextmanager
    def _written(self, name: str, chunks: Iterable[bytes]) -> Iterator[tuple[str, Path, int]]:
        """A new file beside that of the object, and its size."""
        path = self._folder / name
        with self._explaining(name):
            self._make(path.parent)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=_PARTIAL, delete=False) as file:
                try:
                    size = sum(file.write(chunk) for chunk in chunks)
                    file.flush()
                    os.fsync(file.fileno())
                    yield file.name, path, size
                finally:
                    Path(file.name).unlink(missing_ok=True)

    def _make(self, folder: Path) -> None:
        """Make a folder, and make its name survive a power loss."""
        if not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            sync(folder.parent)

    def read(self, name: str) -> Iterator[bytes]:
        with self._explaining(name), open(self._folder / name, "rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk

    def read_tagged(self, name: str) -> tuple[bytes, str]:
        body = read_whole(self, name, SMALL)
        return body, blake2b(body, digest_size=16).hexdigest()

    def names(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        with self._explaining(prefix):
            for path in sorted((self._folder / prefix).rglob("*")):
                name = str(path.relative_to(self._folder))
                if name > after and path.is_file() and not path.name.startswith(_PARTIAL):
                    yield name, path.stat().st_size

    def remove(self, name: str) -> None:
        with self._explaining(name):
            (self._folder / name).unlink(missing_ok=True)

    @contextmanager
    def _explaining(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise Missing(f"{self.where} has no {name}") from error
        except (NotADirectoryError, FileExistsError) as error:
            raise TargetError(f"{self.where} is a file, or below one: give a folder") from error
        except OSError as error:
            reason = error.strerror or str(error)
            if isinstance(error, PermissionError):
                reason = f"access is denied: this user needs {_RIGHTS}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                reason = "the disk is full: make room there; what was stored before is whole"
            raise TargetError(f"{self.where}: {name}: {reason}") from error


class Bucket:
    """Keeps objects in a bucket. Keys, region and endpoint come from the usual variables (AWS_ACCESS_KEY_ID,
    AWS_REGION, AWS_ENDPOINT_URL ...) or from the machine's role."""

    def __init__(self, where: str, *, hasty: bool = False) -> None:
        self.where = where
        retries: Any = {"max_retries": RETRIES, "retry_timeout": RETRY_TIMEOUT}
        options: Any = None
        if hasty:
            retries = {"max_retries": 1, "retry_timeout": HASTE}
            options = {"timeout": HASTE, "connect_timeout": HASTE}
            if os.environ.get("AWS_ALLOW_HTTP") == "true":  # options take the place of what variables say
                options["allow_http"] = True
        try:
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError:
            raise TargetError(f"{where} needs obstore: pip install 'bunqueue[s3]'") from None
        try:
            self._bucket: Any = from_url(where, retry_config=retries, client_options=options)
        except BaseError as error:
            raise TargetError(f"{where}: {_reason(error)}") from error

    def write(self, name: str, body: bytes | Iterable[bytes]) -> int:
        size = 0

        def counted(chunks: Iterable[bytes]) -> Iterator[bytes]:
            nonlocal size
            for chunk in chunks:
                size += len(chunk)
                yield chunk

        with self._explaining(name):
            if isinstance(body, bytes):  # one request
                self._bucket.put(name, body)
                return len(body)
            self._bucket.put(name, counted(body))
        return size

    def create(self, name: str, body: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        with self._explaining(name):
            try:
                self._bucket.put(name, body, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def replace(self, name: str, body: bytes, tag: str) -> bool:
        from obstore.exceptions import PreconditionError

        with self._explaining(name):
            try:
                version, _, e_tag = tag.partition(" ")  # Google compares versions, the others tags
                known = {"version": version, "e_tag": e_tag}
                self._bucket.put(name, body, mode={key: value for key, value in known.items() if value})
            except PreconditionError:
                # The answer to an earlier try may have been lost.
                return self.read_tagged(name)[0] == body
        return True

    def read(self, name: str) -> Iterator[bytes]:
        with self._explaining(name):
            for chunk in self._bucket.get(name).stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    def read_tagged(self, name: str) -> tuple[bytes, str]:
        with self._explaining(name):
            found = self._bucket.get(name)
            if found.meta["size"] > SMALL:
                raise TargetError(f"{self.where}: {name} has more than {SMALL:,} bytes: it is not ours")
            tag = f"{found.meta['version'] or ''} {found.meta['e_tag'] or ''}"
            return bytes(found.bytes()), tag

    def names(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        with self._explaining(prefix):
            for page in self._bucket.list(prefix=prefix, offset=after or None):
                for found in page:
                    yield found["path"], found["size"]

    def remove(self, name: str) -> None:
        with self._explaining(name):
            self._bucket.delete(name)

    @contextmanager
    def _explaining(self, name: str) -> Iterator[None]:
        from obstore.exceptions import (
            BaseError,
            NotFoundError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError) as error:
            reason = f"access is denied: the access key, or the machine's role, needs {_RIGHTS}"
            if "RequestTimeTooSkewed" in str(error):
                reason = "this machine's clock is too far from that of the bucket: set it"
            raise TargetError(f"{self.where}: {name}: {reason}") from error
        except (FileNotFoundError, NotFoundError) as error:
            raise Missing(f"{self.where} has no {name}, or there is no such bucket") from error
        except BaseError as error:
            raise TargetError(f"{self.where}: {name}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What has happened, in the same words each time: without how long it took, and without XML."""
    if _NO_KEY.search(str(error)):
        return (
            "there is no access key, and this machine has no role: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or the variables of Google Cloud or Azure"
        )
    said = str(error).strip().partition("\n")[0].partition(": <?xml")[0]
    return _TOOK.sub("", said)
