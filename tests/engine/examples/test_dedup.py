"""Unique keys, over time and over restarts."""

from __future__ import annotations

from typing import Any

import pytest
from engine.shard_driver import Driver


def push(driver: Driver, data: Any = "x", key: str | None = "k", **fields: Any) -> str:
    reply = driver.ask(cmd="PUSH", queue="q", data=data, uniqueKey=key, **fields)
    assert reply["ok"], reply
    return str(reply["id"])


def holder(driver: Driver, key: str = "k") -> str | None:
    reply = driver.ask(cmd="GetDeduplicationJobId", queue="q", deduplicationId=key)
    found: str | None = reply["data"]["jobId"]
    return found


def pull(driver: Driver) -> dict[str, Any] | None:
    found: dict[str, Any] | None = driver.ask(cmd="PULL", queue="q")["job"]
    return found


def data_left(driver: Driver) -> list[Any]:
    return [job["data"] for job in driver.ask(cmd="PULLB", queue="q", count=100)["jobs"]]


def test_a_key_is_free_at_the_very_millisecond_at_which_its_time_is_over(driver: Driver) -> None:
    first = push(driver, dedup={"ttl": 500})
    driver.tick(driver.now + 499)
    assert push(driver) == holder(driver) == first
    driver.tick(driver.now + 1)
    assert holder(driver) is None
    second = push(driver)
    assert second != first
    assert holder(driver) == second


def test_the_time_of_a_key_goes_on_over_a_restart(driver: Driver) -> None:
    first = push(driver, dedup={"ttl": 500})
    driver.now += 400
    driver.restart()
    assert push(driver) == first
    driver.tick(driver.now + 100)
    assert push(driver) != first
    driver.restart()
    assert holder(driver) not in (None, first)


def test_a_renewed_key_lasts_from_then_also_over_a_restart(driver: Driver) -> None:
    first = push(driver, dedup={"ttl": 500})
    driver.tick(driver.now + 400)
    assert push(driver, dedup={"ttl": 1000, "extend": True}) == first
    driver.restart()
    driver.tick(driver.now + 999)
    assert push(driver) == first
    driver.tick(driver.now + 1)
    assert push(driver) != first


def test_extend_gives_a_time_to_a_key_that_had_none(driver: Driver) -> None:
    first = push(driver)
    assert push(driver, dedup={"ttl": 100, "extend": True}) == first
    driver.tick(driver.now + 100)
    assert holder(driver) is None


def test_extend_without_ttl_is_an_ordinary_duplicate(driver: Driver) -> None:
    first = push(driver, dedup={"ttl": 100})
    assert push(driver, dedup={"extend": True}) == first
    driver.tick(driver.now + 100)
    assert holder(driver) is None


def test_extend_of_an_active_holder_is_refused(driver: Driver) -> None:
    push(driver)
    assert pull(driver) is not None
    dedup = {"ttl": 100, "extend": True}
    reply = driver.ask(cmd="PUSH", queue="q", uniqueKey="k", dedup=dedup)
    assert reply == {"ok": False, "error": "Duplicate unique_key (extended TTL)"}
    jobs = [{"data": 1}, {"data": 2, "uniqueKey": "k", "dedup": dedup}]
    assert driver.ask(cmd="PUSHB", queue="q", jobs=jobs) == reply
    assert data_left(driver) == []  # nothing of the batch was added


@pytest.mark.parametrize("delay", [0, 5000])
def test_replace_removes_a_pending_holder_for_good(driver: Driver, delay: int) -> None:
    first = push(driver, "old", delay=delay)
    second = push(driver, "new", dedup={"replace": True})
    driver.restart()
    assert driver.ask(cmd="GetState", id=first)["state"] == "unknown"
    assert holder(driver) == second
    driver.tick(driver.now + delay)
    assert data_left(driver) == ["new"]


def test_an_active_holder_goes_on_without_the_key(driver: Driver) -> None:
    first = push(driver, "old")
    assert pull(driver) is not None
    second = push(driver, "new", dedup={"replace": True})
    driver.restart()
    assert holder(driver) == second
    assert driver.ask(cmd="ACK", id=first)["ok"] is False  # released by the restart, as without an owner
    job = pull(driver)
    assert job is not None
    assert job["id"] == first
    assert driver.ask(cmd="ACK", id=first)["ok"]
    assert holder(driver) == second  # not released by the end of the former holder


def test_a_holder_that_others_depend_on_is_not_replaced(driver: Driver) -> None:
    first = push(driver)
    assert driver.ask(cmd="PUSH", queue="q", data="child", dependsOn=[first])["ok"]
    reply = driver.ask(cmd="PUSH", queue="q", uniqueKey="k", dedup={"replace": True})
    assert reply["error"] == f"Cannot replace deduplicated job {first} because live jobs depend on it"
    assert holder(driver) == first
    assert pull(driver) is not None
    assert push(driver, dedup={"replace": True}) != first  # an active one goes on
    assert driver.ask(cmd="ACK", id=first)["ok"]
    assert data_left(driver) == ["child", "x"]


def test_replace_wins_over_extend(driver: Driver) -> None:
    first = push(driver)
    assert push(driver, dedup={"ttl": 100, "extend": True, "replace": True}) != first


def test_within_a_batch_the_last_replacement_stays(driver: Driver) -> None:
    replace = {"uniqueKey": "k", "dedup": {"replace": True}}
    jobs = [{"data": 1, "uniqueKey": "k"}, {"data": 2, **replace}, {"data": 3, "uniqueKey": "k"}]
    ids = driver.ask(cmd="PUSHB", queue="q", jobs=jobs)["ids"]
    assert ids[0] != ids[1] == ids[2] == holder(driver)
    assert data_left(driver) == [2]


def test_a_key_with_no_time_at_all_is_free_at_once(driver: Driver) -> None:
    jobs = [{"data": n, "uniqueKey": "k", "dedup": {"ttl": 0}} for n in range(2)]
    first, second = driver.ask(cmd="PUSHB", queue="q", jobs=jobs)["ids"]
    assert first != second
    third = push(driver, 2)
    assert driver.ask(cmd="ACK", id=(pull(driver) or {})["id"])["ok"]
    assert holder(driver) == third  # the end of a job that lost the key does not free it
    assert data_left(driver) == [1, 2]


def test_the_empty_key_is_no_key(driver: Driver) -> None:
    assert push(driver, key="") != push(driver, key="")


def test_a_removed_key_stays_removed_over_a_restart(driver: Driver) -> None:
    first = push(driver)
    assert driver.ask(cmd="RemoveDeduplicationKey", queue="q", deduplicationId="k")["data"] == {"count": 1}
    driver.restart()
    assert holder(driver) is None
    assert push(driver) != first


def test_the_key_of_a_job_can_be_removed_once(driver: Driver) -> None:
    first = push(driver, dedup={"ttl": 100})
    second = push(driver, key="other", dedup={"ttl": 100})
    remove = {"cmd": "RemoveJobDeduplicationKey"}
    assert driver.ask(**remove, id=first)["data"] == {"removed": True}
    assert driver.ask(**remove, id=first)["data"] == {"removed": False}
    driver.tick(driver.now + 100)
    assert driver.ask(**remove, id=second)["data"] == {"removed": False}  # its time was over


def test_what_is_asked_of_a_key_is_shown_on_the_job(driver: Driver) -> None:
    job_id = push(driver, dedup={"ttl": 500, "extend": True}, debounceId="d", debounceTtl=7)
    driver.restart()
    job = driver.ask(cmd="GetJob", id=job_id)["job"]
    assert (job["uniqueKey"], job["deduplicationTtl"], job["deduplicationExtend"]) == ("k", 500, True)
    assert (job["debounceId"], job["debounceTtl"], job["deduplicationReplace"]) == ("d", 7, False)
    assert "keyUntil" not in job


def test_keys_of_unknown_queues_are_free(driver: Driver) -> None:
    assert holder(driver) is None
    assert driver.ask(cmd="RemoveDeduplicationKey", queue="q", deduplicationId="k")["data"] == {"count": 0}
    assert "deduplicationId is required" in driver.ask(cmd="RemoveDeduplicationKey", queue="q")["error"]
