"""`bunqueue store adopt`: the jobs of a stopped server's data folder move into a new store.

1. The store records that it takes over this folder: no server may work on it.
2. A snapshot of each shard is stored, as the log's position 1. None of them is listed yet.
3. The folder records that it belongs to the store: no server may work on it without the store.
4. One transaction lists the snapshots and lets servers work on the store.

If this is interrupted before the third step, the folder may still be served as before, and all steps are
repeated.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec

from bunqueue.server.folder.data_folder import (
    FORMAT_WITH_STORE,
    DataFolderError,
    Manifest,
    check_places,
    own_data_folder,
    read_identified,
    read_manifest,
    refuse,
    save_manifest,
    shard_file,
)
from bunqueue.store import moving, snapshots
from bunqueue.store.database import ADOPTING, connected, read
from bunqueue.store.snapshots import Snapshot
from shardproc.storage.database import Database
from shardproc.storage.repair.recount import damage_of

from .folder import Moved, check_quiet, each_file, forget_position, has_tables, jobs_in, set_position, use_of
from .progress import Progress

POSITION = 1  # where a store that has taken over a folder begins; its first record is the next


def adopt(url: str, folder: Path, where: str, report: Progress) -> Moved:
    """Move the jobs of ``folder`` into the store at ``url``, which keeps its snapshots at ``where``.

    StoreError or DataFolderError if that is not possible; the jobs are then where they were.
    """
    manifest = read_identified(folder)  # before `own_data_folder` could make a folder
    with own_data_folder(folder):
        check_quiet(folder)
        check_places(folder, manifest)
        if not read_manifest(folder).id:
            save_manifest(folder, manifest)  # so the next run knows that it is the same folder
        if not _is_done(url, folder, manifest):
            _move(url, folder, manifest, where, report)
        jobs = each_file(folder, manifest.shards, lambda database: set_position(database, POSITION))
        return Moved(manifest.shards, jobs)


def _is_done(url: str, folder: Path, manifest: Manifest) -> bool:
    """Whether only the work after the last step is left."""
    if not manifest.store:
        return False
    with connected(url) as connection:
        store = read(connection)
    if manifest.store != store.id:
        refuse(folder, f"belongs to another store, {manifest.store}: see bunqueue store leave")
    return not store.use


def _move(url: str, folder: Path, manifest: Manifest, where: str, report: Progress) -> None:
    for shard in range(manifest.shards):
        _check(shard_file(folder, shard))
    use = use_of(ADOPTING, manifest, folder)
    with connected(url) as connection:
        moving.begin_adopting(connection, manifest.shards, use)
        store = read(connection)
    made = [
        kept
        for shard in range(manifest.shards)
        if (kept := _keep(url, folder, shard, manifest.shards, where, report)) is not None
    ]
    save_manifest(folder, msgspec.structs.replace(manifest, format=FORMAT_WITH_STORE, store=store.id))
    with connected(url) as connection:
        moving.end_adopting(connection, manifest.id, made)


def _check(file: Path) -> None:
    if file.exists() and (problem := damage_of(file)) is not None:
        raise DataFolderError(
            f"{file} is damaged ({problem}): run bunqueue doctor --repair --data-dir {file.parent} first; "
            "nothing was changed"
        )


def _keep(url: str, folder: Path, shard: int, shards: int, where: str, report: Progress) -> Snapshot | None:
    """Store a snapshot of a shard, not listed; None if the shard has nothing yet."""
    file = shard_file(folder, shard)
    if not file.exists():
        return None
    with closing(Database(str(file), full_sync=True, migrates=False)) as database:
        if not has_tables(database.connection):
            return None
        forget_position(database)  # of a store that it belonged to before
        read, size = 0, database.size()
        what = f"shard {shard} of {shards} ({jobs_in(database.connection):,} jobs)"
        report(f"{what}: copying {size / 1e6:,.0f} MB")

        def advance(more: int) -> None:
            nonlocal read
            read += more
            report(f"{what}: {read / 1e6:,.0f} of {size / 1e6:,.0f} MB are in the store")

        with snapshots.copied(file) as copy:
            _stamp(copy)
            return snapshots.keep(url, shard, POSITION, copy, where, advance)


def _stamp(copy: Path) -> None:
    """Set the position of a copy. It is not one of the folder's files, so it needs neither lock nor mark."""
    with closing(Database(str(copy), full_sync=True, migrates=False)) as database:
        set_position(database, POSITION)
