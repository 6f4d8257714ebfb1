"""The file of another host, built from the log of a shard under test.

Every engine test checks it on the way: when its shard closes, both files must be the same in every table, and
keep the rules of every file.
And half way the live jobs are read, as a host does that is about to take the shard over: what the rest of the
log makes of them must be what the file says.
"""

from __future__ import annotations

import sqlite3
from typing import Any, ClassVar

from support.file_rules import check_rules

from bunqueue.model.job import Job
from shardproc.core import Shard
from shardproc.replication import replay
from shardproc.replication.owner import Entry
from shardproc.replication.recorder import Recorder
from shardproc.storage import statements
from shardproc.storage.preloaded import preload
from shardproc.storage.schema import CURRENT

UNCERTAIN = {statements.NUMBER_OF[statements.MOVE_CREATED]}  # nobody knows which jobs these touch


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
        self._apply(entries)
        self._at += len(entries)
        self._log.clear()
        if self._source.in_transaction:
            self._source.execute("rollback")  # the test ends here, as by a crash
        found = replay.differences(self._source, self._twin)
        assert not found, found
        check_rules(self._source)

    def _apply(self, entries: list[Entry]) -> None:
        half = len(entries) // 2
        replay.apply(self._twin, entries[:half], self._note)
        preloaded = preload(self._twin)
        assert preloaded is not None
        numbers: set[int] = set()

        def changed(changes: list[Any]) -> None:
            self._note(changes)
            numbers.update(number for number, _ in changes)
            preloaded.changed(changes)

        replay.apply(self._twin, entries[half:], changed)
        jobs = preloaded.take(self._twin, self._queues())
        assert (jobs is None) == bool(numbers & UNCERTAIN)
        if jobs is not None:
            again = preload(self._twin)
            assert again is not None
            assert list(map(_whole, jobs)) == list(map(_whole, again.take(self._twin, self._queues()) or ()))

    def _note(self, changes: list[Any]) -> None:
        self.numbers.update(number for number, _ in changes)

    def _queues(self) -> dict[int, str]:
        return dict(self._twin.execute("select id, name from queues"))

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


def _whole(job: Job) -> list[object]:
    """All that is known of a job."""
    names = [name for name in Job.__struct_fields__ if name != "shared"]
    return [job.shared.stored, *(repr(getattr(job, name)) for name in names)]
