"""Building a file from the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from shardproc.storage.schema import CURRENT, migrate
from shardproc.storage.statements import BY_NUMBER, PUT_APPLIED

from .owner import Entry
from .record import Change, Record, RecordTooNew, decode

READ_APPLIED = "select value from meta where key = 'applied'"
LOCAL_META = frozenset({"applied", "identity", "probe"})  # keys that describe one file only


def applied(connection: sqlite3.Connection) -> int:
    """The position of the last record in the file; 0 for a new file."""
    if not connection.execute("pragma user_version").fetchone()[0]:
        return 0
    row = connection.execute(READ_APPLIED).fetchone()
    return 0 if row is None else int(row[0])


def apply(
    connection: sqlite3.Connection,
    entries: Sequence[Entry],
    changed: Callable[[list[Change]], None] = lambda changes: None,
) -> None:
    """Carry out consecutive records, as one transaction unless a migration comes between. ``changed`` is
    called with the statements of each.

    Raises `RecordTooNew`, `RecordDamaged`, and SQLite's errors; the file then has all or none of the records
    since the last migration.
    """
    schema = connection.execute("pragma user_version").fetchone()[0]
    run: list[tuple[Entry, Record]] = []
    for entry in entries:
        record = decode(entry.body, CURRENT)
        if record.schema > schema:
            _apply_run(connection, run)
            migrate(connection)
            run, schema = [], CURRENT
        run.append((entry, record))
        changed(record.changes)
    _apply_run(connection, run)


def _apply_run(connection: sqlite3.Connection, run: list[tuple[Entry, Record]]) -> None:
    if not run:
        return
    connection.execute("begin immediate")
    try:
        for _, record in run:
            _carry_out(connection, record)
        connection.execute(PUT_APPLIED, (str(run[-1][0].position),))
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _carry_out(connection: sqlite3.Connection, record: Record) -> None:
    for number, rows in record.changes:
        sql = BY_NUMBER.get(number)
        if sql is None:
            raise RecordTooNew(f"the log holds statement {number}, unknown to this version: upgrade it")
        connection.executemany(sql, rows)


def differences(one: sqlite3.Connection, other: sqlite3.Connection) -> list[str]:
    """Tables in which two files of a shard differ, with the first row that differs."""
    found = []
    for table in sorted(_tables(one) | _tables(other)):
        if table not in _tables(one) & _tables(other):
            found.append(f"{table}: only one file has this table")
            continue
        for number, (row, twin) in enumerate(_pairs(_rows(one, table), _rows(other, table)), 1):
            if row != twin:
                found.append(f"{table}, row {number}: {_short(row)} and {_short(twin)}")
                break
    return found


def _tables(connection: sqlite3.Connection) -> set[str]:
    query = "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'"
    return {str(name) for (name,) in connection.execute(query)}


def _rows(connection: sqlite3.Connection, table: str) -> Iterable[tuple[object, ...]]:
    """All rows, in the order of the primary key."""
    columns = connection.execute(f'pragma table_info("{table}")').fetchall()
    keys = [str(column[1]) for column in sorted(columns, key=itemgetter(5)) if column[5]]
    found = connection.execute(f'select * from "{table}" order by {", ".join(keys)}')
    if table == "meta":
        return (row for row in found if row[0] not in LOCAL_META)
    return found


def _pairs(
    one: Iterable[tuple[object, ...]], other: Iterable[tuple[object, ...]]
) -> Iterable[tuple[object, object]]:
    left, right = iter(one), iter(other)
    while True:
        row, twin = next(left, None), next(right, None)
        if row is None and twin is None:
            return
        yield row, twin


def _short(row: object) -> str:
    text = "no row" if row is None else repr(row)
    return text if len(text) <= 200 else f"{text[:200]}..."
