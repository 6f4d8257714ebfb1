"""Unique keys as a push wants them: for a period, in some states, and what a taken key means."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver

from shardproc.engine.lifecycle import unique_keys

MINUTE = 60_000
HOUR = 60 * MINUTE
LONG = {"owner": "w", "lockTtl": 24 * HOUR}
KEEP = {"onConflict": "keep"}


def push(driver: Driver, **dedup: Any) -> dict[str, Any]:
    """A push with the key; what it is answered, without ``ok``."""
    fields = dedup.pop("fields", {})
    reply = driver.ask(
        cmd="PUSH", queue="q", data=dedup.get("onConflict"), uniqueKey="k", dedup=dedup, **fields
    )
    assert reply.pop("ok"), reply
    return reply


def added(driver: Driver, **dedup: Any) -> str:
    reply = push(driver, **dedup)
    assert reply.keys() == {"id"}, reply
    return str(reply["id"])


def kept(job_id: str) -> dict[str, Any]:
    return {"id": job_id, "existing": True, "conflict": {"action": "kept", "holder": job_id}}


def holder(driver: Driver) -> str | None:
    reply = driver.ask(cmd="GetDeduplicationJobId", queue="q", deduplicationId="k")
    found: str | None = reply["data"]["jobId"]
    return found


def start(driver: Driver) -> tuple[str, str]:
    pulled = driver.ask(cmd="PULL", queue="q", signals=True, **LONG)
    return str(pulled["job"]["id"]), str(pulled["token"])


def complete(driver: Driver, **fields: Any) -> str:
    job_id, token = start(driver)
    assert driver.ask(cmd="ACK", id=job_id, token=token, **fields)["ok"]
    return job_id


def fail(driver: Driver, **fields: Any) -> str:
    job_id, token = start(driver)
    assert driver.ask(cmd="FAIL", id=job_id, token=token, **fields)["ok"]
    return job_id


def records(driver: Driver) -> list[str]:
    return [key for (key,) in driver.rows("select key from records where kind = 'key'")]


# -- for a period


@pytest.mark.parametrize("ends", ["completes", "fails", "is not run", "is removed on completion", "retries"])
def test_at_most_one_in_a_period_however_it_ends(driver: Driver, ends: str) -> None:
    fields = {"removeOnComplete": ends.startswith("is removed"), "maxAttempts": 1 if ends == "fails" else 3}
    first = added(driver, ttl=5 * MINUTE, **KEEP, fields=fields)
    if ends in ("completes", "is removed on completion"):
        complete(driver)
    elif ends != "is not run":
        fail(driver)
    driver.tick(driver.now + 5 * MINUTE - 1)
    for _ in range(2):
        assert push(driver, ttl=5 * MINUTE, **KEEP) == kept(first)
        assert holder(driver) == first
        driver.restart()
    driver.tick(driver.now + 1)
    assert holder(driver) is None
    second = added(driver, ttl=5 * MINUTE, **KEEP)
    assert second != first
    driver.restart()
    assert holder(driver) == second


@pytest.mark.parametrize("how", ["Cancel", "RemoveJob", "Drain", "Obliterate", "its ttl", "stopped"])
def test_what_never_ran_or_was_stopped_holds_no_key(driver: Driver, how: str) -> None:
    first = added(driver, ttl=HOUR, **KEEP, fields={"ttl": 10} if how == "its ttl" else {})
    if how == "its ttl":
        driver.tick(driver.now + 20)
        assert driver.ask(cmd="PULL", queue="q")["job"] is None
    elif how in ("Drain", "Obliterate"):
        driver.ask(cmd=how, queue="q")
    elif how == "stopped":
        start(driver)
        driver.ask(cmd="Cancel", id=first, running=True, grace=0)
    else:
        driver.ask(cmd=how, id=first)
    assert holder(driver) is None
    assert added(driver, ttl=HOUR, **KEEP) != first


def test_what_ended_before_obliterate_holds_no_key_after_it(driver: Driver) -> None:
    added(driver, ttl=HOUR, **KEEP)
    complete(driver)
    assert records(driver) == ["q/k"]
    driver.ask(cmd="Obliterate", queue="q")
    assert records(driver) == []
    assert holder(driver) is None


def test_a_key_can_be_freed_by_hand(driver: Driver) -> None:
    first = added(driver, ttl=HOUR, **KEEP)
    complete(driver)
    assert driver.ask(cmd="RemoveDeduplicationKey", queue="q", deduplicationId="k")["data"] == {"count": 1}
    assert driver.ask(cmd="RemoveDeduplicationKey", queue="q", deduplicationId="k")["data"] == {"count": 0}
    second = added(driver, ttl=HOUR, **KEEP)
    complete(driver)
    assert driver.ask(cmd="RemoveJobDeduplicationKey", id=first)["data"] == {"removed": False}
    assert driver.ask(cmd="RemoveJobDeduplicationKey", id=second)["data"] == {"removed": True}
    assert holder(driver) is None


def test_keys_that_are_over_are_forgotten(driver: Driver) -> None:
    for number in range(3):
        driver.ask(cmd="PUSH", queue="q", uniqueKey=f"k{number}", dedup={"ttl": 100 + number, **KEEP})
        complete(driver)
    assert len(records(driver)) == 3
    assert driver.shard.engine.state.ended_keys.count == 3
    driver.tick(driver.now + 20_000)
    driver.commit()
    assert records(driver) == []
    assert driver.shard.engine.state.ended_keys.count == 0
    assert not driver.shard.engine.state.ended_keys.ends.entries


def test_more_keys_than_can_be_kept_are_refused(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unique_keys, "MAX_ENDED", 2)
    for number in range(2):
        driver.ask(cmd="PUSH", queue="q", uniqueKey=f"k{number}", dedup={"ttl": HOUR, **KEEP})
        complete(driver)
    refused = driver.ask(cmd="PUSH", queue="q", uniqueKey="k", dedup={"ttl": HOUR, **KEEP})
    assert "no more than 2 unique keys of ended jobs" in refused["error"]
    assert driver.ask(cmd="PUSH", queue="q", uniqueKey="other")["ok"]
    driver.tick(driver.now + HOUR)
    assert added(driver, ttl=HOUR, **KEEP)


# -- in states


def test_without_a_period_a_key_is_held_until_the_job_has_ended(driver: Driver) -> None:
    first = added(driver, **KEEP, fields={"backoff": 100})
    fail(driver)
    assert push(driver, **KEEP) == kept(first)  # in the reference a failed attempt frees the key
    driver.tick(driver.now + 1000)
    complete(driver)
    assert holder(driver) is None
    assert records(driver) == []


def test_a_running_job_does_not_hold_a_key_that_only_waiting_ones_do(driver: Driver) -> None:
    waits = {"states": ["waiting", "delayed"]}
    first = added(driver, **waits)
    assert push(driver, **waits) == kept(first)
    start(driver)
    assert holder(driver) is None
    second = added(driver, **waits)
    assert holder(driver) == second
    driver.restart()
    assert holder(driver) == second


def test_completed_jobs_hold_a_key_as_long_as_they_are_kept(driver: Driver) -> None:
    states = {"states": ["waiting", "active", "completed"]}
    first = added(driver, **states)
    complete(driver)
    driver.restart()
    assert push(driver, **states) == kept(first)
    driver.tick(driver.now + 1)
    assert driver.ask(cmd="Clean", queue="q", grace=0, state="completed")["count"] == 1
    assert records(driver) == []
    second = added(driver, **states)
    fail(driver, unrecoverable=True)
    assert holder(driver) is None
    third = added(driver, states=["failed"], fields={"jobId": "own"})
    assert holder(driver) is None
    fail(driver, unrecoverable=True)
    assert holder(driver) == third == "own"
    driver.ask(cmd="RemoveDlqJob", queue="q", jobId=third)
    assert (holder(driver), records(driver)) == (None, [])
    assert second != third


def test_a_job_that_is_revived_has_its_key_again(driver: Driver) -> None:
    first = added(driver, ttl=HOUR, **KEEP)
    fail(driver, unrecoverable=True)
    assert records(driver) == ["q/k"]
    assert driver.ask(cmd="RetryDlq", queue="q", jobId=first)["count"] == 1
    assert records(driver) == []
    assert push(driver, **KEEP) == kept(first)
    complete(driver)
    assert push(driver, **KEEP) == kept(first)


def test_a_dead_letter_is_not_revived_beside_another_holder(driver: Driver) -> None:
    first = added(driver, **KEEP)
    fail(driver, unrecoverable=True)
    second = added(driver, ttl=HOUR, **KEEP)
    complete(driver)
    assert driver.ask(cmd="RetryDlq", queue="q", jobId=first)["count"] == 0
    refused = driver.ask(cmd="MoveToWait", id=first)
    assert refused["error"] == f"Cannot move job {first} to waiting: job {second} has its unique key"


def test_a_repeating_job_hands_its_key_on(driver: Driver) -> None:
    first = added(driver, ttl=HOUR, **KEEP, fields={"repeat": {"every": 50}})
    complete(driver)
    second = holder(driver)
    assert second not in (None, first)
    assert records(driver) == []


# -- what a taken key means


def test_extend(driver: Driver) -> None:
    first = added(driver, ttl=500, **KEEP)
    start(driver)
    driver.tick(driver.now + 400)
    extended = {"id": first, "existing": True, "conflict": {"action": "extended", "holder": first}}
    assert push(driver, ttl=500, onConflict="extend") == extended
    driver.ask(cmd="ACK", id=first, token=token_of(driver, first))
    driver.tick(driver.now + 400)
    assert push(driver, ttl=1000, onConflict="extend") == extended
    driver.restart()
    driver.tick(driver.now + 999)
    assert holder(driver) == first
    driver.tick(driver.now + 1)
    assert holder(driver) is None


def token_of(driver: Driver, job_id: str) -> str:
    lock = driver.shard.engine.state.jobs[job_id].lock
    assert lock is not None
    return lock.token


def test_reject(driver: Driver) -> None:
    first = added(driver, ttl=HOUR, **KEEP)
    jobs = [{"data": 1}, {"data": 2, "uniqueKey": "k", "dedup": {"onConflict": "reject"}}]
    for command in ({"cmd": "PUSH", **jobs[1]}, {"cmd": "PUSHB", "jobs": jobs}):
        answers = driver.execute(1, msgpack.packb({**command, "queue": "q", "reqId": 1}))
        ((_, refused),) = answers
        where = "jobs[1]: " if command["cmd"] == "PUSHB" else ""
        assert refused["error"] == f"{where}job {first} holds the unique key 'k'"
    reply = driver.shard.engine.out.replies[-1][1]
    assert (reply.code, reply.field, reply.value) == ("DUPLICATE_KEY", "jobs[1].uniqueKey", first)  # type: ignore[union-attr]
    assert driver.ask(cmd="Count", queue="q")["count"] == 1
    complete(driver)
    assert not driver.ask(cmd="PUSH", queue="q", uniqueKey="k", dedup={"onConflict": "reject"})["ok"]


@pytest.mark.parametrize("policy", ["replace", "supersede"])
def test_a_waiting_job_is_replaced(driver: Driver, policy: str) -> None:
    first = added(driver, ttl=HOUR, **KEEP)
    action = "replaced" if policy == "replace" else "superseded"
    reply = push(driver, ttl=HOUR, onConflict=policy)
    assert reply["conflict"] == {"action": action, "holder": first}
    assert "existing" not in reply
    assert (driver.state(first), driver.state(reply["id"]), holder(driver)) == (
        "unknown",
        "waiting",
        reply["id"],
    )
    complete(driver)
    third = push(driver, ttl=HOUR, onConflict=policy)  # beside one that has ended
    assert third["conflict"] == {"action": action, "holder": reply["id"]}
    assert (driver.state(reply["id"]), holder(driver)) == ("completed", third["id"])
    driver.restart()
    assert holder(driver) == third["id"]


def test_replace_leaves_a_running_job_alone(driver: Driver) -> None:
    first = added(driver, **KEEP)
    start(driver)
    second = push(driver, onConflict="replace")
    assert second["conflict"] == {"action": "replaced", "holder": first}
    assert start(driver)[0] == second["id"]
    assert driver.ask(cmd="ACK", id=first, token=token_of(driver, first))["ok"]
    assert holder(driver) == second["id"]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("end", ["ACK", "FAIL", "nothing is said", "it is released"])
def test_supersede_stops_the_running_job_and_then_starts_the_new_one(
    driver: Driver, end: str, restart: bool
) -> None:
    first = added(driver, **KEEP)
    start(driver)
    reply = push(driver, onConflict="supersede", grace=5_000)
    second = str(reply["id"])
    assert reply["conflict"] == {"action": "superseded", "holder": first}
    ((conn, notice),) = driver.shard.notices
    assert (conn, msgpack.unpackb(notice[4:])["cancel"]["reason"]) == (1, f"superseded by job {second}")
    assert driver.ask(cmd="PULL", queue="q")["job"] is None
    (reason,) = driver.ask(cmd="WhyWaiting", id=second)["data"]["reasons"][:1]
    assert (reason["kind"], reason["ids"]) == ("superseding", [first])
    if restart:
        driver.restart()
    if end == "ACK":
        driver.ask(cmd="ACK", id=first, token=token_of(driver, first))
    elif end == "FAIL":
        driver.ask(cmd="FAIL", id=first, token=token_of(driver, first))
    elif end == "it is released":
        driver.disconnect(1)
        if restart:  # the connection was gone before
            driver.tick(driver.now + 5_000)
    else:
        driver.tick(driver.now + 4_999)
        assert driver.state(second) == "waiting"
        assert driver.ask(cmd="PULL", queue="q")["job"] is None
        driver.tick(driver.now + 1)
    driver.commit()
    assert driver.state(first) == "cancelled"
    assert holder(driver) == second
    if restart:
        driver.restart()
    assert complete(driver) == second


def test_supersede_at_once(driver: Driver) -> None:
    first = added(driver, **KEEP)
    start(driver)
    second = push(driver, onConflict="supersede", grace=0)["id"]
    assert driver.state(first) == "cancelled"
    assert complete(driver) == second


def test_the_last_of_several_that_supersede_runs(driver: Driver) -> None:
    first = added(driver, **KEEP)
    start(driver)
    second = push(driver, onConflict="supersede")["id"]
    third = push(driver, onConflict="supersede")
    assert third["conflict"] == {"action": "superseded", "holder": second}
    fourth = push(driver, onConflict="replace")["id"]  # it takes the place of one that waits for the first
    assert (driver.state(second), driver.state(third["id"])) == ("unknown", "unknown")
    assert driver.ask(cmd="PULL", queue="q")["job"] is None
    driver.ask(cmd="ACK", id=first, token=token_of(driver, first))
    assert complete(driver) == fourth


def test_a_job_that_supersedes_waits_for_its_time_and_for_others_too(driver: Driver) -> None:
    other = driver.push(queue="other")
    first = added(driver, **KEEP)
    start(driver)
    second = push(driver, onConflict="supersede", fields={"dependsOn": [other], "delay": 1000})["id"]
    driver.ask(cmd="ACK", id=first, token=token_of(driver, first))
    driver.tick(driver.now + 1000)
    assert driver.ask(cmd="PULL", queue="q")["job"] is None
    driver.ask(cmd="ACK", id=driver.ask(cmd="PULL", queue="other")["job"]["id"])
    assert complete(driver) == second

    third = added(driver, **KEEP)
    start(driver)
    other = driver.push(queue="other")
    fourth = push(driver, onConflict="supersede", fields={"dependsOn": [other]})["id"]
    driver.ask(cmd="ACK", id=driver.ask(cmd="PULL", queue="other")["job"]["id"])
    assert driver.ask(cmd="PULL", queue="q")["job"] is None
    driver.restart()
    assert driver.ask(cmd="PULL", queue="q")["job"] is None
    driver.ask(cmd="ACK", id=third, token=token_of(driver, third))
    assert complete(driver) == fourth


def test_one_that_supersedes_can_be_cancelled(driver: Driver) -> None:
    first = added(driver, **KEEP)
    start(driver)
    second = push(driver, onConflict="supersede")["id"]
    assert driver.ask(cmd="Cancel", id=second)["ok"]
    driver.ask(cmd="ACK", id=first, token=token_of(driver, first))
    assert driver.ask(cmd="PULL", queue="q")["job"] is None
    assert holder(driver) is None


def test_a_batch_says_it_for_each_of_its_jobs(driver: Driver) -> None:
    first = added(driver, ttl=HOUR, **KEEP)
    jobs = [
        {"uniqueKey": "new", "dedup": KEEP},
        {"uniqueKey": "k", "dedup": KEEP},
        {"uniqueKey": "k"},
        {"uniqueKey": "new", "dedup": {"onConflict": "replace"}},
    ]
    request = {"cmd": "PUSHB", "queue": "q", "jobs": jobs, "idempotencyKey": "once"}
    reply = driver.ask(**request)
    ids = reply["ids"]
    assert ids[1:3] == [first, first]
    expected = {
        "ids": ids,
        "existing": [1, 2],
        "conflicts": [
            {"action": "kept", "holder": first, "index": 1},
            {"action": "replaced", "holder": ids[0], "index": 3},
        ],
    }
    assert {name: reply[name] for name in expected} == expected
    driver.restart()
    again = driver.ask(**request, idempotencyAge=5)
    assert {name: again[name] for name in expected} == expected
    assert driver.ask(cmd="Count", queue="q")["count"] == 2


@pytest.mark.parametrize(
    ("dedup", "problem"),
    [
        (
            {"onConflict": "keep", "replace": True},
            "onConflict says that already; leave out extend and replace",
        ),
        ({"onConflict": "extend"}, "onConflict extend needs a ttl"),
        ({"onConflict": "ignore"}, "dedup.onConflict"),
        ({"states": ["lost"]}, "dedup.states"),
        ({"states": []}, "states is empty"),
        ({"onConflict": "supersede", "grace": -1}, "dedup.grace"),
    ],
)
def test_mistakes_are_refused_and_change_nothing(driver: Driver, dedup: dict[str, Any], problem: str) -> None:
    refused = driver.ask(cmd="PUSH", queue="q", uniqueKey="k", dedup=dedup)
    assert not refused["ok"]
    assert problem in refused["error"]
    assert "q" not in driver.shard.engine.state.queues or driver.ask(cmd="Count", queue="q")["count"] == 0
