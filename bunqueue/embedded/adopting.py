"""Moves the file of embedded queues into a new data folder, as its only shard, for a server to take over.

If it is interrupted, the file is complete, at its old or its new place. Running it again finishes the move.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from bunqueue.errors import BunqueueError
from bunqueue.server.folder.data_folder import (
    DataFolderError,
    note_files,
    open_data_folder,
    own_data_folder,
    place_of,
    refuse,
    shard_file,
    sync,
)
from bunqueue.server.folder.shard_identity import Place

from . import open_engines

LOCK_WAIT_S = 1.0  # for a process that is about to end


def adopt(file: Path, folder: Path) -> None:
    """Move the file into the folder, which is created if necessary. Raises BunqueueError or
    DataFolderError."""
    target = shard_file(folder, 0)
    with own_data_folder(folder):
        if target.exists():
            refuse(folder, f"has jobs already, in {target.name}; choose another --data-dir")
        if not file.is_file():
            raise BunqueueError(f"there is no file {file}; give the data_path of embedded queues")
        _prepare(file)
        open_data_folder(folder, shards=1)
        _prepare(file, place_of(target))
        _move(file, target)
        note_files(folder)


def _prepare(file: Path, place: Place | None = None) -> None:
    """Bring everything into the one file, in the current format, unused by any process, and marked for its
    new place."""
    from shardproc.storage.database import Database, DatabaseBusy, DatabaseError
    from shardproc.storage.marking import mark
    from shardproc.storage.schema import WrongSchema

    try:
        open_engines.check(str(file))
        database = Database(str(file), full_sync=True, lock_wait_s=LOCK_WAIT_S)
        try:
            if place is not None:
                mark(database.connection, place.identity)
        finally:
            database.close()  # empties the files beside it
    except DatabaseBusy:
        raise BunqueueError(f"{file} is in use by another process; end that one first") from None
    except (OSError, DatabaseError, WrongSchema) as error:
        raise BunqueueError(f"{file} cannot be taken over: {error}") from error
    if Path(f"{file}-wal").exists():
        raise BunqueueError(f"{file} is still being read by another program; end that one first")


def _move(file: Path, target: Path) -> None:
    try:
        file.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise DataFolderError(f"{file} cannot be moved to {target}: {error.strerror}") from error
        copy = target.with_name(f".{target.name}.new")  # a crash may leave it behind; it is overwritten
        shutil.copyfile(file, copy)
        os.chmod(copy, 0o600)
        sync(copy)
        copy.rename(target)
        file.unlink()
    sync(target.parent)
