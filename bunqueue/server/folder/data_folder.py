"""The data folder of a server: its number of shards, its format, and which process may use it.

Jobs are found by their shard, so with another number of shards the same files would hide jobs from their
queues.  Therefore the number is stored before the first shard starts, and checked at every start after that.
`bunqueue reshard` changes it, together with the files.

The folder also has an id, which its files repeat (see `shard_identity`), and records which files existed.  A
missing, empty or foreign file is refused.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, NoReturn, Self, TextIO, TypeVar

import msgspec

from bunqueue.model.ids import MAX_SHARDS

from .file_lock import lock_folder
from .shard_identity import Identity, Place, file_name, identity_of, misfit

NAME = "manifest.json"
LOCK = "server.lock"
STANDBY = "standby.json"  # what a standby has; it gets a manifest when it is promoted
FORMAT = 1
FORMAT_WITH_STORE = 2  # a program that knows no stores must not serve such a folder
REPAIR = ".repair"  # where `bunqueue doctor --repair` makes new files
RESHARD = ".reshard"  # where `bunqueue reshard` makes new files; can be deleted unless it contains `COMPLETE`
DATABASE = b"SQLite format 3\0"  # how every file of jobs begins, unless it is empty
COMPLETE = "complete.json"  # the new files are whole and will replace the old ones, whatever happens


MAX_BYTES = 1 << 20  # limit for a manifest or similar file; usually a few kB, plus a line for each loss

T = TypeVar("T")


class DataFolderError(Exception):
    """The folder cannot be used in this way; the text is one line that says what to do."""


MISMATCH = "DATA_MISMATCH"
"""The stable code of `FilesMismatch`, at the beginning of each line."""


class FilesMismatch(DataFolderError):
    """Files do not belong together; the text has a line for each."""

    def __init__(self, folder: Path, wrong: dict[int, str]) -> None:
        self.lines = [
            f"{MISMATCH}: {shard_file(folder, shard)} {why}; restore it from a backup of this folder, or "
            f"give it up: bunqueue accept-loss --data-dir {folder} --shard {shard}"
            for shard, why in wrong.items()
        ]
        super().__init__("; ".join(self.lines))


Shards = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, lt=MAX_SHARDS)]], msgspec.Meta(max_length=MAX_SHARDS)
]


class Loss(msgspec.Struct):
    """A file that was given up, by accept-data-loss."""

    shard: int
    at: str  # UTC
    what: str


class Versioned(msgspec.Struct):
    """The part of ``manifest.json`` that is read first."""

    format: int
    store: str = ""


class Manifest(msgspec.Struct, omit_defaults=True):
    """The content of ``manifest.json``."""

    format: int
    shards: Annotated[int, msgspec.Meta(le=MAX_SHARDS)] = 0
    id: str = ""  # of the folder; "" if somebody has written the manifest by hand
    generation: int = 1  # increased by each reshard
    created: Shards = []  # the shards that have a file
    losses: list[Loss] = []
    store: str = ""  # the id of the store that keeps the jobs; the files here are copies then
    copy: str = ""  # tells this folder from others with the same jobs; "" while nothing had to
    followed: str = ""  # the place that it followed as a standby, before it was promoted

    def places(self) -> list[Place]:
        """What is expected of each shard's file.  With a store, the file may be missing."""
        known = not self.store
        return [
            Place(
                Identity(self.id, shard, self.shards, self.generation),
                filled=known and shard in self.created,
            )
            for shard in range(self.shards)
        ]

    def resharded(self, shards: int) -> Manifest:
        """The manifest of the same folder after a reshard."""
        return Manifest(
            FORMAT,
            shards,
            self.id,
            self.generation + 1,
            list(range(shards)),
            copy=self.copy,
            followed=self.followed,
        )


def open_data_folder(folder: Path, shards: int, *, store: str = "") -> None:
    """Make ``folder`` and its manifest if needed.  Raise DataFolderError, and change nothing, if it is not a
    folder for ``shards``, or a file in it does not belong there.

    ``store``: the id of the store that keeps the jobs; "" without one.
    """
    with _usable(folder):
        if is_resharded(folder):
            refuse(folder, "has an interrupted reshard: run bunqueue reshard again to finish it")
        if (folder / REPAIR / "ready.json").exists():
            refuse(folder, "has an interrupted repair: run bunqueue doctor --repair again to finish it")
        found = _read(folder)
        if found is not None and found.shards != shards:
            refuse(
                folder,
                f"was made for {found.shards} shards, not {shards}; start with --shards {found.shards}, "
                f"change it with bunqueue reshard --shards {shards}, or choose another --data-dir",
            )
        if found is None:
            manifest = Manifest(FORMAT, shards, _new_id())
        else:
            manifest = _identified(folder, found)
        manifest = _with_store(folder, manifest, store)
        check_places(folder, manifest)
        _check_files(folder)
        if manifest is not found:
            save_manifest(folder, manifest)


def _with_store(folder: Path, manifest: Manifest, store: str) -> Manifest:
    """The manifest of a folder for that store.  Refuse to mix the jobs of a folder with those of a store."""
    if manifest.store == store:
        return manifest
    if manifest.store and not store:
        refuse(
            folder,
            "is a copy of what a store keeps: start with --store, or take the jobs out of it with bunqueue "
            "store leave",
        )
    if manifest.store:
        refuse(folder, f"belongs to the store {manifest.store}, not to {store}; give another --data-dir")
    if manifest.created:
        refuse(
            folder,
            "has jobs of its own: take it into the store with bunqueue store adopt, or give another "
            "--data-dir",
        )
    return msgspec.structs.replace(manifest, format=FORMAT_WITH_STORE, store=store)


def _new_id() -> str:
    return secrets.token_hex(8)


def _identified(folder: Path, found: Manifest) -> Manifest:
    """The manifest with an id. One that was written by hand gets the id that is in the files, and all its
    shards must have one."""
    if found.id:
        return found
    identities = (identity_of(shard_file(folder, shard)) for shard in range(found.shards))
    known = Counter((one.folder, one.generation) for one in identities if one is not None)
    number, generation = known.most_common(1)[0][0] if known else (_new_id(), found.generation)
    return msgspec.structs.replace(found, id=number, generation=generation, created=list(range(found.shards)))


def read_identified(folder: Path) -> Manifest:
    """The manifest, always with an id; DataFolderError if the manifest is missing."""
    return _identified(folder, read_manifest(folder))


def check_places(folder: Path, manifest: Manifest) -> None:
    """Raise FilesMismatch if any file does not belong where it is."""
    wrong = {
        shard: why
        for shard, place in enumerate(manifest.places())
        if (why := misfit(shard_file(folder, shard), place)) is not None
    }
    if wrong:
        raise FilesMismatch(folder, wrong)


def check_place(file: Path, place: Place | None) -> None:
    """Raise FilesMismatch if the file does not belong where it is."""
    if place is not None and (why := misfit(file, place)) is not None:
        raise FilesMismatch(file.parent, {place.identity.shard: why})


def losses_ahead(folder: Path) -> list[Loss]:
    """The losses of shards that have no new file yet."""
    found = read_manifest(folder)
    return [loss for loss in found.losses if loss.shard not in found.created]


def note_files(folder: Path) -> None:
    """Record that all shards have started: from now on their files must exist."""
    found = read_manifest(folder)
    there = {
        shard
        for shard, place in enumerate(found.places())
        if identity_of(shard_file(folder, shard)) == place.identity
    }
    created = sorted(there.union(found.created))
    if created != found.created:
        save_manifest(folder, msgspec.structs.replace(found, created=created))


def place_of(file: Path) -> Place | None:
    """What the folder around a file expects of it; None if it expects nothing.  DataFolderError if the
    manifest cannot be read."""
    match = re.fullmatch(r"shard-(\d\d)\.db", file.name)
    if match is None or not (file.parent / NAME).exists():
        return None
    manifest = read_manifest(file.parent)
    if not manifest.id or int(match[1]) >= manifest.shards:
        return None
    return manifest.places()[int(match[1])]


def _check_files(folder: Path) -> None:
    """Refuse files that would stop a shard again and again, and jobs that SQLite would silently discard."""
    for log in sorted(folder.glob("*.db-wal")):
        file = log.with_name(log.name.removesuffix("-wal"))
        if log.stat().st_size and not (file.exists() and file.stat().st_size):
            refuse(
                folder,
                f"has a {log.name}, which holds the newest jobs of {file.name}, but not that file; "
                f"put both there, or take {log.name} away",
            )


def may_be_database(file: Path) -> bool:
    """Whether an existing file begins like an SQLite file, or is empty."""
    with file.open("rb") as opened:
        return opened.read(len(DATABASE)) in (b"", DATABASE)


class FolderLock:
    """The lock of a data folder.  It lasts until it is closed or the process ends, in any way."""

    def __init__(self, beside: TextIO, folder: int) -> None:
        self.beside, self.folder = beside, folder

    def close(self) -> None:
        self.beside.close()
        os.close(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def own_data_folder(folder: Path) -> FolderLock:
    """Make ``folder`` if needed, and keep other servers out until the lock is closed.  DataFolderError if
    another server has the folder already.

    There are two locks: one on the folder, which cannot be removed, and one on a file, as network file
    systems may lock files only.
    """
    with _usable(folder):
        lock = FolderLock((folder / LOCK).open("w"), os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
    if not (lock_folder(lock.beside.fileno()) and lock_folder(lock.folder)):
        lock.close()
        refuse(folder, "is in use by another server; stop that one, or choose another --data-dir")
    return lock


def is_served(folder: Path) -> bool:
    """Whether a server has locked the folder (`own_data_folder`).

    A server that starts at the very moment of this check is refused, so check only where it matters.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


def is_resharded(folder: Path) -> bool:
    """Whether complete new files for another number of shards are waiting to replace the old ones."""
    return (folder / RESHARD / COMPLETE).exists()


def is_standby(folder: Path) -> bool:
    """Whether the folder follows a primary, and has not been promoted."""
    return (folder / STANDBY).exists() and not (folder / NAME).exists()


def copy_of(folder: Path) -> str:
    """What tells the folder from others with the same jobs; made when it is asked for first. Only the process
    that ships may ask while a server runs."""
    manifest = read_identified(folder)
    if not manifest.copy:
        manifest = msgspec.structs.replace(manifest, copy=_new_id())
        save_manifest(folder, manifest)
    return manifest.copy


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an existing data folder. DataFolderError if the folder has no manifest."""
    found = _read(folder)
    if found is None:
        refuse(folder, f"is not one: there is no {NAME} in it; check --data-dir")
    return found


def shards_of(folder: Path) -> int:
    """The number of shards of an existing data folder. DataFolderError if it has no manifest."""
    return read_manifest(folder).shards


def shard_file(folder: Path, shard: int) -> Path:
    """The file that keeps the jobs of a shard."""
    return folder / file_name(shard)


def refuse(folder: Path, why: str) -> NoReturn:
    raise DataFolderError(f"the data folder {folder} {why}")


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, atomically and durably."""
    write_whole(folder / NAME, manifest)
    for place in folder.parents:  # the folders above may be as new as this one
        with suppress(PermissionError):  # such a folder is not new
            sync(place)


def write_whole(path: Path, content: msgspec.Struct) -> None:
    """Write a JSON file atomically, and so that it survives a power loss."""
    temporary = path.with_name(f".{path.name}.new")  # a crash may leave it behind; the next write replaces it
    with open(temporary, "wb", opener=private) as file:
        file.write(msgspec.json.encode(content) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def read_whole(path: Path, kind: type[T]) -> T:
    """Read what `write_whole` has written. Raises msgspec.DecodeError for anything else, and OSError."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise msgspec.DecodeError(f"it has more than {MAX_BYTES:,} bytes")
    return msgspec.json.decode(content, type=kind)


def private(path: str, flags: int) -> int:
    """An `opener`: only the owner can access a new file, whatever the umask."""
    return os.open(path, flags, 0o600)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk, so that they survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Make ``folder`` if needed; DataFolderError if it cannot be used."""
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
        made = read_whole(path, Versioned)  # in a newer format everything else may differ
        newest = FORMAT_WITH_STORE if made.store else FORMAT
        found = read_whole(path, Manifest) if made.format <= newest else None
    except FileNotFoundError:
        if is_standby(folder):
            refuse(
                folder,
                "is that of a standby: start it with --follow, and make it the primary with bunqueue promote",
            )
        if any(folder.glob("shard-*.db")):
            refuse(folder, f"has shards but no {NAME}; restore that file from a backup of the folder")
        return None
    except msgspec.DecodeError as error:
        refuse(folder, f"has a damaged {NAME} ({error}); restore that file from a backup of the folder")
    if found is None:
        newer = f"a newer version of bunqueue (format {made.format})"
        refuse(folder, f"was written by {newer}; upgrade bunqueue")
    if found.shards < 1:
        refuse(
            folder,
            f"has a {NAME} that does not say for how many shards it is: write "
            f'{{"format": {FORMAT}, "shards": N}} there, or restore that file from a backup of the folder',
        )
    return found
