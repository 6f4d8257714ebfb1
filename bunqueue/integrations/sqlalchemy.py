"""An outbox for SQLAlchemy: jobs that are added when, and only when, a transaction is committed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, overload

from bunqueue.client.flow_plan import FlowJob
from bunqueue.client.options.job import JobOptions
from bunqueue.integrations import missing
from bunqueue.integrations.outbox import Batch, P, Row, Typed, row_of

try:
    from sqlalchemy import (
        BigInteger,
        Column,
        Connection,
        Engine,
        Float,
        Integer,
        LargeBinary,
        MetaData,
        String,
        Table,
        Text,
        delete,
        event,
        insert,
        select,
        update,
    )
    from sqlalchemy.orm import Session, SessionTransaction
except ImportError as error:
    raise missing("sqlalchemy", error) from None

if TYPE_CHECKING:
    from bunqueue.client.blocking.queue import Queue

LOCKING = frozenset({"postgresql", "mysql", "mariadb", "oracle"})
"""Databases that can skip rows that another transaction has locked."""
_PENDING = "bunqueue.on_commit"


class SqlOutbox:
    """The table and its operations. Make it part of your metadata, and of your migrations:

    outbox = SqlOutbox(Base.metadata)
    with Session(engine) as session, session.begin():
        session.add(user)
        outbox.add(session, "emails", "welcome", {"to": user.email})
    Relay(outbox.on(engine)).run_forever()  # in a process of its own
    """

    def __init__(self, metadata: MetaData, name: str = "bunqueue_outbox") -> None:
        self.table = Table(
            name,
            metadata,
            Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
            Column("job_id", String(1024), nullable=False),
            Column("queue", String(256), nullable=False),
            Column("name", Text, nullable=False),
            Column("command", LargeBinary, nullable=False),
            Column("created_at", Float, nullable=False),
            Column("error", Text),  # why the server has refused it; such rows wait for a person
        )

    @overload
    def add(
        self,
        session: Session | Connection,
        queue: str,
        name: str,
        data: object = None,
        /,
        **options: Unpack[JobOptions],
    ) -> str: ...

    @overload
    def add(self, session: Session | Connection, job: FlowJob[Any], /) -> str: ...

    @overload
    def add(
        self, session: Session | Connection, task: Typed[P], /, *args: P.args, **kwargs: P.kwargs
    ) -> str: ...

    def add(self, session: Session | Connection, what: Any, /, *args: Any, **options: Any) -> str:
        """Write a job into the outbox, in the transaction of a session or connection. Returns the id that the
        job will have.

        `what` is a function with `@app.job`, followed by its arguments, or what its `job(...)` returns, or
        the name of a queue, followed by the name and the data of the job.

        The job is added when the transaction has been committed and a relay has read the row; never if the
        transaction is rolled back. With an AsyncSession: `await session.run_sync(lambda session:
        outbox.add(session, ...))`. Raises OptionError, or PayloadError if `data` cannot be encoded.
        """
        row = row_of(what, args, options)
        session.execute(insert(self.table).values(row._asdict() | {"created_at": time.time()}))
        return row.job_id

    def on(self, engine: Engine) -> BoundOutbox:
        """The outbox of a database, for a relay."""
        return BoundOutbox(self.table, engine)


class SqlBatch(Batch):
    """Rows of a table of this kind."""

    def write(self, table: Table, connection: Connection) -> None:
        """Write the outcomes to the database."""
        if self._done:
            connection.execute(delete(table).where(table.c.id.in_(self._done)))
        for row, why in self._refused:
            connection.execute(update(table).where(table.c.id == row).values(error=why))


class BoundOutbox:
    """The outbox of a database. Implements `bunqueue.integrations.outbox.Outbox`."""

    def __init__(self, table: Table, engine: Engine) -> None:
        self._table = table
        self._engine = engine

    @contextmanager
    def batch(self, limit: int) -> Iterator[SqlBatch]:
        """The oldest rows. If the database supports it, they are locked, and rows that another relay has
        locked are skipped. Otherwise two relays may send the same row, which adds one job."""
        with self._engine.connect() as connection:
            batch = SqlBatch(self._read(connection, limit))
            if connection.dialect.name not in LOCKING:
                connection.rollback()  # reading is over, and must not block others
            yield batch
            batch.write(self._table, connection)
            connection.commit()

    def _read(self, connection: Connection, limit: int) -> list[Row]:
        columns = self._table.c
        oldest = select(columns.id, columns.command, columns.created_at).where(columns.error.is_(None))
        oldest = oldest.order_by(columns.id).limit(limit)
        if connection.dialect.name in LOCKING:
            oldest = oldest.with_for_update(skip_locked=True)
        return [Row(row.id, bytes(row.command), row.created_at) for row in connection.execute(oldest)]


def add_on_commit(
    session: Session, queue: Queue, name: str, data: object = None, **options: Unpack[JobOptions]
) -> None:
    """Add a job right after the commit of the session's transaction; never if the transaction, or the current
    savepoint, is rolled back.

    This needs no table and no relay. But if this process dies, or the server is unavailable, between the
    commit and the adding, the job is lost. `SqlOutbox.add` avoids that.
    """
    if _PENDING not in session.info:
        session.info[_PENDING] = []
        event.listen(session, "after_commit", _add_pending)
        event.listen(session, "after_soft_rollback", _forget_pending)
    if not session.in_transaction():
        session.begin()
    within = session.get_nested_transaction() or session.get_transaction()
    session.info[_PENDING].append((within, partial(queue.add, name, data, **options)))


def _add_pending(session: Session) -> None:
    if not session.in_nested_transaction():
        pending, session.info[_PENDING] = session.info[_PENDING], []
        for _, add in pending:
            add()


def _forget_pending(session: Session, ended: SessionTransaction) -> None:
    pending = session.info[_PENDING]
    session.info[_PENDING] = [(within, add) for within, add in pending if not _is_within(within, ended)]


def _is_within(transaction: SessionTransaction | None, outer: SessionTransaction) -> bool:
    while transaction is not None and transaction is not outer:
        transaction = transaction.parent
    return transaction is outer
