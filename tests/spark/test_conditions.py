"""Conditions as SQLite understands them, beside what they mean."""

from __future__ import annotations

import operator
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.spark.read.conditions import Condition, clause_of, where
from bunqueue.spark.read.tables import Column, Table

TABLE = Table(
    "things",
    "",
    (
        Column("at", "timestamp", "", "things.at"),
        Column("number", "bigint", "", "things.number"),
        Column("text", "string", "", "things.text"),
        Column("ratio", "double", "", "things.number"),
        Column("raw", "binary", "", "things.text"),
        Column("made", "string", "", "things.text", decode=str),
    ),
    "things",
    "at",
)
COMPARE = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


def found(rows: list[tuple[Any, ...]], *conditions: Condition) -> list[int]:
    """The places of the rows that SQLite finds."""
    db = sqlite3.connect(":memory:")
    db.execute("create table things (at, number, text)")
    db.executemany("insert into things values (?, ?, ?)", rows)
    clause, parameters = where(TABLE, conditions)
    places = db.execute(f"select rowid - 1 from things where {clause} order by 1", parameters).fetchall()
    db.close()
    return [place for (place,) in places]


@given(
    stored=st.lists(st.integers(-3, 3), max_size=7),
    micros=st.integers(-3500, 3500),
    sign=st.sampled_from(sorted(COMPARE)),
)
def test_times_are_compared_to_the_microsecond(stored: list[int], micros: int, sign: Any) -> None:
    moments = [NOON + timedelta(milliseconds=ms) for ms in stored]
    rows = [(int(moment.timestamp() * 1000), 0, "") for moment in moments]
    asked = NOON + timedelta(microseconds=micros)
    expected = [place for place, moment in enumerate(moments) if COMPARE[sign](moment, asked)]
    assert found(rows, Condition("at", sign, asked)) == expected


@given(
    texts=st.lists(st.text(max_size=4) | st.none(), max_size=7),
    asked=st.text(max_size=4).filter(lambda text: "\0" not in text),
    sign=st.sampled_from(sorted([*COMPARE, "starts"])),
)
def test_texts_are_compared_by_their_bytes(texts: list[str | None], asked: str, sign: Any) -> None:
    def matches(text: str | None) -> bool:
        if text is None:
            return False
        if sign == "starts":
            return text.startswith(asked)
        return bool(COMPARE[sign](text.encode(), asked.encode()))

    texts = [text and text.replace("\0", "0") for text in texts]
    rows = [(0, 0, text) for text in texts]
    expected = [place for place, text in enumerate(texts) if matches(text)]
    assert found(rows, Condition("text", sign, asked)) == expected


def test_numbers_lists_and_nulls() -> None:
    rows = [(0, number, None) for number in (1, 2, None, 2**62)]
    assert found(rows, Condition("number", ">", 1)) == [1, 3]
    assert found(rows, Condition("number", "in", [1, 2**62, 7])) == [0, 3]
    assert found(rows, Condition("number", "null")) == [2]
    assert found(rows, Condition("number", "not null"), Condition("number", "<", 3)) == [0, 1]


@pytest.mark.parametrize(
    "condition",
    [
        Condition("nothing", "=", 1),
        Condition("number", "=", 2**63),
        Condition("number", "=", "1"),
        Condition("number", "=", True),
        Condition("number", "in", [1, None]),
        Condition("number", "in", list(range(501))),
        Condition("number", "starts", "1"),
        Condition("ratio", ">", float("nan")),
        Condition("raw", "=", b"x"),
        Condition("raw", "null"),
        Condition("made", "=", "x"),
        Condition("made", "null"),
        Condition("at", "in", [NOON]),
        Condition("at", "=", "noon"),
    ],
)
def test_what_sqlite_sees_otherwise_is_refused(condition: Condition) -> None:
    assert clause_of(TABLE, condition) is None
