"""The file of another host, built from the log of a shard under test.

Every engine test checks it on the way: when its shard closes, both files must be the same in every table.
"""

from __future__ import annotations

import sqlite3
from typing import ClassVar

from shardproc.core import Shard
from shardproc.replication import replay
from shardproc.replication.owner import Entry
from shardproc.replication.record import decode
from shardproc.replication.recorder import Recorder
from shardproc.storage.schema import CURRENT


class Follower:
    """Follows one shard from the state in which it is found."""

    numbers: ClassVar[set[int]] = set()  # of the statements that any test has brought here

    def __init__(self, shard: Shard, recorder: Recorder) -> None:
        self._shard, self._recorder = shard, recorder
        self._log: list[bytes] = []
        self._twin = sqlite3.connect(":memory:", isolation_level=None)
        self._source.backup(self._twin)
        self._at = replay.applied(self._twin)
        recorder.take(CURRENT, 0)  # what recovery wrote is in the copy

    @property
    def _source(self) -> sqlite3.Connection:
        return self._shard.store.database.connection

    def follow(self) -> None:
        """The shard has committed."""
        if self._recorder and not self._source.in_transaction:
            self._log.append(self._recorder.take(CURRENT, 0))

    def check(self) -> None:
        """Read the log so far; both files must be the same."""
        if self._is_closed():
            return  # by the test
        self.follow()
        entries = [Entry(self._at + place, 1, body) for place, body in enumerate(self._log, 1)]
        replay.apply(self._twin, entries)
        self._at += len(entries)
        for body in self._log:
            self.numbers.update(number for number, _ in decode(body, CURRENT).changes)
        self._log.clear()
        if self._source.in_transaction:
            self._source.execute("rollback")  # the test ends here, as by a crash
        found = replay.differences(self._source, self._twin)
        assert not found, found

    def tamper(self, sql: str, parameters: tuple[object, ...]) -> None:
        """Change both files behind the recorder's back."""
        for connection in (self._source, self._twin):
            sqlite3.Connection.execute(connection, sql, parameters)

    def _is_closed(self) -> bool:
        try:
            self._source.total_changes  # noqa: B018
        except sqlite3.ProgrammingError:
            return True
        return False

    def close(self) -> None:
        self._twin.close()
