"""The parts of a shard's process that differ when the shard has a log."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bunqueue.server.folder.data_folder import DataFolderError, read_manifest, shard_file
from bunqueue.server.links.pipe_messages import ShardStart
from bunqueue.server.settings.settings import Settings
from bunqueue.store.database import StoreError, StoreNotReady
from shardproc.storage.database import DISK_ERRORS, DatabaseBusy
from shardproc.storage.schema import WrongSchema

from .errors import Fenced, LogDamaged
from .record import RecordDamaged, RecordTooNew
from .replicated_server import ReplicatedServer
from .replicated_shard import ReplicatedShard
from .snapshot_maker import SnapshotMaker
from .start import bring_up

OWNERS_PATIENCE = 2.0  # as an owner has better things to do than a follower

REFUSED = (StoreNotReady, RecordTooNew, RecordDamaged, WrongSchema, DataFolderError, DatabaseBusy)
"""A new process would fail in the same way: an operator has to act."""
LOST = (StoreError, Fenced, LogDamaged, *DISK_ERRORS)
"""A new process can recover, with a snapshot or another file."""


def open_shard(
    start: ShardStart,
    settings: Settings,
    sock: socket.socket,
    report: Callable[[str], None],
    options: dict[str, Any],
) -> ReplicatedShard:
    """Own the shard, with a file that contains all of its log. Raises one of REFUSED and LOST."""
    folder = Path(settings.data_dir)
    file = shard_file(folder, start.shard)
    opened = bring_up(
        settings.store,
        file=file,
        shard=start.shard,
        shards=start.shards,
        token=f"{read_manifest(folder).id}/{secrets.token_hex(6)}",
        sock=sock,
        report=report,
        observed=start.observed,
    )
    return ReplicatedShard(opened.database, opened.recorder, opened.log, opened.preloaded, **options)


def server_of(
    shard: ReplicatedShard, sock: socket.socket, start: ShardStart, settings: Settings
) -> ReplicatedServer:
    """The loop that serves the shard and has snapshots made; in a cluster its followers make them first."""
    file = Path(shard.store.database.path)
    patience = OWNERS_PATIENCE if start.in_cluster else 1.0
    snapshots = SnapshotMaker(settings.store, start.shard, file, settings.store_snapshots, patience)
    return ReplicatedServer(shard, sock, snapshots)
