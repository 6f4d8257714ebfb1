"""Accepts the loss of a shard's file when an operator says so; the shard then starts empty.

No file is deleted: existing files are moved to the folder `LOST`, and the manifest records the loss.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import msgspec

from .data_folder import (
    Loss,
    Manifest,
    is_resharded,
    may_be_database,
    refuse,
    save_manifest,
    shard_file,
    sync,
)
from .file_lock import is_locked
from .shard_identity import contents, damage, misfit

LOST = "lost"  # within the data folder


def loss_of(folder: Path, manifest: Manifest, shard: int) -> str:
    """What is wrong with a shard's file, and what would be lost with it.  DataFolderError if there is no
    reason to give it up."""
    if is_resharded(folder):
        refuse(folder, "has an interrupted reshard: run bunqueue reshard again to finish it")
    if not 0 <= shard < manifest.shards:
        refuse(folder, f"has {manifest.shards} shards, from 0 to {manifest.shards - 1}; there is no {shard}")
    file = shard_file(folder, shard)
    if manifest.store:
        refuse(
            folder,
            f"belongs to a store, which has the jobs: nothing is lost with {file.name}; remove it, and the "
            "next start builds it again",
        )
    _check_unused(folder, file)
    wrong = misfit(file, manifest.places()[shard]) or _unreadable(file)
    if wrong is None:
        refuse(folder, f"has its {file.name}, which can be read; nothing was changed")
    held = contents(file) if file.exists() else None
    if held is not None and file.stat().st_size:
        return f"{file.name} {wrong}. It holds {held}, and the server will not see them"
    return f"{file.name} {wrong}. What it held is lost; how much that was is not known"


def _unreadable(file: Path) -> str | None:
    log = Path(f"{file}-wal")
    if log.exists() and log.stat().st_size and not (file.exists() and file.stat().st_size):
        return "is missing, but its -wal is there"
    if not file.exists():
        return None
    return damage(file) if may_be_database(file) else "is no database"


def _check_unused(folder: Path, file: Path) -> None:
    """Refuse a file in use: a shard that has lost its router may still be running."""
    if not file.exists():
        return
    descriptor = os.open(file, os.O_RDONLY)
    try:
        if is_locked(descriptor):
            refuse(folder, f"has a {file.name} that is in use by another process; end that one first")
    finally:
        os.close(descriptor)


def give_up(folder: Path, manifest: Manifest, shard: int, what: str) -> Path | None:
    """Make a shard start empty; return where its files are now, if it had any.  The folder must be owned."""
    now = datetime.datetime.now(datetime.UTC)
    moved = _set_aside(folder, shard, now)
    changed = msgspec.structs.replace(
        manifest,
        created=[other for other in manifest.created if other != shard],
        losses=[*manifest.losses, Loss(shard, now.isoformat(timespec="seconds"), what)],
    )
    save_manifest(folder, changed)
    return moved


def _set_aside(folder: Path, shard: int, now: datetime.datetime) -> Path | None:
    """Move a shard's files away, the log first.  If this is interrupted, a log alone is refused, but a file
    without its log would be taken for complete.
    """
    file = shard_file(folder, shard)
    found = [path for end in ("-wal", "-shm", "") if (path := Path(f"{file}{end}")).exists()]
    if not found:
        return None
    place = folder / LOST / f"{now:%Y%m%dT%H%M%S.%f}Z"
    place.mkdir(mode=0o700, parents=True)
    for path in found:
        path.rename(place / path.name)
    sync(place)
    sync(folder)
    return place / file.name
