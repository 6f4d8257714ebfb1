"""Moves the jobs of a data folder into a store, or back out of it: the part that concerns the tables.

One transaction decides each move: before its commit the jobs are in their old place, afterwards in the new
one.  A move that is interrupted before the commit is started again; one interrupted afterwards is completed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .database import ADOPTING, LEFT, Store, StoreNotReady, Use, certain, read, why_unusable
from .snapshots import Snapshot

if TYPE_CHECKING:
    import psycopg


class Holding(NamedTuple):
    """The owner of a shard."""

    epoch: int
    owner: str  # the owner's token; "" while the shard has no owner
    beat: int


def begin_adopting(connection: psycopg.Connection[tuple[Any, ...]], shards: int, use: Use) -> None:
    """Keep servers away from the store while it takes over a folder.  StoreNotReady unless the store is new
    and for this number of shards, or had already begun to take over the same folder."""
    with certain(connection), connection.transaction():
        connection.execute("select 1 from bunqueue.store for update")
        store = read(connection)
        if store.shards != shards:
            raise StoreNotReady(
                f"the store was made for {store.shards} shards, and the data folder for {shards}: make a "
                f"store with --shards {shards}, or run bunqueue reshard --shards {store.shards} first"
            )
        if store.use and not is_adopting(store, use.folder):
            raise StoreNotReady(why_unusable(store.use))
        if not store.use and _was_used(connection):
            raise StoreNotReady(
                "a server has used the store already, and adopt needs a new one: make it in another "
                "database; or, if nobody needs what is in this one, run 'drop schema bunqueue cascade' there "
                "and 'bunqueue store init' again"
            )
        connection.execute("update bunqueue.store set use = %s", (str(use),))


def is_adopting(store: Store, folder: str) -> bool:
    """Whether the store has begun to take over the folder with this id."""
    use = Use.parse(store.use)
    return (use.kind, use.folder) == (ADOPTING, folder)


def has_left(store: Store, folder: str) -> bool:
    """Whether the store's jobs were moved out into the folder with this id."""
    use = Use.parse(store.use)
    return (use.kind, use.folder) == (LEFT, folder)


def end_adopting(
    connection: psycopg.Connection[tuple[Any, ...]], folder: str, made: Sequence[Snapshot]
) -> None:
    """Commit the move: from now on the store has the jobs, as contained in these snapshots."""
    with certain(connection), connection.transaction():
        holdings = _locked(connection)
        if any(holding.epoch for holding in holdings.values()) or not is_adopting(read(connection), folder):
            raise StoreNotReady("something else has begun to use the store: nothing of the folder is in it")
        for one in made:
            connection.execute(
                "insert into bunqueue.snapshots (shard, seq, place, bytes) values (%s, %s, %s, %s)", one
            )
            connection.execute(
                "update bunqueue.shards set snapshot_seq = %s, position = %s where id = %s",
                (one.seq, one.seq, one.shard),
            )
        connection.execute("update bunqueue.store set use = ''")


def give_up_adopting(connection: psycopg.Connection[tuple[Any, ...]], folder: str) -> None:
    """Cancel taking over the folder: the store is as if new again."""
    with certain(connection), connection.transaction():
        connection.execute("select 1 from bunqueue.store for update")
        if is_adopting(read(connection), folder):
            connection.execute("update bunqueue.store set use = ''")


def holdings(connection: psycopg.Connection[tuple[Any, ...]]) -> dict[int, Holding]:
    """The owner of each shard."""
    query = "select id, epoch, owner, beat from bunqueue.shards order by id"
    return {row[0]: Holding(*row[1:]) for row in connection.execute(query)}


def claim(connection: psycopg.Connection[tuple[Any, ...]], token: str, seen: Mapping[int, Holding]) -> bool:
    """Own all shards, if each still has the epoch in ``seen``.  Otherwise return False and change nothing."""
    with certain(connection), connection.transaction():
        found = _locked(connection)
        if any(found[shard].epoch != holding.epoch for shard, holding in seen.items()):
            return False
        connection.execute("update bunqueue.shards set epoch = epoch + 1, owner = %s", (token,))
    return True


def end_leaving(connection: psycopg.Connection[tuple[Any, ...]], use: Use, epochs: Mapping[int, int]) -> bool:
    """Commit the move: from now on the folder has the jobs, and no server may use the store any more.  If
    another owner has claimed a shard in the meantime, return False and change nothing."""
    with certain(connection), connection.transaction():
        found = _locked(connection)
        if any(found[shard].epoch != epoch for shard, epoch in epochs.items()):
            return False
        # A host that has already read the old epochs, and is about to claim a shard, must read them again.
        connection.execute("update bunqueue.shards set epoch = epoch + 1, owner = ''")
        connection.execute("update bunqueue.store set use = %s", (str(use),))
    return True


def _locked(connection: Any) -> dict[int, Holding]:
    """Like `holdings`; no host can claim or append until the transaction ends."""
    query = "select id, epoch, owner, beat from bunqueue.shards order by id for update"
    return {row[0]: Holding(*row[1:]) for row in connection.execute(query)}


def _was_used(connection: Any) -> bool:
    query = "select exists (select 1 from bunqueue.shards where epoch > 0 or snapshot_seq > 0)"
    return bool(connection.execute(query).fetchone()[0])
