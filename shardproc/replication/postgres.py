"""A shard's connection to its log in PostgreSQL. It never blocks: its socket joins the shard's poll.

One request is in flight at a time. Each is one statement, and so one transaction, whose commit is answered
only when a synchronous standby has it. *Any* notice makes the answer `Uncertain`: when a wait for the standby
is cancelled, PostgreSQL gives only a warning, and reports success. For the same reason nothing is ever
cancelled here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from psycopg import OperationalError, pq

from bunqueue.store.database import FORMAT, SESSION, StoreNotReady, conninfo, why_unusable
from shardproc.storage.schema import CURRENT

from .owner import (
    Answer,
    Append,
    Claim,
    Connect,
    Connected,
    Done,
    Entry,
    GetHolder,
    Heartbeat,
    Holder,
    Records,
    Refused,
    Release,
    Request,
    Tail,
    Uncertain,
)

_HOLDER = """
    select epoch, owner, beat, use from bunqueue.shards, bunqueue.store where shards.id = $1
"""
_CLAIM = """
    update bunqueue.shards set epoch = epoch + 1, owner = $3, schema = greatest(schema, $4)
    where id = $1 and epoch = $2
"""
_TAIL = """
    select snapshot_seq, coalesce((select max(seq) from bunqueue.log where shard = $1), 0),
           seq, tail.epoch, body
    from bunqueue.shards left join lateral (
        select seq, epoch, body from bunqueue.log where shard = $1 and seq > $2 order by seq limit $3
    ) tail on true
    where id = $1 order by seq
"""
_APPEND = """
    with owned as (
        update bunqueue.shards set beat = beat + 1, position = $3 where id = $1 and epoch = $2 returning 1
    )
    insert into bunqueue.log (gen, shard, seq, epoch, body)
    select store.gen, $1, $3, $2, $4 from bunqueue.store, owned
"""
_HEARTBEAT = """
    update bunqueue.shards set beat = beat + 1 where id = $1 and epoch = $2
    returning (select replicates from bunqueue.store) or current_setting('synchronous_standby_names') <> ''
"""

_RELEASE = "update bunqueue.shards set owner = '' where id = $1 and epoch = $2"

_INT, _LONG, _TEXT, _BYTES = 23, 20, 25, 17  # types of PostgreSQL
_TRUE = b"\x01"

_STATEMENTS: dict[type, tuple[bytes, str, Sequence[int]]] = {
    GetHolder: (b"holder", _HOLDER, (_INT,)),
    Claim: (b"claim", _CLAIM, (_INT, _LONG, _TEXT, _INT)),
    Tail: (b"tail", _TAIL, (_INT, _LONG, _LONG)),
    Append: (b"append", _APPEND, (_INT, _LONG, _LONG, _BYTES)),
    Heartbeat: (b"beat", _HEARTBEAT, (_INT, _LONG)),
    Release: (b"release", _RELEASE, (_INT, _LONG)),
}


def _int(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def _long(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


_PARAMETERS: dict[type, Callable[[Any], list[bytes]]] = {
    GetHolder: lambda request: [],
    Claim: lambda request: [_long(request.epoch), request.token.encode(), _int(CURRENT)],
    Tail: lambda request: [_long(request.after), _long(request.most)],
    Append: lambda request: [_long(request.epoch), _long(request.position), request.body],
    Heartbeat: lambda request: [_long(request.epoch)],
    Release: lambda request: [_long(request.epoch)],
}
"""The parameters of a request after the shard, in PostgreSQL's binary format."""


class _Connecting:
    """A connection that is being made, in a thread: looking up a host's name blocks."""

    def __init__(self, conninfo: bytes) -> None:
        self._conninfo = conninfo
        self._lock = threading.Lock()
        self._abandoned = False
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.made: pq.abc.PGconn | None = None
        self.problem = ""
        threading.Thread(target=self._run, name="bunqueue-store", daemon=True).start()

    def _run(self) -> None:
        try:
            self.made = _connected(self._conninfo)
        except (OperationalError, StoreNotReady) as error:
            self.problem = str(error)
        with self._lock:
            if not self._abandoned:
                os.write(self._writer, b".")
            elif self.made is not None:
                self.made.finish()  # twice does no harm
            os.close(self._writer)

    @property
    def is_done(self) -> bool:
        try:
            return bool(os.read(self.reader, 1))
        except BlockingIOError:
            return False

    def take(self) -> pq.abc.PGconn | None:
        """The connection, once it is made; None if that failed: see `problem`."""
        os.close(self.reader)
        return self.made

    def abandon(self) -> None:
        """Drop the connection, also if it is made later."""
        with self._lock:
            self._abandoned = True
            if self.made is not None:
                self.made.finish()
        os.close(self.reader)


class PostgresLink:
    """Carries an `Owner`'s requests to PostgreSQL, for one shard.

    Poll `fileno` for reading, and for writing while `wants_write`; call `receive` when it is ready.
    """

    def __init__(self, url: str, shard: int) -> None:
        self._conninfo = conninfo(url).encode()
        self._shard = _int(shard)
        self._conn: pq.abc.PGconn | None = None
        self._connecting: _Connecting | None = None
        self._asked: Request | None = None
        self._notice = ""
        self.wants_write = False

    @property
    def fileno(self) -> int | None:
        """The descriptor to poll; None while there is nothing to wait for."""
        if self._connecting is not None:
            return self._connecting.reader
        return None if self._conn is None else self._conn.socket

    def send(self, request: Request) -> Answer | None:
        """Begin a request. An answer comes at once if it cannot be sent."""
        if isinstance(request, Connect):
            self.close()
            self._connecting = _Connecting(self._conninfo)
            return None
        name, _, types = _STATEMENTS[type(request)]
        self._asked = request
        try:
            assert self._conn is not None
            values = [self._shard, *_PARAMETERS[type(request)](request)]
            self._conn.send_query_prepared(name, values, [1] * len(types), 1)
            self.wants_write = bool(self._conn.flush())
        except OperationalError as error:
            return self._lost(str(error))
        return None

    def receive(self) -> Answer | None:
        """Take what has arrived; returns the answer, once it is whole."""
        if self._connecting is not None:
            return self._end_connecting() if self._connecting.is_done else None
        if self._conn is None:
            return None
        try:
            self._conn.consume_input()
            self.wants_write = bool(self._conn.flush())
            if self._asked is None or self._conn.is_busy():
                return None
            results = []
            while (result := self._conn.get_result()) is not None:
                results.append(result)
        except OperationalError as error:
            return self._lost(str(error))
        asked, self._asked = self._asked, None
        if self._notice:
            return self._lost(self._notice)
        return self._answer(asked, results)

    def close(self) -> None:
        """Drop the connection. A request in flight may still be carried out."""
        if self._connecting is not None:
            self._connecting.abandon()
        if self._conn is not None:
            self._conn.finish()
        self._connecting = None
        self._conn, self._asked, self.wants_write, self._notice = None, None, False, ""

    # -- connecting

    def _end_connecting(self) -> Answer:
        connecting, self._connecting = self._connecting, None
        assert connecting is not None
        self._conn = connecting.take()
        if self._conn is None:
            return Uncertain(connecting.problem)
        self._conn.notice_handler = self._note
        return Connected()

    def _note(self, result: pq.abc.PGresult) -> None:
        self._notice = _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)) or "a notice"

    # -- answers

    def _lost(self, why: str) -> Answer:
        self.close()
        return Uncertain(why.strip())

    def _answer(self, asked: Request, results: list[pq.abc.PGresult]) -> Answer:
        (result,) = results if len(results) == 1 else (None,)
        if result is None or result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            return self._lost(_problem(result) if result is not None else "the connection ended")
        if isinstance(asked, GetHolder):
            if result.ntuples != 1:
                return self._lost("the store has no such shard: it was made for fewer")
            epoch, token, beat, use = (result.get_value(0, column) or b"" for column in range(4))
            if use:
                return self._lost(why_unusable(use.decode()))
            return Holder(int.from_bytes(epoch, "big"), token.decode(), int.from_bytes(beat, "big"))
        if isinstance(asked, Tail):
            return _records(result, asked.most)
        if result.command_tuples != 1:
            return Refused()
        return Done(result.get_value(0, 0) == _TRUE) if isinstance(asked, Heartbeat) else Done()


def _opened(conninfo: bytes) -> pq.abc.PGconn:
    conn = pq.PGconn.connect(conninfo)
    if conn.status != pq.ConnStatus.OK:
        raise OperationalError(conn.get_error_message())
    result = conn.exec_(SESSION.encode())
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise OperationalError(_problem(result))
    return conn


def _connected(conninfo: bytes) -> pq.abc.PGconn:
    """Connect, check that the tables have the format that this version knows, and prepare the statements."""
    conn = _opened(conninfo)
    found = conn.exec_params(b"select format from bunqueue.store", None, result_format=0)
    if found.status != pq.ExecStatus.TUPLES_OK or found.ntuples != 1:
        raise StoreNotReady("the database has no store of bunqueue yet: run 'bunqueue store init'")
    if (written := int(found.get_value(0, 0) or b"0")) != FORMAT:
        raise StoreNotReady(f"the store has format {written}, this version knows {FORMAT}: upgrade it")
    for name, sql, types in _STATEMENTS.values():
        result = conn.prepare(name, sql.encode(), types)
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise OperationalError(_problem(result))
    conn.nonblocking = 1
    return conn


def _records(result: pq.abc.PGresult, most: int) -> Records:
    """The tail; the result has a row without a record if the tail is empty."""
    snapshot, end = (int.from_bytes(result.get_value(0, column) or b"", "big") for column in range(2))
    rows = [row for row in range(result.ntuples) if result.get_value(row, 2) is not None]
    return Records([_entry(result, row) for row in rows], len(rows) < most, snapshot, max(snapshot, end))


def _entry(result: pq.abc.PGresult, row: int) -> Entry:
    seq, epoch, body = (result.get_value(row, column) or b"" for column in range(2, 5))
    return Entry(int.from_bytes(seq, "big"), int.from_bytes(epoch, "big"), body)


def _problem(result: pq.abc.PGresult) -> str:
    return _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)) or result.get_error_message()


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")
