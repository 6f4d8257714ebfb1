"""The partitions of the log: adds one when needed, and drops old ones whose records are all in snapshots.

Deleting rows would cost as much as writing them; dropping a partition costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .database import connected

if TYPE_CHECKING:
    import psycopg

ROTATE_BYTES = 64 << 20  # size of a partition at which further records go to a new one
LOCK_MS = 500  # longest wait for appends in progress; short, because new appends queue behind it
_LOCK = 0x62756E71  # number of an advisory lock: only one host at a time maintains the partitions


def maintain(url: str) -> int:
    """Maintain the partitions after a snapshot: begin a new one if it is time, and drop those that are not
    needed any more.  Return how many were dropped.  StoreError if the store does not answer."""
    with connected(url) as connection:
        rotate(connection)
        return len(trim(connection))


def rotate(connection: psycopg.Connection[tuple[Any, ...]], rotate_bytes: int = ROTATE_BYTES) -> int | None:
    """Begin a new partition if the current one is large; return its number.  This blocks no append."""
    with connection.transaction():
        if not _alone(connection):
            return None
        (gen,) = _one(connection, "select gen from bunqueue.store")
        (size,) = _one(connection, "select pg_total_relation_size(%s::regclass)", f"bunqueue.log_{gen}")
        if size < rotate_bytes:
            return None
        new = int(gen) + 1
        # Created separately and then attached: creating a partition in place blocks appends.
        connection.execute(f"create table bunqueue.log_{new} (like bunqueue.log including all)")
        connection.execute(f"alter table bunqueue.log_{new} add check (gen = {new})")
        connection.execute(
            f"alter table bunqueue.log attach partition bunqueue.log_{new} for values in ({new})"
        )
        connection.execute("update bunqueue.store set gen = %s", (new,))
    return new


def trim(connection: psycopg.Connection[tuple[Any, ...]]) -> list[int]:
    """Drop the partitions that are not needed any more; return their numbers.

    A partition that is in use is left for the next time."""
    (gen,) = _one(connection, "select gen from bunqueue.store")
    return [number for number in _partitions(connection) if number < gen and _drop(connection, number)]


def _partitions(connection: Any) -> list[int]:
    query = "select inhrelid::regclass::text from pg_inherits where inhparent = 'bunqueue.log'::regclass"
    return sorted(int(name.rpartition("_")[2]) for (name,) in connection.execute(query))


def _drop(connection: Any, number: int) -> bool:
    """Drop a partition if all its records are in snapshots.

    A record that was sent before the rotation may still arrive, so the partition is checked again under the
    lock.  A later append finds no partition: its owner is then uncertain, but no record is lost."""
    import psycopg

    name = f"bunqueue.log_{number}"
    try:
        with connection.transaction():
            if not _alone(connection) or _is_needed(connection, name):
                return False
            connection.execute(f"set local lock_timeout = {LOCK_MS}")
            connection.execute(f"lock table {name} in access exclusive mode")
            if _is_needed(connection, name):
                return False
            connection.execute(f"alter table bunqueue.log detach partition {name}")
            connection.execute(f"drop table {name}")
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def _is_needed(connection: Any, name: str) -> bool:
    query = f"""select exists (select 1 from bunqueue.shards where snapshot_seq <
                (select max(seq) from {name} where shard = shards.id))"""
    return bool(_one(connection, query)[0])


def _alone(connection: Any) -> bool:
    """Take the lock for partition maintenance until the transaction ends; False if another host has it."""
    return bool(_one(connection, "select pg_try_advisory_xact_lock(%s)", _LOCK)[0])


def _one(connection: Any, query: str, *values: object) -> tuple[Any, ...]:
    (row,) = connection.execute(query, values).fetchall()
    return tuple(row)
