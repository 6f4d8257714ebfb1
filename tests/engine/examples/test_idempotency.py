"""Pushes with an idempotency key: repeated at will, carried out once, over crashes too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver

from shardproc.engine.handlers import idempotency

KEY = "add-1"


def push(driver: Driver, key: str | None = KEY, queue: str = "q", **fields: Any) -> dict[str, Any]:
    return driver.ask(cmd="PUSH", queue=queue, data="x", idempotencyKey=key, **fields)


def bulk(driver: Driver, *jobs: dict[str, Any], key: str = KEY, age: int = 0) -> dict[str, Any]:
    return driver.ask(cmd="PUSHB", queue="q", jobs=list(jobs), idempotencyKey=key, idempotencyAge=age)


def count(driver: Driver, queue: str = "q") -> int:
    found: int = driver.ask(cmd="Count", queue=queue)["count"]
    return found


@pytest.mark.parametrize("options", [{}, {"tags": ["a"]}, {"jobId": "own"}], ids=["plain", "full", "linked"])
def test_the_same_push_again_adds_nothing(driver: Driver, options: dict[str, Any]) -> None:
    first = push(driver, **options)
    assert push(driver, idempotencyAge=10, **options) == first
    assert push(driver, **options) == {**first, "existing": True}
    driver.restart()
    assert push(driver, idempotencyAge=10, **options) == first
    assert push(driver, **options) == {**first, "existing": True}
    assert count(driver) == 1


def test_a_key_is_for_the_same_push_where_both_say_what_they_are(driver: Driver) -> None:
    first = push(driver, idempotencyHash="one")
    driver.restart()
    again = {**first, "existing": True}
    assert push(driver, idempotencyHash="one") == push(driver) == push(driver, tags=["a"]) == again
    problem = "idempotencyKey 'add-1' was used a moment ago to push something else"
    assert problem in push(driver, idempotencyHash="two")["error"]
    assert problem in push(driver, idempotencyHash="two", idempotencyAge=10)["error"]
    assert push(driver, key="add-2")["ok"]
    assert push(driver, key="add-2", idempotencyHash="any")["existing"] is True
    assert count(driver) == 2


def test_it_adds_nothing_when_the_job_is_long_gone(driver: Driver) -> None:
    first = push(driver, removeOnComplete=True)
    job = driver.ask(cmd="PULL", queue="q")["job"]
    assert driver.ask(cmd="ACK", id=job["id"])["ok"]
    driver.restart()
    assert push(driver, removeOnComplete=True) == {**first, "existing": True}
    assert count(driver) == 0


def test_keys_are_of_a_queue_and_pushes_without_one_are_never_the_same(driver: Driver) -> None:
    ids = {push(driver)["id"], push(driver, queue="other")["id"], push(driver, key="add-2")["id"]}
    ids |= {push(driver, key=None)["id"], push(driver, key=None)["id"]}
    assert len(ids) == 5
    assert (count(driver), count(driver, "other")) == (4, 1)


@pytest.mark.parametrize(
    "jobs",
    [
        [{"data": n} for n in range(5)],
        [{"data": n, "tags": ["a"]} for n in range(3)],
        [{"jobId": "a"}, {"data": 1}, {"data": 2}, {"jobId": "0" * 36}, {"jobId": "0" * 35 + "1"}, {}],
        [{"uniqueKey": "k"}, {"uniqueKey": "k"}, {"data": 1}],
        [],
    ],
    ids=["plain", "full", "linked", "unique", "empty"],
)
def test_a_batch_is_answered_as_the_first_time(driver: Driver, jobs: list[dict[str, Any]]) -> None:
    first = bulk(driver, *jobs)
    assert len(first["ids"]) == len(jobs)
    before = count(driver)
    assert bulk(driver, *jobs, age=10) == first
    driver.restart()
    assert bulk(driver, *jobs, age=10) == first
    assert bulk(driver, *jobs).get("existing", []) == list(range(len(jobs)))
    assert count(driver) == before


@pytest.mark.parametrize("options", [{}, {"tags": ["a"]}], ids=["plain", "full"])
def test_a_key_that_comes_with_something_else_is_answered_all_the_same(
    driver: Driver, options: dict[str, Any]
) -> None:
    assert bulk(driver) == {"ok": True, "ids": []}
    first = push(driver, **options)["id"]
    answer = {"ok": True, "ids": [first], "existing": [0]}
    assert bulk(driver) == bulk(driver, options, options) == answer
    several = bulk(driver, options, options, key="several")["ids"]
    assert push(driver, key="several", **options)["id"] == several[0]
    assert count(driver) == 3


def test_the_answer_says_what_is_not_new(driver: Driver) -> None:
    assert "existing" not in push(driver, key=None, uniqueKey="k")
    assert push(driver, uniqueKey="k")["existing"] is True
    assert push(driver, uniqueKey="k")["existing"] is True
    assert push(driver, key=None, jobId="own").get("existing") is None
    assert push(driver, key=None, jobId="own")["existing"] is True
    answer = driver.ask(cmd="PUSHB", queue="q", jobs=[{"data": 1}, {"uniqueKey": "k"}, {"jobId": "own"}])
    assert answer["existing"] == [1, 2]
    assert "existing" not in driver.ask(cmd="PUSHB", queue="q", jobs=[{"data": 1}])


def test_what_was_refused_may_be_pushed_again(driver: Driver) -> None:
    assert push(driver, dependsOn=["nobody"])["error"] == "Dependency job not found: nobody"
    assert push(driver)["ok"]
    assert count(driver) == 1


def test_what_was_not_committed_is_carried_out_anew(driver: Driver) -> None:
    request = {"cmd": "PUSH", "queue": "q", "data": "x", "idempotencyKey": KEY, "reqId": 1}
    driver.execute(1, msgpack.packb(request))
    driver.restart()
    push(driver, idempotencyAge=10)
    assert count(driver) == 1


def test_keys_are_forgotten_after_five_minutes(driver: Driver) -> None:
    first = push(driver)["id"]
    driver.tick(driver.now + idempotency.KEPT_MS - 1)
    assert push(driver)["id"] == first
    driver.tick(driver.now + 1)
    assert push(driver)["id"] != first
    driver.restart()
    assert count(driver) == 2


def test_a_repeated_push_that_may_be_forgotten_is_refused(driver: Driver) -> None:
    push(driver)
    driver.tick(driver.now + idempotency.KEPT_MS)
    answer = push(driver, idempotencyAge=idempotency.KEPT_MS)
    assert answer["error"].startswith("Outcome unknown: a push that was first sent 300000 ms ago may be")
    assert push(driver, idempotencyAge=idempotency.KEPT_MS - 1)["ok"]


def test_when_there_are_too_many_the_oldest_are_forgotten_and_that_is_remembered(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "MAX_KEPT", 100)
    start = driver.now
    ids = []
    for number in range(101):
        ids.append(push(driver, key=f"k{number}")["id"])
        driver.tick(driver.now + 10)
    assert len(driver.shard.engine.state.pushed.known) == 90
    age = driver.now - start - 10 * 10  # k10 was the last to be forgotten
    assert push(driver, key="k11")["id"] == ids[11]
    assert "Outcome unknown" in push(driver, key="k10", idempotencyAge=age)["error"]
    assert push(driver, key="fresh", idempotencyAge=age - 1)["id"] not in ids  # it cannot have been there
    driver.restart()
    assert len(driver.shard.engine.state.pushed.known) == 101
    assert push(driver, key="k11")["id"] == ids[11]
    assert "Outcome unknown" in push(driver, key="k0", idempotencyAge=driver.now - start)["error"]


def test_what_the_event_log_has_lost_is_not_known_after_a_restart(driver: Driver) -> None:
    first = push(driver)["id"]
    driver.now += 10
    push(driver, key="later")
    driver.tamper("delete from events where first_seq = 1")
    assert push(driver)["id"] == first
    driver.restart()
    assert "Outcome unknown" in push(driver, idempotencyAge=5)["error"]
    assert push(driver, key="fresh", idempotencyAge=0)["ok"]


def test_a_start_does_not_read_the_whole_log(driver: Driver) -> None:
    for _ in range(50):
        push(driver, key=None)
        driver.now += idempotency.KEPT_MS // 5
    read: list[int] = []

    def batches() -> Iterator[tuple[int, Any]]:
        for at, pushed in driver.shard.store._events.pushed():
            read.append(at)
            yield at, pushed

    driver.shard.engine.recover_pushed(batches(), driver.now)
    assert len(read) == 5


def test_keys_that_cannot_be_are_refused(driver: Driver) -> None:
    assert push(driver, key="")["error"] == "idempotencyKey must be a non-empty string"
    assert push(driver, key="k" * 257)["error"] == "idempotencyKey must be at most 256 characters"
    assert push(driver, idempotencyAge=-1)["error"] == "idempotencyAge must be at least 0"
    assert count(driver) == 0
