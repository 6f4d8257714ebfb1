"""Makes the rows of a whole file agree with each other, where there is no doubt about what is right.

Only for the files of a stopped server. Contradictions that `recount` finds, but nothing here can fix, are
left.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from msgspec import Struct, field

from ..schema import CURRENT
from .recount import CHECKS, LOCKS_OF_ENDED, contradictions

COUNTS = """update queues set completed = (select count(*) from completed where queue_id = queues.id),
                              failed = (select count(*) from dead_letters where queue_id = queues.id)"""
_BOTH = "from {other} other where other.queue_id = {table}.queue_id and other.seq = {table}.seq"
FIXES: dict[str, tuple[str, ...]] = {
    "one state a job": (
        f"delete from locks where seq in ({LOCKS_OF_ENDED})",
        # The later one of two outcomes counts.
        f"""delete from completed where exists (
                select 1 {_BOTH.format(other="dead_letters", table="completed")}
                and other.finished_at > completed.finished_at)""",
        f"""delete from dead_letters where exists (
                select 1 {_BOTH.format(other="completed", table="dead_letters")})""",
        COUNTS,
    ),
    "states have jobs": (
        "delete from locks where seq not in (select seq from jobs)",
        "delete from completed where seq not in (select seq from jobs)",
        "delete from dead_letters where seq not in (select seq from jobs)",
        COUNTS,
    ),
    "completed jobs": (COUNTS,),
    "dead letters": (COUNTS,),
    "unfinished jobs": tuple(
        f"insert or ignore into stragglers {check.query}"
        for check in CHECKS
        if check.name == "unfinished jobs"
    ),
}
"""The statements that fix a contradiction, by the name of the check that finds it."""


class FixedContradictions(Struct):
    """What was done about the contradictions in a file."""

    fixed: dict[str, str] = field(default_factory=dict)  # check -> what was wrong
    left: dict[str, str] = field(default_factory=dict)


def fix_contradictions(file: Path) -> FixedContradictions:
    """Fix what can be fixed, in one transaction. May raise sqlite3.Error."""
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        if db.execute("pragma user_version").fetchone()[0] != CURRENT:
            return FixedContradictions()  # the next start makes its tables, or refuses it
        before = _problems(db)
        if not before:
            return FixedContradictions()
        db.execute("begin immediate")
        for name in before:
            for fix in FIXES.get(name, ()):
                db.execute(fix)
        left = _problems(db)
        db.execute("commit")
        return FixedContradictions({name: what for name, what in before.items() if name not in left}, left)


def _problems(db: sqlite3.Connection) -> dict[str, str]:
    return {found.check: found.problem for found in contradictions(db) if found.problem}
