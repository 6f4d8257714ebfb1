"""The status of a store and its shards, for people and for monitoring."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .check import standbys_of
from .database import Store, connected, read


class ShardStatus(Struct, rename="camel"):
    """``position`` is the position of the last record, ``snapshot`` that of the last record in the newest
    snapshot (0 if there is no snapshot).  ``since`` is the size in bytes of the records after it, ``log``
    that of all records that are kept.  Times in epoch ms."""

    shard: int
    epoch: int
    owner: str | None  # the owner's data folder and process; null while the shard has no owner
    position: int
    snapshot: int
    snapshot_at: int | None
    snapshot_bytes: int | None
    snapshot_place: str | None  # "" for the store itself
    since: int
    log: int


class StoreStatus(Struct, rename="camel"):
    """``use`` says why no server may use the store; "" if one may.  ``partitions`` is the number of log
    partitions, ``bytes`` the size of the store's tables on the database's disk."""

    id: str
    format: int
    shards: int
    use: str
    storage_replicates: bool
    synchronous_standbys: list[str]
    partitions: int
    bytes: int


class Status(Struct):
    store: StoreStatus
    shards: list[ShardStatus]


_SHARDS = """
    select shards.id, epoch, nullif(owner, ''),
           greatest(snapshot_seq, coalesce(kept.last, 0)), snapshot_seq,
           (extract(epoch from made_at) * 1000)::bigint, snapshots.bytes, place,
           coalesce(kept.since, 0)::bigint, coalesce(kept.bytes, 0)::bigint
    from bunqueue.shards
    left join bunqueue.snapshots on (snapshots.shard, snapshots.seq) = (shards.id, snapshot_seq)
    left join (
        select log.shard, max(log.seq) as last, sum(length(body)) as bytes,
               sum(length(body)) filter (where log.seq > newest.snapshot_seq) as since
        from bunqueue.log join bunqueue.shards newest on newest.id = log.shard group by log.shard
    ) kept on kept.shard = shards.id
    order by shards.id
"""
_SIZE = """
    select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class
    where relnamespace = 'bunqueue'::regnamespace and relkind = 'r'
"""
_PARTITIONS = "select count(*) from pg_inherits where inhparent = 'bunqueue.log'::regclass"


def status(url: str) -> Status:
    """Query the store.  StoreError if the database does not answer, or has no store."""
    with connected(url) as connection:
        store = read(connection)
        shards = [ShardStatus(*row) for row in connection.execute(_SHARDS)]
        return Status(_described(connection, store), shards)


def _described(connection: Any, store: Store) -> StoreStatus:
    good = [standby.name for standby in standbys_of(connection) if standby.is_synchronous]
    return StoreStatus(
        id=store.id,
        format=store.format,
        shards=store.shards,
        use=store.use,
        storage_replicates=store.replicates,
        synchronous_standbys=sorted(good),
        partitions=connection.execute(_PARTITIONS).fetchone()[0],
        bytes=connection.execute(_SIZE).fetchone()[0],
    )
