"""Making the tables of a store."""

from __future__ import annotations

import secrets

from .database import FORMAT, TABLES, StoreNotReady, connected, read


def init(url: str, shards: int, *, replicates: bool = False) -> str:
    """Make the tables for this number of shards; return the new store's id.

    ``replicates``: the database's storage keeps copies automatically.  StoreNotReady, and nothing is changed,
    if the tables exist already or the role may not make them."""
    import psycopg

    with connected(url) as connection:
        try:
            there = read(connection)
        except StoreNotReady:
            there = None
        if there is not None:
            raise StoreNotReady(
                f"the database has a store already, made for {there.shards} shards: start with --store, or "
                "give another database"
            )
        number = secrets.token_hex(8)
        try:
            with connection.transaction():
                connection.execute(TABLES.read_bytes())
                connection.execute(
                    "insert into bunqueue.store (format, id, shards, secret, replicates) "
                    "values (%s, %s, %s, %s, %s)",
                    (FORMAT, number, shards, secrets.token_hex(32), replicates),
                )
                connection.execute(
                    "insert into bunqueue.shards (id) select generate_series(0, %s)", (shards - 1,)
                )
        except psycopg.Error as error:
            raise StoreNotReady(" ".join(str(error).split())) from error
    return number
