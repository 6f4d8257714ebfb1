"""Deleting finished jobs: what `removal.purge` is told goes with all its rows, and nothing else does."""

from __future__ import annotations

import pytest
from engine.shard_driver import START, Driver

from bunqueue.model.job import COMPLETED, FAILED
from shardproc.engine.lifecycle import removal
from shardproc.engine.outbox import LogEntry
from shardproc.engine.state import QueueState
from shardproc.storage import rows as stored
from shardproc.storage.event_log import read
from shardproc.storage.schema import OF_JOBS


def complete(driver: Driver, queue: str = "q", *, result: object = 1) -> str:
    job_id = driver.push(queue=queue, data="x" * 10)
    driver.ask(cmd="PULL", queue=queue)
    driver.ask(cmd="ACK", id=job_id, result=result)
    return job_id


def die(driver: Driver, queue: str = "q") -> str:
    job_id = driver.push(queue=queue, data="x" * 10, maxAttempts=1)
    driver.ask(cmd="PULL", queue=queue)
    driver.ask(cmd="FAIL", id=job_id, error="no")
    return job_id


def queue_of(driver: Driver, name: str = "q") -> QueueState:
    return driver.shard.engine.state.queues[name]


def purge_completed(driver: Driver, until: int, limit: int = 100) -> list[str]:
    state, queue = driver.shard.engine.state, queue_of(driver)
    found, _ = state.archive.old_completed(queue.id, until, limit, -1)
    removal.purge(state, queue, COMPLETED, [seq for seq, _ in found])
    return [job_id for _, job_id in found]


def purge_dead(driver: Driver, until: int, limit: int = 100) -> list[str]:
    state, queue = driver.shard.engine.state, queue_of(driver)
    found = state.archive.old_dead_letters(queue.id, until, limit)
    removal.purge(state, queue, FAILED, [message.seq for message in found])
    return [message.id for message in found]


def rows(driver: Driver) -> dict[str, int]:
    return {table.name: driver.rows(f"select count(*) from {table.name}")[0][0] for table in OF_JOBS}


@pytest.mark.parametrize("result", [1, "r" * 5000])
def test_all_rows_of_the_completed_go_and_those_of_others_stay(driver: Driver, result: object) -> None:
    ids = []
    for _ in range(5):  # of two queues, in turn
        ids.append(complete(driver, result=result))
        complete(driver, "other", result=result)
    state = driver.shard.engine.state
    state.out.logs.append(LogEntry(1, START, "info", "of the first"))
    driver.commit()
    others = {name: count // 2 for name, count in rows(driver).items()}
    assert purge_completed(driver, START) == ids
    driver.commit()
    assert rows(driver) == {**others, "job_logs": 0}
    assert queue_of(driver).completed == 0
    assert queue_of(driver, "other").completed == 5
    assert driver.ask(cmd="GetState", id=ids[0])["state"] == "unknown"


def test_all_rows_of_a_dead_letter_go(driver: Driver) -> None:
    ids = [die(driver) for _ in range(3)]
    keep = die(driver, "other")
    assert purge_dead(driver, START) == ids
    driver.commit()
    assert queue_of(driver).failed == 0
    assert [name for name, count in rows(driver).items() if count] == ["jobs", "dead_letters", "attempts"]
    assert driver.ask(cmd="GetState", id=keep)["state"] == "failed"


def test_the_log_names_what_was_purged(driver: Driver) -> None:
    """By numbers that the ids end with; by ids where these tell no number."""
    plain = complete(driver)
    driver.push(jobId="my-own")
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="ACK", id="my-own")
    assert purge_completed(driver, START) == [plain, "my-own"]
    complete(driver)
    purge_completed(driver, START)
    driver.commit()
    events = read(driver.shard.store.database.connection, 0, 100)
    first, second = (event.fields for event in events if event.kind == "purged")
    assert first == {"finished": "completed", "seqs": [int(plain[-12:], 16)], "ids": ["my-own"]}
    assert "ids" not in second


def test_only_those_old_enough_are_found_oldest_first(driver: Driver) -> None:
    old = [complete(driver), complete(driver)]
    dead = [die(driver)]
    driver.now += 1000
    complete(driver)
    die(driver)
    assert purge_completed(driver, START + 999) == old
    assert purge_dead(driver, START + 999) == dead
    assert (queue_of(driver).completed, queue_of(driver).failed) == (1, 1)


def test_looking_goes_on_behind_the_last_job_looked_at(driver: Driver) -> None:
    ids = [complete(driver) for _ in range(5)]
    archive, queue = driver.shard.engine.state.archive, queue_of(driver)
    seen: list[str] = []
    after: int | None = -1
    while after is not None:
        found, after = archive.old_completed(queue.id, START, 2, after)
        seen += [job_id for _, job_id in found]
    assert seen == ids
    young, after = archive.old_completed(queue.id, START - 1, 3, -1)
    assert (young, after) == ([], 3)


def test_large_payloads_are_found_few_at_a_time(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MAX_PURGE", 15)
    ids = [complete(driver) for _ in range(3)]
    dead = [die(driver) for _ in range(3)]
    assert purge_completed(driver, START) == ids[:2]
    assert purge_dead(driver, START) == dead[:2]


def test_what_was_purged_is_gone_for_the_same_batch(driver: Driver) -> None:
    complete(driver)
    assert purge_completed(driver, START) != []
    assert purge_completed(driver, START) == []


def test_a_purge_that_was_not_committed_did_not_happen(driver: Driver) -> None:
    job_id = complete(driver)
    purge_completed(driver, START)
    driver.close()
    again = Driver(driver.path)
    assert again.ask(cmd="GetState", id=job_id)["state"] == "completed"
    assert queue_of(again).completed == 1
    again.close()
