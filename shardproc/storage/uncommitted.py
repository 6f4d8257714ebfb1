"""A connection to a file that must stay as it is, for an engine that writes a little when it starts."""

from __future__ import annotations

import sqlite3
from typing import Any

_BEGIN, _COMMIT = "begin immediate", "commit"


class Uncommitted(sqlite3.Connection):
    """A connection that never commits a transaction, but goes on with it."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == _COMMIT or (sql == _BEGIN and self.in_transaction):
            sql = "select 1"
        return super().execute(sql, parameters)
