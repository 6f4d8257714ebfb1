"""Bounds of a queue: how much may wait, what a full one does, and how long completed jobs are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine.shard_driver import Driver
from hypothesis import given
from hypothesis import strategies as st

from shardproc.engine.ready import space

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def bound(driver: Driver, **config: Any) -> None:
    reply = driver.ask(cmd="SetBounds", queue="q", config=config)
    assert reply["ok"], reply


def counts(driver: Driver) -> dict[str, Any]:
    found: dict[str, Any] = driver.ask(cmd="GetBounds", queue="q")["space"]
    return found


def waiting(driver: Driver) -> list[Any]:
    return [job["data"] for job in driver.ask(cmd="GetJobs", queue="q", state="waiting")["jobs"]]


def is_full(reply: dict[str, Any]) -> bool:
    return not reply["ok"] and "is full" in reply["error"]


def test_a_full_queue_refuses_and_has_space_again_when_a_job_starts(driver: Driver) -> None:
    bound(driver, maxWaiting=2)
    driver.push(data=1)
    driver.push(data=2, delay=HOUR_MS)
    refused = driver.ask(cmd="PUSH", queue="q", data=3)
    assert refused["error"] == ("queue q is full: 2 of at most 2 jobs wait; add less, or try again later")
    assert is_full(driver.ask(cmd="PUSH", queue="q", data=3, priority=1, maxAttempts=2))
    taken = driver.ask(cmd="PULL", queue="q")["job"]["id"]
    driver.push(data=3)
    assert is_full(driver.ask(cmd="PUSH", queue="q", data=4))
    driver.ask(cmd="ACK", id=taken)
    assert is_full(driver.ask(cmd="PUSH", queue="q", data=4))
    assert counts(driver) == {"waiting": 2, "waitingBytes": None, "refused": 4, "dropped": 0}
    bound(driver, maxWaiting=None)
    driver.push(data=4)
    assert counts(driver)["refused"] == 0


@pytest.mark.parametrize("fields", [{}, {"maxAttempts": 2}])
def test_a_batch_is_added_or_refused_as_a_whole(driver: Driver, fields: dict[str, Any]) -> None:
    bound(driver, maxWaiting=3)
    driver.push(data=0)
    jobs = [{"data": number, **fields} for number in range(3)]
    assert is_full(driver.ask(cmd="PUSHB", queue="q", jobs=jobs))
    assert waiting(driver) == [0]
    assert driver.ask(cmd="PUSHB", queue="q", jobs=jobs[:2])["ok"]


@pytest.mark.parametrize("fields", [{}, {"maxAttempts": 2}])
def test_the_oldest_make_room(driver: Driver, fields: dict[str, Any]) -> None:
    bound(driver, maxWaiting=3, whenFull="drop-oldest")
    ids = [driver.push(data=number, **fields) for number in range(5)]
    assert waiting(driver) == [2, 3, 4]
    ended = driver.ask(cmd="WaitJobs", queue="q", ids=ids[:1], timeout=0)["ended"][0]
    assert (ended["state"], ended["reason"]) == ("failed", "queue_full")
    assert driver.ask(cmd="PULL", queue="q")["job"]["data"] == 2
    jobs = [{"data": number, **fields} for number in range(5, 8)]
    assert driver.ask(cmd="PUSHB", queue="q", jobs=jobs)["ok"]
    assert waiting(driver) == [5, 6, 7]
    assert is_full(driver.ask(cmd="PUSHB", queue="q", jobs=[*jobs, {"data": 8, **fields}]))
    assert waiting(driver) == [5, 6, 7]
    assert counts(driver) == {"waiting": 3, "waitingBytes": None, "refused": 4, "dropped": 4}


def test_jobs_that_run_or_wait_for_others_are_not_dropped(driver: Driver) -> None:
    bound(driver, maxWaiting=2, whenFull="drop-oldest")
    running = driver.push(data="running")
    driver.ask(cmd="PULL", queue="q")
    driver.push(data="blocked", dependsOn=[running])
    driver.push(data=1)
    driver.push(data=2)
    assert waiting(driver) == ["blocked", 2]
    assert is_full(driver.ask(cmd="PUSHB", queue="q", jobs=[{"data": 3}, {"data": 4}]))


def test_bytes(driver: Driver) -> None:
    driver.push(data="x" * 50)  # 52 bytes of MessagePack
    bound(driver, maxWaitingBytes="150")
    assert counts(driver)["waitingBytes"] == 52
    driver.push(data="y" * 90)  # 92
    assert is_full(driver.ask(cmd="PUSH", queue="q", data="z" * 6))
    first = driver.ask(cmd="PULL", queue="q")["job"]["id"]
    assert counts(driver) == {"waiting": 1, "waitingBytes": 92, "refused": 1, "dropped": 0}
    driver.ask(cmd="Update", id=first, data="x" * 10)
    driver.ask(cmd="FAIL", id=first)  # it is to be tried again
    assert counts(driver)["waitingBytes"] == 92 + 11
    bound(driver, whenFull="drop-oldest")
    driver.push(data="z" * 90)
    assert counts(driver) == {"waiting": 1, "waitingBytes": 92, "refused": 1, "dropped": 2}
    assert is_full(driver.ask(cmd="PUSH", queue="q", data="z" * 200))


def test_a_job_that_replaces_another_one_needs_no_space(driver: Driver) -> None:
    bound(driver, maxWaiting=2)
    for number in range(2):
        driver.push(data=number, uniqueKey=str(number))
    replace = {"onConflict": "replace"}
    assert driver.ask(cmd="PUSH", queue="q", data=5, uniqueKey="0", dedup=replace)["ok"]
    assert waiting(driver) == [1, 5]
    assert driver.ask(cmd="PUSH", queue="q", data=6, uniqueKey="0")["existing"]
    assert is_full(driver.ask(cmd="PUSH", queue="q", data=6, uniqueKey="2", dedup=replace))


def test_what_the_server_adds_itself_always_finds_space(driver: Driver) -> None:
    bound(driver, maxWaiting=1)
    driver.push(data="there")
    driver.ask(cmd="Cron", queue="q", name="c", data="c", repeatEvery=1000)
    driver.tick(driver.now + 1_000)
    assert waiting(driver) == ["there", "c"]
    dead = driver.ask(cmd="PULL", queue="q")["job"]["id"]
    driver.ask(cmd="Discard", id=dead)
    assert driver.ask(cmd="RetryDlq", queue="q")["count"] == 1


def test_a_flow_is_refused_as_a_whole(driver: Driver) -> None:
    bound(driver, maxWaiting=1)
    jobs = [
        {"id": "child", "queue": "q", "input": {"data": {}}},
        {"id": "parent", "queue": "q", "input": {"data": {}, "dependsOn": ["child"]}},
    ]
    refused = driver.ask(cmd="PUSHF", jobs=jobs)
    assert is_full(refused)
    assert counts(driver)["waiting"] == 0
    bound(driver, maxWaiting=2)
    assert driver.ask(cmd="PUSHF", jobs=jobs)["ok"]


def test_bounds_of_a_queue_that_is_not_there_yet_hold_from_its_first_job_on(driver: Driver) -> None:
    bound(driver, maxWaiting=1, maxWaitingBytes=1000)
    assert driver.ask(cmd="ListQueues")["queues"] == []
    driver.push()
    assert is_full(driver.ask(cmd="PUSH", queue="q"))
    driver.ask(cmd="Obliterate", queue="q")
    assert driver.ask(cmd="GetBounds", queue="q")["config"]["maxWaiting"] is None
    for _ in range(3):
        driver.push()


def test_they_survive_a_crash(tmp_path: Path) -> None:
    driver = Driver(str(tmp_path / "jobs.db"))
    bound(driver, maxWaiting=2, maxWaitingBytes=1_000, whenFull="drop-oldest", keepAge=5, keepCount=7)
    for number in range(3):
        driver.push(data="x" * number)
    driver.restart()
    reply = driver.ask(cmd="GetBounds", queue="q")
    assert reply["config"] == {
        "maxWaiting": 2, "maxWaitingBytes": 1_000, "whenFull": "drop-oldest", "keepAge": 5, "keepCount": 7
    }  # fmt: skip
    assert reply["space"] == {"waiting": 2, "waitingBytes": 2 + 3, "refused": 0, "dropped": 0}
    driver.push(data="xxx")
    assert waiting(driver) == ["xx", "xxx"]
    driver.close()


@pytest.mark.parametrize(
    "config",
    [
        {"maxWaiting": 0},
        {"maxWaitingBytes": -1},
        {"whenFull": "wait"},
        {"whenFull": "5"},
        {"keepAge": -1},
        {"most": 1},
    ],
)
def test_what_is_out_of_bounds_is_refused_and_changes_nothing(driver: Driver, config: dict[str, Any]) -> None:
    bound(driver, maxWaiting=5)
    before = driver.ask(cmd="GetBounds", queue="q")
    reply = driver.ask(cmd="SetBounds", queue="q", config={"maxWaiting": 6, **config})
    assert not reply["ok"]
    assert next(iter(config)) in reply["error"], reply
    assert driver.ask(cmd="GetBounds", queue="q") == before


def complete(driver: Driver, queue: str) -> str:
    job_id = driver.push(queue=queue)
    driver.ask(cmd="PULL", queue=queue)
    driver.ask(cmd="ACK", id=job_id)
    return job_id


def test_a_queue_has_a_retention_of_its_own(driver: Driver) -> None:
    driver.ask(cmd="SetBounds", queue="short", config={"keepAge": HOUR_MS})
    driver.ask(cmd="SetBounds", queue="few", config={"keepCount": 2})
    driver.ask(cmd="SetBounds", queue="ever", config={"keepAge": 0})
    ids = {queue: [complete(driver, queue) for _ in range(4)] for queue in ("short", "few", "ever", "usual")}

    def kept() -> list[int]:
        return [
            sum(driver.ask(cmd="GetState", id=job_id).get("state") == "completed" for job_id in ids[queue])
            for queue in ("short", "few", "ever", "usual")
        ]

    maintenance(driver, 60_000)
    assert kept() == [4, 2, 4, 4]
    assert driver.ask(cmd="GetState", id=ids["few"][3])["state"] == "completed"
    maintenance(driver, HOUR_MS)
    assert kept() == [0, 2, 4, 4]
    maintenance(driver, 8 * DAY_MS)
    assert kept() == [0, 0, 4, 0]


def maintenance(driver: Driver, ms: int) -> None:
    """Time passes, and then enough rounds of upkeep."""
    driver.tick(driver.now + ms)
    for _ in range(20):
        driver.tick(driver.now + 1_000)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 60), st.integers(0, 2)),
        st.tuples(st.sampled_from(["pull", "ack", "fail", "remove", "update", "retry"]), st.integers(0, 60)),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from(["refuse", "drop-oldest"]), st.integers(1, 6), st.integers(20, 150))
def test_what_waits_is_counted_rightly_and_never_more_than_allowed(
    steps: list[Any], when_full: str, most: int, most_bytes: int
) -> None:
    driver = Driver()
    bound(driver, maxWaiting=most, maxWaitingBytes=most_bytes, whenFull=when_full)
    state = driver.shard.engine.state
    active: list[str] = []
    for what, number, *more in steps:
        if what == "push":
            options: dict[str, Any] = [{}, {"maxAttempts": 2}, {"delay": 5}][more[0]]
            before = _counted(driver)
            reply = driver.ask(cmd="PUSH", queue="q", data="x" * number, **options)
            jobs, size = _counted(driver)
            if reply["ok"]:
                assert max(before[0], most) >= jobs
                assert max(before[1], most_bytes) >= size
            else:
                assert (jobs, size) == before
        elif what == "pull" and (job := driver.ask(cmd="PULL", queue="q").get("job")):
            active.append(job["id"])
        elif what in ("ack", "fail") and active:
            driver.ask(cmd=what.upper(), id=active.pop(number % len(active)))
        elif what in ("remove", "update") and state.jobs:
            job_id = list(state.jobs)[number % len(state.jobs)]
            driver.ask(cmd="RemoveJob" if what == "remove" else "Update", id=job_id, data="y" * number)
        elif what == "retry":
            driver.ask(cmd="RetryDlq", queue="q")
        driver.tick(driver.now + 3)
        queue = state.queues.get("q")
        if queue is not None:
            assert (space.waiting(queue), space.waiting_bytes(queue)) == _counted(driver)
    driver.close()


def _counted(driver: Driver) -> tuple[int, int]:
    """The jobs that have not started, and their bytes, counted one by one."""
    jobs = [job for job in driver.shard.engine.state.jobs.values() if job.lock is None]
    return len(jobs), sum(len(job.data) for job in jobs)
