"""`bunqueue store leave`: the jobs of a store move into a data folder, to be served without the store.

1. Every shard is claimed, which no living owner allows, and the folder's file catches up with its log.
2. One transaction records that the jobs are in the folder, unless a server has claimed a shard in between.
3. The files forget the log, and the folder forgets the store.

Until the second step the folder is a copy of the store like that of any server.
"""

from __future__ import annotations

import secrets
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from bunqueue.server.folder.data_folder import (
    FORMAT,
    NAME,
    Manifest,
    open_data_folder,
    own_data_folder,
    read_manifest,
    refuse,
    save_manifest,
    shard_file,
)
from bunqueue.server.folder.shard_identity import identity_of as identity_in
from bunqueue.server.links.pipe_messages import LEASE_S
from bunqueue.store import moving
from bunqueue.store.database import LEFT, Store, StoreError, connected, read, usable
from bunqueue.store.moving import Holding
from shardproc.replication.owner import POLL_S, identity_of
from shardproc.replication.start import bring_up

from .folder import Moved, check_quiet, each_file, forget_position, use_of
from .progress import Progress

TAKEN = "another server has taken a shard in the meantime: stop all servers of the store, and run it again"


def leave(url: str, folder: Path, report: Progress) -> Moved:
    """Move the jobs of the store at ``url`` into ``folder``, that of a server of this store or a new one.

    StoreError, DataFolderError or LogDamaged if that is not possible; the jobs are then where they were.
    """
    with connected(url) as connection:
        store = read(connection)
    with own_data_folder(folder):
        check_quiet(folder)
        found = _manifest(folder)
        if found is not None and moving.is_adopting(store, found.id):
            return _give_up_adopting(url, folder, found)
        if found is None or not moving.has_left(store, found.id):
            _move(url, folder, store, report)
        return _forget_store(folder)


def leave_without(folder: Path) -> Moved:
    """Like `leave`, for a store that is lost: the folder keeps what its files contain."""
    with own_data_folder(folder):
        check_quiet(folder)
        manifest = read_manifest(folder)
        if not manifest.store:
            refuse(folder, "belongs to no store: there is nothing to leave")
        missing = [shard for shard in range(manifest.shards) if not shard_file(folder, shard).exists()]
        if missing:
            shards = ", ".join(map(str, missing))
            refuse(folder, f"has no copy of shard {shards}: take one from another host's folder")
        return _forget_store(folder)


def _manifest(folder: Path) -> Manifest | None:
    return read_manifest(folder) if (folder / NAME).exists() else None


def _give_up_adopting(url: str, folder: Path, manifest: Manifest) -> Moved:
    """The folder was never taken over: its jobs are where they were."""
    with connected(url) as connection:
        moving.give_up_adopting(connection, manifest.id)
    return _forget_store(folder)


def _move(url: str, folder: Path, store: Store, report: Progress) -> None:
    with connected(url) as connection:
        usable(connection, store.shards)
        found = _manifest(folder)
        seen = _unowned(connection, "" if found is None else found.id, report)
        open_data_folder(folder, store.shards, store=store.id)
        manifest = read_manifest(folder)
        token = f"{manifest.id}/{secrets.token_hex(6)}"
        if not moving.claim(connection, token, seen):
            raise StoreError(TAKEN)
    shards = range(store.shards)
    epochs = {shard: _catch_up(url, folder, shard, store.shards, token, report) for shard in shards}
    with connected(url) as connection:
        if not moving.end_leaving(connection, use_of(LEFT, manifest, folder), epochs):
            raise StoreError(TAKEN)


def _unowned(connection: Any, identity: str, report: Progress) -> dict[int, Holding]:
    """The shards, once no living server has any of them, except a server of the folder with that identity.

    StoreError if another server has one: its heartbeat changes.
    """
    seen = moving.holdings(connection)
    if all(not holding.owner or identity_of(holding.owner) == identity for holding in seen.values()):
        return seen
    end = time.monotonic() + LEASE_S
    while (left := end - time.monotonic()) > 0:
        report(f"looking whether a server still uses the store, for {left:.0f} s")
        time.sleep(min(POLL_S, left))
        for shard, holding in moving.holdings(connection).items():
            if holding != seen[shard]:
                raise StoreError(
                    f"a server is at work on shard {shard} (data folder {identity_of(holding.owner)}): stop "
                    "all servers of the store first"
                )
    return seen


def _catch_up(url: str, folder: Path, shard: int, shards: int, token: str, report: Progress) -> int:
    """Bring a file up to its log; returns the epoch under which that is so."""
    ours, theirs = socket.socketpair()  # nothing arrives: there is no router
    with ours, theirs:
        opened = bring_up(
            url,
            file=shard_file(folder, shard),
            shard=shard,
            shards=shards,
            token=token,
            sock=ours,
            report=lambda text: report(f"shard {shard} of {shards}: {text}"),
        )
        with closing(opened.database), closing(opened.log):
            report(f"shard {shard} of {shards}: all {opened.log.position:,} positions are in the folder")
            return opened.log.owner.epoch


def _forget_store(folder: Path) -> Moved:
    manifest = read_manifest(folder)
    jobs = each_file(folder, manifest.shards, forget_position)
    there = [shard for shard in range(manifest.shards) if identity_in(shard_file(folder, shard)) is not None]
    plain = msgspec.structs.replace(manifest, format=FORMAT, store="", created=there)
    save_manifest(folder, plain)
    return Moved(manifest.shards, jobs)
