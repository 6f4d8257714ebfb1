"""Live jobs that were read before the end of the log: what the tail has changed is right.

Every engine test checks that, too, with whatever it does: see `engine/follower.py`.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import pytest
from engine.shard_driver import Driver

from bunqueue.model.job import Job
from shardproc.replication import replay
from shardproc.replication.owner import Entry
from shardproc.storage import statements
from shardproc.storage.preloaded import MOST, Preloaded, preload, touches

LIVE = 10  # jobs when they are read
NUMBER_OF = statements.NUMBER_OF


class Tail:
    """The file of another host, which follows a shard; its live jobs are read before the tail of the log."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.ids = [self.driver.push(data={"n": number}) for number in range(LIVE)]
        self.pulled = self.driver.ask(cmd="PULL", queue="q", owner="w")
        self._log = self.driver.follower._log
        self._begin = len(self._log)
        self.twin = sqlite3.connect(":memory:", isolation_level=None)
        self.driver.shard.store.database.connection.backup(self.twin)
        found = preload(self.twin)
        assert found is not None
        self.preloaded = found

    def taken(self) -> dict[str, Job] | None:
        """Read the rest of the log; the live jobs after that."""
        entries = [Entry(place, 1, body) for place, body in enumerate(self._log[self._begin :], 1)]
        replay.apply(self.twin, entries, self.preloaded.changed)
        jobs = self.preloaded.take(self.twin, {1: "q"})
        if jobs is None:
            return None
        assert [job.seq for job in jobs] == sorted({job.seq for job in jobs})
        return {job.id: job for job in jobs}

    def close(self) -> None:
        self.twin.close()
        self.driver.close()


@pytest.fixture
def tail() -> Iterator[Tail]:
    made = Tail()
    yield made
    made.close()


def test_what_the_tail_changes_is_right(tail: Tail) -> None:
    driver, ids = tail.driver, tail.ids
    assert driver.ask(cmd="ACK", id=ids[0], token=tail.pulled["token"])["ok"]
    assert driver.ask(cmd="Cancel", id=ids[1])["ok"]
    assert driver.ask(cmd="ChangePriority", id=ids[2], priority=7)["ok"]
    assert driver.ask(cmd="MoveToDelayed", id=ids[3], delay=60_000)["ok"]
    added = driver.push(data={"n": "new"})
    delayed = driver.push(data={"n": "later"}, delay=5_000)
    second = driver.ask(cmd="PULL", queue="q", owner="w")
    found = tail.taken()
    assert found is not None
    assert set(found) == {*ids[2:], added, delayed}
    assert found[ids[2]].priority == 7
    assert found[ids[3]].run_at == driver.now + 60_000
    assert found[delayed].run_at == driver.now + 5_000
    assert second["job"]["id"] == ids[2]
    lock = found[ids[2]].lock
    assert lock is not None
    assert lock.token == second["token"]
    assert all(found[one].lock is None for one in (*ids[3:], added, delayed))


def test_a_job_that_fails_and_comes_back(tail: Tail) -> None:
    driver, first = tail.driver, tail.ids[0]
    assert driver.ask(cmd="FAIL", id=first, token=tail.pulled["token"], error="no")["ok"]
    found = tail.taken()
    assert found is not None
    assert found[first].lock is None
    assert (found[first].attempts, found[first].error) == (1, "no")


def test_only_what_was_touched_is_read_again(tail: Tail) -> None:
    tail.driver.push(data={"n": "new"})
    read: list[str] = []
    tail.twin.set_trace_callback(read.append)
    assert len(tail.taken() or ()) == LIVE + 1
    (again,) = (re.findall(r"json_each\('\[(.*?)\]'\)", one) for one in read if "json_each" in one)
    assert again == ["1,11"]  # the new one; and the one with a lock, whatever the tail says


def test_where_it_is_not_certain_all_are_read(tail: Tail) -> None:
    tail.preloaded.changed([(NUMBER_OF[statements.MOVE_CREATED], [{"by": 5}])])
    tail.driver.push(data={"n": "new"})
    assert tail.taken() is None


@pytest.mark.parametrize(
    ("sql", "enough", "too_much"),
    [
        (statements.INSERT_FRESH, [(number,) for number in range(MOST)], [(MOST,)]),
        (statements.DELETE_JOBS, [(1, MOST)], [(1, MOST + 1)]),
    ],
)
def test_a_long_tail_is_no_gain(
    tail: Tail, sql: str, enough: list[tuple[int, ...]], too_much: list[tuple[int, ...]]
) -> None:
    number = NUMBER_OF[sql]
    preloaded = Preloaded({})
    preloaded.changed([(number, enough)])
    assert preloaded.take(tail.twin, {1: "q"}) is not None
    preloaded = Preloaded({})
    preloaded.changed([(number, enough), (number, too_much)])
    assert preloaded.take(tail.twin, {1: "q"}) is None


def test_every_statement_is_known_or_touches_other_tables() -> None:
    """One that is new, and changes what makes a job live, has all jobs read until it is entered."""
    uncertain = {number for number in statements.BY_NUMBER if touches(number) is None}
    assert uncertain == {NUMBER_OF[statements.MOVE_CREATED]}
    assert touches(9_999) is None
