"""The partitions of the log: a new one now and then, and old ones dropped when snapshots hold all of them.

Deleting rows would cost as much as writing them; dropping a partition costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .database import connected

if TYPE_CHECKING:
    import psycopg

ROTATE_BYTES = 64 << 20  # of a partition, from which on the next records go to a new one
LOCK_MS = 500  # to wait for the records under way; others wait behind that, so it is short
_LOCK = 0x62756E71  # of an advisory lock: of all hosts one looks after the partitions


def look_after(url: str) -> int:
    """After a snapshot: begin a new partition if it is time for one, and drop those that nobody needs; how
    many these were.  StoreError if the store does not answer."""
    with connected(url) as connection:
        rotate(connection)
        return len(trim(connection))


def rotate(connection: psycopg.Connection[tuple[Any, ...]], rotate_bytes: int = ROTATE_BYTES) -> int | None:
    """Begin a new partition if the current one is large; its number.  Nobody waits."""
    with connection.transaction():
        if not _alone(connection):
            return None
        (gen,) = _one(connection, "select gen from bunqueue.store")
        (size,) = _one(connection, "select pg_total_relation_size(%s::regclass)", f"bunqueue.log_{gen}")
        if size < rotate_bytes:
            return None
        new = int(gen) + 1
        # Attached, as a partition that is created in place locks out those that append.
        connection.execute(f"create table bunqueue.log_{new} (like bunqueue.log including all)")
        connection.execute(f"alter table bunqueue.log_{new} add check (gen = {new})")
        connection.execute(
            f"alter table bunqueue.log attach partition bunqueue.log_{new} for values in ({new})"
        )
        connection.execute("update bunqueue.store set gen = %s", (new,))
    return new


def trim(connection: psycopg.Connection[tuple[Any, ...]]) -> list[int]:
    """Drop the partitions that nobody needs any more; their numbers.

    One that is busy is left for the next time."""
    (gen,) = _one(connection, "select gen from bunqueue.store")
    return [number for number in _partitions(connection) if number < gen and _drop(connection, number)]


def _partitions(connection: Any) -> list[int]:
    query = "select inhrelid::regclass::text from pg_inherits where inhparent = 'bunqueue.log'::regclass"
    return sorted(int(name.rpartition("_")[2]) for (name,) in connection.execute(query))


def _drop(connection: Any, number: int) -> bool:
    """Drop a partition if all its records are in snapshots.

    A record that was sent before the rotation may still arrive: the look comes after the lock, and whoever
    comes later finds no partition, which is a doubt for that owner, and no loss."""
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
    """Whether no other host looks after the partitions now; until the transaction ends."""
    return bool(_one(connection, "select pg_try_advisory_xact_lock(%s)", _LOCK)[0])


def _one(connection: Any, query: str, *values: object) -> tuple[Any, ...]:
    (row,) = connection.execute(query, values).fetchall()
    return tuple(row)
