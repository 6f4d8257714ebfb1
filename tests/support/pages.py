"""Damage to a database file, page by page."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

INTERIOR = {2: 12, 5: 12}  # kind of a page -> size of its header
SIZE = 8192


def settle(file: Path) -> None:
    """Have everything in the file itself: what is in the log would hide damage to it."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("pragma wal_checkpoint(truncate)")


def leaves(file: Path, name: str) -> list[int]:
    """The pages of a table or index that hold its rows, in order."""
    with closing(sqlite3.connect(file)) as db:
        (root,) = db.execute("select rootpage from sqlite_master where name = ?", (name,)).fetchone()
    return _leaves(file.read_bytes(), root)


def _leaves(data: bytes, page: int) -> list[int]:
    start = (page - 1) * SIZE
    header = start + (100 if page == 1 else 0)
    size = INTERIOR.get(data[header])
    if size is None:
        return [page]
    cells = int.from_bytes(data[header + 3 : header + 5], "big")
    found: list[int] = []
    for cell in range(cells):
        at = header + size + 2 * cell
        place = start + int.from_bytes(data[at : at + 2], "big")
        found += _leaves(data, int.from_bytes(data[place : place + 4], "big"))
    return found + _leaves(data, int.from_bytes(data[header + 8 : header + 12], "big"))


def leaf_of_row(file: Path, table: str, number: int) -> int:
    """The page in which the row with that number stands, counted from 0 in the order of keys."""
    data = file.read_bytes()
    for page in leaves(file, table):
        start = (page - 1) * SIZE
        number -= int.from_bytes(data[start + 3 : start + 5], "big")
        if number < 0:
            return page
    raise AssertionError("there is no such row")


def damage(file: Path, pages: list[int], *, garbage: random.Random | None = None) -> None:
    """Write zeros, or garbage, over pages."""
    with file.open("r+b") as opened:
        for page in pages:
            opened.seek((page - 1) * SIZE)
            opened.write(garbage.randbytes(SIZE) if garbage else bytes(SIZE))
