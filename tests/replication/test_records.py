"""Records of the log: what they hold, who may read them, and that nothing is left out of them."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from msgspec import msgpack

from shardproc.replication import replay
from shardproc.replication.owner import Entry
from shardproc.replication.record import (
    COMPRESSED,
    COMPRESSED_FROM,
    FORMAT,
    MAX_CHANGES,
    PLAIN,
    RecordDamaged,
    RecordTooNew,
    decode,
    encode,
)
from shardproc.replication.recorder import Recorder, Unnumbered, recording
from shardproc.storage import statements
from shardproc.storage.schema import CURRENT, migrate

FIRST = sqlite3.Connection
RELEASED = 45  # statements that logs in the field may hold
DIGEST = "52b019d3306a9b12f28590bb30cb07033c755d67f4fbecc803014708ab6da52d"


def memory(kind: type[sqlite3.Connection] = FIRST) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=kind)
    migrate(connection)
    return connection


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def owner(recorder: Recorder) -> Iterator[sqlite3.Connection]:
    connection = memory(recording(recorder))
    yield connection
    connection.close()


@pytest.fixture
def twin() -> Iterator[sqlite3.Connection]:
    connection = memory()
    yield connection
    connection.close()


def put(connection: sqlite3.Connection, *keys: str) -> None:
    connection.execute("begin immediate")
    connection.executemany(statements.PUT_META, [(key, "value") for key in keys])


def record(*changes: tuple[int, list[Any]], schema: int = CURRENT) -> bytes:
    return encode(schema, 0, list(changes))


def junk(changes: object, version: int = COMPRESSED) -> bytes:
    """A record of any kind."""
    return msgpack.encode([version, CURRENT, 0, changes])


def test_released_statements_stay_as_they_are() -> None:
    released = "\n".join(f"{number} {statements.BY_NUMBER[number]}" for number in range(1, RELEASED + 1))
    assert hashlib.sha256(released.encode()).hexdigest() == DIGEST, "give what changes a new number"


def test_numbers_ascend() -> None:
    """Each room has a range of its own, so there may be gaps between them."""
    numbers = list(statements.BY_NUMBER)
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1


def test_a_statement_without_number_is_refused_and_changes_nothing(owner: sqlite3.Connection) -> None:
    with pytest.raises(Unnumbered, match="delete from jobs"):
        owner.execute("delete from jobs")
    with pytest.raises(Unnumbered, match="insert into meta"):
        owner.executemany("insert into meta values (?, 'x')", [("a",)])
    assert owner.execute("select count(*) from meta").fetchone() == (0,)


@pytest.mark.parametrize(
    "value", [None, 0, -(2**63), 2**63 - 1, 1.5, "", "\u00fc\U0001f600\x00", b"", b"\xc1\xff"]
)
def test_a_parameter_is_the_same_in_the_other_file(
    owner: sqlite3.Connection, twin: sqlite3.Connection, recorder: Recorder, value: Any
) -> None:
    owner.execute(statements.PUT_LARGE, (7, value, value))
    replay.apply(twin, [Entry(1, 1, recorder.take(CURRENT, 0))])
    query = "select typeof(timeline), timeline, typeof(result), result from large_outcomes"
    assert twin.execute(query).fetchall() == owner.execute(query).fetchall()
    assert replay.differences(owner, twin) == []


def test_what_was_rolled_back_is_not_recorded(
    owner: sqlite3.Connection, twin: sqlite3.Connection, recorder: Recorder
) -> None:
    put(owner, "gone")
    owner.execute("rollback")
    assert not recorder
    put(owner, "kept")
    owner.execute("savepoint settle")
    owner.execute(statements.PUT_META, ("half", "value"))
    owner.execute("rollback to settle")
    owner.execute(statements.PUT_META, ("again", "value"))
    owner.execute("release settle")
    owner.execute("commit")
    replay.apply(twin, [Entry(1, 1, recorder.take(CURRENT, 0))])
    assert replay.differences(owner, twin) == []
    keys = [key for (key,) in twin.execute("select key from meta order by key")]
    assert keys == ["again", "applied", "kept"]


def test_a_record_is_applied_whole_or_not_at_all(twin: sqlite3.Connection) -> None:
    replay.apply(twin, [Entry(1, 1, record())])
    put_meta = statements.NUMBER_OF[statements.PUT_META]
    with pytest.raises(RecordTooNew, match="statement 9999"):
        replay.apply(twin, [Entry(2, 1, record((put_meta, [("half", "value")]), (9999, [()])))])
    assert replay.applied(twin) == 1
    assert twin.execute("select count(*) from meta where key = 'half'").fetchone() == (0,)


@pytest.mark.parametrize(
    "body", [junk([], FORMAT + 1), record(schema=CURRENT + 1)], ids=["newer format", "newer schema"]
)
def test_a_record_of_a_newer_version_says_what_to_do(twin: sqlite3.Connection, body: bytes) -> None:
    with pytest.raises(RecordTooNew, match="upgrade"):
        replay.apply(twin, [Entry(1, 1, body)])


@pytest.mark.parametrize("size", [0, COMPRESSED_FROM - 200, COMPRESSED_FROM, 1_000_000])
def test_a_record_is_read_as_it_was_written(size: int) -> None:
    changes = [(9, [[1, b"x" * size, None]]), (13, [{"seq": 2}, {"seq": 3}])]
    body = encode(CURRENT, 1_700_000_000_000, changes)
    read = decode(body, CURRENT)
    assert [(number, rows) for number, rows in read.changes] == changes
    assert (read.schema, read.at) == (CURRENT, 1_700_000_000_000)
    assert read.format == (COMPRESSED if size >= COMPRESSED_FROM else PLAIN)
    assert len(body) < COMPRESSED_FROM


def test_a_record_of_the_first_format_is_read() -> None:
    """Logs hold them, at any length."""
    rows = [[number, "x" * 20] for number in range(1_000)]
    assert decode(junk([[9, rows]], PLAIN), CURRENT).changes == [(9, rows)]


_LONG = zstandard.compress(msgpack.encode([[9, [[0, "x" * 5_000]]]]))
_HUGE = b"\x28\xb5\x2f\xfd\xe0" + (MAX_CHANGES + 1).to_bytes(8, "little")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x93",
        b"\x80",
        msgpack.encode([PLAIN, "3", 0, []]),
        junk([], COMPRESSED),
        junk(b""),
        junk(b"no frame"),
        junk(_LONG[:-9]),
        junk(_HUGE),
        junk(zstandard.compress(b"\xc1")),
    ],
)
def test_junk_is_no_record(body: bytes) -> None:
    with pytest.raises(RecordDamaged):
        decode(body, CURRENT)


def test_a_flipped_bit_is_seen() -> None:
    body = encode(CURRENT, 0, [(9, [[0, "x" * 5_000]])])
    for place in range(len(body) - 12, len(body)):
        with pytest.raises(RecordDamaged):
            decode(body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :], CURRENT)


def test_a_new_file_gets_its_tables_with_the_first_record(tmp_path: Path) -> None:
    new = sqlite3.connect(tmp_path / "new.db", isolation_level=None)
    replay.apply(new, [Entry(1, 1, record((statements.NUMBER_OF[statements.PUT_META], [("key", "value")])))])
    assert new.execute("pragma user_version").fetchone() == (CURRENT,)
    assert replay.differences(new, memory()) == ["meta, row 1: ('key', 'value') and no row"]
    new.close()


def test_a_difference_names_table_and_row(owner: sqlite3.Connection, twin: sqlite3.Connection) -> None:
    owner.execute(statements.PUT_STRAGGLER, (7,))
    twin.execute("create table extra (a primary key)")
    assert replay.differences(owner, twin) == [
        "extra: only one file has this table",
        "stragglers, row 1: (7,) and no row",
    ]
