"""The engines of all open files: one per file in this process, and none in a forked child."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from pathlib import Path

from bunqueue.errors import FileInUse, StorageError

from .engine import EmbeddedEngine

MEMORY = ":memory:"

engines: dict[str, EmbeddedEngine] = {}
"""The open engines by path.  Access it only while holding `lock`."""
lock = threading.Lock()
_abandoned: list[EmbeddedEngine] = []


def open_engine(path: str) -> EmbeddedEngine:
    """The engine of a file, opened if necessary.  Raises FileInUse or StorageError.  The caller must hold
    `lock`."""
    from bunqueue.server.folder.data_folder import DataFolderError
    from shardproc.disk_messages import locked
    from shardproc.storage.damage import ShardDamaged
    from shardproc.storage.database import DatabaseBusy, DatabaseError, disk_problem
    from shardproc.storage.schema import WrongSchema

    engine = engines.get(path)
    if engine is None or engine.closed:
        try:
            check(path)
            engine = engines[path] = EmbeddedEngine(path, again=engine is not None)
        except DatabaseBusy:
            raise FileInUse(
                f"{path} is in use by another process; the file of an embedded queue belongs to one process: "
                "start a server to share it (bunqueue start)"
            ) from None
        except OSError as error:
            raise StorageError(f"{path} cannot be opened: {error.strerror or error}") from None
        except (DatabaseError, WrongSchema, DataFolderError, ShardDamaged) as error:
            why = locked(path) if disk_problem(error) == "locked" else str(error)
            raise StorageError(f"{path} cannot be opened: {why}") from error
    return engine


def check(path: str) -> None:
    """Raise OSError for a path that cannot be an engine's file, before any file is created beside it."""
    from bunqueue.server.folder.data_folder import may_be_database

    file = Path(path)
    if path == MEMORY:
        return
    if not file.parent.is_dir():
        raise NotADirectoryError(f"there is no folder {file.parent}; make it first")
    if file.is_dir():
        raise IsADirectoryError("it is a folder; data_path names a file in one, such as jobs.db")
    if file.exists() and not may_be_database(file):
        raise OSError("it is something else than the file of a queue; give another data_path")
    _check_folder(file)


def _check_folder(file: Path) -> None:
    """Refuse the file of a server: it has the queues of one shard, and other queues added here would be
    hidden from the server."""
    from bunqueue.server.folder.data_folder import NAME, is_resharded

    manifest = file.parent / NAME
    if manifest.exists() and (shards := _shards(manifest)) != 1:
        raise OSError(f"it is in the folder of a server with {shards} shards; start that server instead")
    if is_resharded(file.parent):
        raise OSError("its folder has an interrupted reshard; run bunqueue reshard again to finish it")


def _shards(manifest: Path) -> int:
    from bunqueue.server.folder.data_folder import DataFolderError, shards_of

    try:
        return shards_of(manifest.parent)
    except DataFolderError as error:
        raise OSError(str(error)) from None


async def prepared(data_path: str | None) -> str:
    """Prepare the engine of a file in a thread, because that may take seconds.  Returns the path that
    identifies it.  None: in memory."""
    if data_path is None or data_path == MEMORY:
        path = MEMORY
    else:
        path = str(await asyncio.to_thread(Path(data_path).resolve))
    opening = asyncio.ensure_future(asyncio.to_thread(_prepare, path))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_abandon)
        raise


def _prepare(path: str) -> str:
    with lock:
        open_engine(path)
    return path


def _abandon(opening: asyncio.Future[str]) -> None:
    """The task that had a file opened was cancelled in the meantime: close the file, unless another task uses
    it."""
    if opening.cancelled() or opening.exception() is not None:
        return
    with lock:
        engine = engines.get(opening.result())
        if engine is not None and engine.close_if_idle():
            del engines[engine.path]


def _after_fork() -> None:
    """The engines belong to the parent.  They are kept, not closed: closing them would remove SQLite's files
    under the parent."""
    global lock
    lock = threading.Lock()
    for engine in engines.values():
        engine.abandon()
    _abandoned.extend(engines.values())
    engines.clear()


def _at_exit() -> None:
    """Close forgotten queues when the process ends.  Then the file has everything, and there are no files
    beside it."""
    with lock:
        for engine in engines.values():
            engine.close()
        engines.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
