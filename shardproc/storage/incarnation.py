"""Which incarnation of the server a file is in, and what the previous one has left unresolved between
shards."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import msgspec

from shardproc.engine.memory.recovery import GAP, KIND, SEEK, UNCERTAIN, Gap

from . import statements


def enter(
    db: sqlite3.Connection, begin: Callable[[], None], epoch: str, last: int | None, *, others: bool
) -> bool:
    """Begin, or resume, the incarnation of a router; returns whether it is a new one.

    The connections of another incarnation are gone for good. With ``others``, other shards may now know more,
    or less, than this one, which knows what happened until ``last``. What is written is part of the
    transaction that ``begin`` opens.
    """
    stored = dict(db.execute("select key, value from meta where key in ('epoch', 'closed')"))
    if stored == {"epoch": epoch}:
        return False
    begin()
    db.execute(statements.FORGET_CONNECTIONS)
    db.execute(statements.PUT_META, ("epoch", epoch))
    db.execute(statements.DELETE_META, ("closed",))
    if others:
        db.execute(statements.PUT_RECORD, UNCERTAIN)
    if others and "closed" not in stored:
        gap = (KIND, GAP, msgspec.json.encode(Gap(last)).decode())
        db.execute(statements.PUT_RECORD, SEEK)
        db.execute(statements.ADD_RECORD, gap)  # an older one stays
    return True
