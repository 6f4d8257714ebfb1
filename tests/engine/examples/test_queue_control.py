"""Pausing, emptying and deleting queues: also long ones, also while others work, also over a restart."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from engine.shard_driver import START, Driver

from shardproc.engine.handlers import queues

EVERY_TABLE = (
    "queues",
    "records",
    "jobs",
    "locks",
    "completed",
    "dead_letters",
    "attempts",
    "attempt_notes",
    "expiries",
    "job_logs",
)


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a queue of ten is a long one."""
    monkeypatch.setattr(queues, "SLICE", 3)
    monkeypatch.setattr(queues, "SCAN", 4)


def push(driver: Driver, *, queue: str = "q", count: int = 1, **fields: Any) -> list[str]:
    jobs = [{"data": number, **fields} for number in range(count)]
    ids = driver.ask(cmd="PUSHB", queue=queue, jobs=jobs)["ids"]
    assert isinstance(ids, list)
    return ids


def counts(driver: Driver, queue: str = "q", conn: int = 1) -> dict[str, int]:
    found = driver.ask(conn, cmd="GetJobCounts", queue=queue)["counts"]
    return {name: count for name, count in found.items() if count}


def names(driver: Driver) -> list[str]:
    return [queue["name"] for queue in driver.ask(cmd="ListQueues")["queues"]]


def begin(driver: Driver, conn: int = 1, **request: Any) -> None:
    """Send a command, and do no more than its first slice."""
    payload = msgpack.packb(request)
    driver.shard.execute(driver.shard.client(conn, 2), payload, driver.now)
    driver.commit()


def finish(driver: Driver) -> list[dict[str, Any]]:
    while driver.shard.engine.work():
        pass
    return [reply for _, reply in driver.commit()]


def one_of_each(driver: Driver, queue: str = "q") -> dict[str, str]:
    """A job in every state."""
    done, dead, active = push(driver, queue=queue, count=3, maxAttempts=1, priority=9)
    driver.ask(cmd="PULLB", queue=queue, count=3)
    (delayed,), (waiting,) = push(driver, queue=queue, delay=60_000), push(driver, queue=queue)
    driver.ask(cmd="ACK", id=done, result="r" * 2000)
    driver.ask(cmd="FAIL", id=dead, error="no")
    for job_id in (done, dead, active, delayed, waiting):
        driver.ask(cmd="AddLog", id=job_id, message="line")
    return {"completed": done, "failed": dead, "active": active, "delayed": delayed, "waiting": waiting}


# -- pause -----------------------------------------------------------------------------------------------


def test_a_pause_outlives_a_restart_and_so_does_its_end(driver: Driver) -> None:
    push(driver)
    driver.ask(cmd="Pause", queue="q")
    driver.ask(cmd="Pause", queue="new")
    again = driver.restarted(live=(1, 2))
    assert again.ask(cmd="IsPaused", queue="q")["paused"]
    assert again.ask(cmd="IsPaused", queue="new")["paused"]
    assert again.ask(cmd="PULL", queue="q")["job"] is None
    again.ask(cmd="Resume", queue="q")
    last = again.restarted(live=(1, 2))
    assert not last.ask(cmd="IsPaused", queue="q")["paused"]
    assert last.ask(cmd="PULL", queue="q")["job"]["data"] == 0
    assert last.ask(cmd="PULL", queue="new")["job"] is None
    last.close()


def test_resuming_wakes_those_who_wait(driver: Driver) -> None:
    driver.ask(cmd="Pause", queue="q")
    begin(driver, 2, cmd="PULL", queue="q", timeout=9000)
    begin(driver, 3, cmd="PULLB", queue="q", count=5, timeout=9000)
    push(driver, count=3)
    answers = driver.execute(1, msgpack.packb({"cmd": "Resume", "queue": "q"}))
    assert [conn for conn, _ in answers] == [1, 2, 3]
    assert answers[1][1]["job"]["data"] == 0
    assert [job["data"] for job in answers[2][1]["jobs"]] == [1, 2]


def test_a_job_that_is_due_in_a_paused_queue_wakes_nobody(driver: Driver) -> None:
    driver.ask(cmd="Pause", queue="q")
    push(driver, delay=500)
    begin(driver, 2, cmd="PULL", queue="q", timeout=9000)
    assert driver.tick(START + 500) == []
    ((conn, reply),) = driver.tick(START + 9000)
    assert (conn, reply["job"]) == (2, None)


def test_pausing_makes_the_queue_known_and_resuming_does_not(driver: Driver) -> None:
    assert driver.ask(cmd="Resume", queue="r")["ok"]
    assert driver.ask(cmd="IsPaused", queue="r") == {"ok": True, "paused": False}
    driver.ask(cmd="Pause", queue="p")
    assert names(driver) == ["p"]
    for command in ("Pause", "Resume", "IsPaused", "Drain", "Obliterate", "Clean", "PromoteJobs"):
        assert "Queue name" in driver.ask(cmd=command, queue="no good")["error"]


def test_a_pause_is_written_once(driver: Driver) -> None:
    driver.ask(cmd="Pause", queue="q")
    before = driver.rows("select value from records")
    driver.now += 5
    driver.ask(cmd="Pause", queue="q")
    assert driver.rows("select value from records") == before
    driver.ask(cmd="Resume", queue="q")
    assert driver.rows("select value from records") == []


# -- drain -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_slices")
def test_draining_leaves_what_is_active_or_finished(driver: Driver) -> None:
    ids = one_of_each(driver)
    push(driver, count=20, delay=5)
    assert driver.ask(cmd="Drain", queue="q")["count"] == 22
    assert counts(driver) == {"active": 1, "completed": 1, "failed": 1}
    assert driver.state(ids["waiting"]) == driver.state(ids["delayed"]) == "unknown"
    assert driver.rows("select count(*) from jobs") == driver.rows("select count(*) from job_logs") == [(3,)]
    assert driver.ask(cmd="Drain", queue="q")["count"] == 0
    driver.tick(START + 100)
    assert counts(driver) == {"active": 1, "completed": 1, "failed": 1}


@pytest.mark.usefixtures("short_slices")
def test_others_go_on_while_a_queue_is_drained(driver: Driver) -> None:
    ids = push(driver, count=10)
    begin(driver, cmd="Drain", queue="q")
    job = driver.shard.engine.state.queues["q"].ready.pop()  # what a pull would get now
    assert job is not None
    driver.shard.engine.state.queues["q"].ready.push(job)
    assert job.id == ids[3]
    driver.shard.execute(driver.shard.client(2, 2), msgpack.packb({"cmd": "PULL", "queue": "q"}), driver.now)
    driver.shard.execute(
        driver.shard.client(2, 2), msgpack.packb({"cmd": "PUSH", "queue": "q", "data": "new"}), driver.now
    )
    answers = finish(driver)
    assert answers[-1]["count"] == 9
    assert counts(driver) == {"active": 1, "waiting": 1}
    assert driver.ask(cmd="PULL", queue="q")["job"]["data"] == "new"


@pytest.mark.usefixtures("short_slices")
def test_a_drain_goes_on_when_its_client_leaves(driver: Driver) -> None:
    push(driver, count=10)
    begin(driver, 7, cmd="Drain", queue="q")
    driver.disconnect(7)
    finish(driver)
    assert counts(driver) == {}


def test_keys_of_drained_jobs_are_free(driver: Driver) -> None:
    (first,) = push(driver, uniqueKey="k")
    driver.ask(cmd="Drain", queue="q")
    assert push(driver, uniqueKey="k") != [first]


# -- clean -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_slices")
@pytest.mark.parametrize("state", ["completed", "failed", "waiting", "wait", "delayed"])
def test_cleaning_a_state_removes_its_old_jobs_oldest_first(driver: Driver, state: str) -> None:
    old = [one_of_each(driver) for _ in range(5)]
    driver.now += 1000
    one_of_each(driver)
    name = "waiting" if state == "wait" else state
    expected = [ids[name] for ids in old]
    before = counts(driver)
    some = driver.ask(cmd="Clean", queue="q", grace=1000, state=state, limit=4)
    rest = driver.ask(cmd="Clean", queue="q", grace=1000, state=state)
    assert (some["count"], some["ids"] + rest["ids"]) == (4, expected)
    assert rest["count"] == len(expected) - 4
    assert counts(driver) == {**before, name: before[name] - len(expected)}
    assert {driver.state(job_id) for job_id in expected} == {"unknown"}
    driver.now += 10_000
    assert driver.ask(cmd="Clean", queue="q", grace=11_000, state=state)["ids"] == []


def test_cleaning_without_a_state_removes_what_is_queued(driver: Driver) -> None:
    ids = one_of_each(driver)
    assert driver.ask(cmd="Clean", queue="q", grace=0)["ids"] == [ids["delayed"], ids["waiting"]]
    assert counts(driver) == {"active": 1, "completed": 1, "failed": 1}


@pytest.mark.parametrize("state", ["active", "bogus", "paused", "", "prioritized"])
def test_cleaning_other_states_removes_nothing(driver: Driver, state: str) -> None:
    one_of_each(driver)
    assert driver.ask(cmd="Clean", queue="q", grace=0, state=state) == {"ok": True, "count": 0, "ids": []}
    assert driver.ask(cmd="Clean", queue="q", grace=0, limit=0)["count"] == 0


def test_cleaning_by_the_states_of_version_3(driver: Driver) -> None:
    driver.versions[3] = 3
    (plain,), (urgent,) = push(driver), push(driver, priority=5)
    assert driver.ask(3, cmd="Clean", queue="q", grace=0, state="paused")["ids"] == []
    assert driver.ask(3, cmd="Clean", queue="q", grace=0, state="prioritized")["ids"] == [urgent]
    driver.ask(cmd="Pause", queue="q")
    assert driver.ask(3, cmd="Clean", queue="q", grace=0, state="waiting")["ids"] == []
    assert driver.ask(3, cmd="Clean", queue="q", grace=0, state="paused")["ids"] == [plain]


def test_what_was_cleaned_stays_gone_after_a_restart(driver: Driver) -> None:
    ids = one_of_each(driver)
    for state in ("completed", "failed", "waiting"):
        driver.ask(cmd="Clean", queue="q", grace=0, state=state)
    again = driver.restarted(live=(1, 2))
    assert counts(again) == {"active": 1, "delayed": 1}
    assert again.state(ids["active"]) == "active"
    again.close()


# -- obliterate --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_slices")
def test_obliterating_leaves_no_trace_on_disk_or_in_memory(driver: Driver) -> None:
    for _ in range(4):
        one_of_each(driver)
    push(driver, uniqueKey="k")
    revived = driver.ask(cmd="Dlq", queue="q")["jobs"][0]["id"]
    driver.ask(cmd="RetryDlq", queue="q", jobId=revived)
    driver.ask(cmd="Pause", queue="q")
    assert driver.ask(cmd="Obliterate", queue="q") == {"ok": True}
    assert [driver.rows(f"select count(*) from {table}") for table in EVERY_TABLE] == [[(0,)]] * len(
        EVERY_TABLE
    )
    state = driver.shard.engine.state
    assert [*state.queues, *state.jobs, *state.orphans] == []
    assert not state.client(1, 2).held
    assert names(driver) == []
    assert driver.ask(cmd="IsPaused", queue="q")["paused"] is False
    (job_id,) = push(driver, uniqueKey="k")
    assert driver.ask(cmd="PULL", queue="q")["job"]["id"] == job_id
    again = driver.restarted(live=(1, 2))
    assert counts(again) == {"active": 1}
    again.close()


def test_obliterating_takes_dead_letters_of_a_clock_that_was_ahead(driver: Driver) -> None:
    (job_id,) = push(driver, maxAttempts=1)
    driver.tick(driver.now + 3_600_000)
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=job_id, error="no")
    driver.tick(driver.now - 3_600_000)
    driver.ask(cmd="Obliterate", queue="q")
    assert driver.ask(cmd="ListQueues")["queues"] == []


def test_subscribers_of_an_obliterated_queue_stay_subscribed(driver: Driver) -> None:
    assert driver.ask(2, cmd="SubscribeEvents", queue="q")["ok"]
    push(driver)
    assert driver.ask(cmd="Obliterate", queue="q") == {"ok": True}
    push(driver)
    assert list(driver.shard.engine.state.queues["q"].listeners) == [2]


@pytest.mark.usefixtures("short_slices")
def test_other_queues_are_not_concerned(driver: Driver) -> None:
    kept = one_of_each(driver, "other")
    one_of_each(driver)
    driver.ask(cmd="Pause", queue="other")
    driver.ask(cmd="Obliterate", queue="q")
    again = driver.restarted(live=(1, 2))
    assert {name: again.state(job_id) for name, job_id in kept.items()} == {name: name for name in kept}
    assert again.ask(cmd="IsPaused", queue="other")["paused"]
    again.close()


@pytest.mark.usefixtures("short_slices")
def test_parked_pulls_wait_on_when_their_queue_is_obliterated(driver: Driver) -> None:
    driver.ask(cmd="Pause", queue="q")
    push(driver, count=10)
    begin(driver, 2, cmd="PULL", queue="q", timeout=9000)
    driver.ask(cmd="Obliterate", queue="q")
    answers = driver.execute(1, msgpack.packb({"cmd": "PUSH", "queue": "q", "data": "new"}))
    assert [(conn, reply["job"]["data"]) for conn, reply in answers if conn == 2] == [(2, "new")]


@pytest.mark.usefixtures("short_slices")
def test_jobs_that_are_pushed_while_a_queue_is_obliterated_are_not_lost(driver: Driver) -> None:
    old = push(driver, count=10)
    driver.ask(cmd="Pause", queue="q")
    begin(driver, cmd="Obliterate", queue="q")
    driver.shard.execute(
        driver.shard.client(2, 2), msgpack.packb({"cmd": "PUSH", "queue": "q", "data": "new"}), driver.now
    )
    finish(driver)
    assert counts(driver) == {"waiting": 1}
    assert {driver.state(job_id) for job_id in old} == {"unknown"}
    again = driver.restarted(live=(1, 2))
    assert again.ask(cmd="PULL", queue="q")["job"]["data"] == "new"  # and it is not paused
    again.close()


@pytest.mark.usefixtures("short_slices")
def test_obliterating_twice_at_once(driver: Driver) -> None:
    push(driver, count=10)
    begin(driver, 1, cmd="Obliterate", queue="q")
    begin(driver, 2, cmd="Obliterate", queue="q")
    begin(driver, 3, cmd="Drain", queue="q")
    assert [reply["ok"] for reply in finish(driver)] == [True] * 3
    assert names(driver) == []
    push(driver)
    again = driver.restarted(live=(1, 2))
    assert counts(again) == {"waiting": 1}
    again.close()


def test_a_queue_may_be_obliterated_and_made_anew_within_one_batch(driver: Driver) -> None:
    push(driver, count=3)
    requests = [{"cmd": "Obliterate", "queue": "q"}, {"cmd": "PUSH", "queue": "q", "data": "new"}]
    assert all(reply["ok"] for reply in driver.batch([*requests, *requests]))
    assert driver.rows("select name from queues") == [("q",)]
    again = driver.restarted(live=(1, 2))
    assert counts(again) == {"waiting": 1}
    again.close()


def test_work_of_a_connection_that_holds_jobs_of_an_obliterated_queue(driver: Driver) -> None:
    (job_id,) = push(driver)
    driver.ask(2, cmd="PULL", queue="q", owner="w")
    driver.ask(cmd="Obliterate", queue="q")
    assert "Job not found" in driver.ask(2, cmd="ACK", id=job_id, token="t")["error"]
    driver.disconnect(2)
    assert driver.tick(START + 60_000) == []


# -- others ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_slices")
def test_promoting_takes_those_that_were_pushed_first(driver: Driver) -> None:
    late, early, third, *rest = (push(driver, delay=delay)[0] for delay in (9000, 5000, 7000, 1, 2, 3))
    assert driver.ask(cmd="PromoteJobs", queue="q", count=2)["count"] == 2
    pulled = driver.ask(cmd="PULLB", queue="q", count=9)["jobs"]
    assert [job["id"] for job in pulled] == [late, early]
    assert pulled[0]["runAt"] == START
    assert driver.ask(cmd="PromoteJobs", queue="q", count=0)["count"] == 0
    assert driver.ask(cmd="PromoteJobs", queue="q")["count"] == 4
    again = driver.restarted(live=(1, 2))
    assert [job["id"] for job in again.ask(3, cmd="PULLB", queue="q", count=9)["jobs"]] == [third, *rest]
    again.close()


@pytest.mark.usefixtures("short_slices")
def test_counts_per_priority(driver: Driver) -> None:
    for priority, count, delay in ((0, 3, 0), (5, 2, 0), (5, 7, 100), (-2, 1, 0)):
        push(driver, count=count, priority=priority, delay=delay)
    driver.ask(cmd="PULL", queue="q")
    answer = driver.ask(cmd="GetCountsPerPriority", queue="q")
    assert answer == {"ok": True, "queue": "q", "counts": {"0": 3, "5": 8, "-2": 1}}


def test_jobs_of_a_paused_queue_in_the_words_of_version_3(driver: Driver) -> None:
    driver.versions[3] = 3
    push(driver)
    push(driver, priority=2)
    driver.ask(cmd="Pause", queue="q")

    def listed(state: Any = None) -> list[str]:
        return [job["state"] for job in driver.ask(3, cmd="GetJobs", queue="q", state=state)["jobs"]]

    assert listed("paused") == ["paused", "paused"]
    assert listed() == ["waiting", "prioritized"]
    assert listed("waiting") == listed("prioritized") == listed(["waiting", "prioritized"]) == []
    assert len(driver.ask(cmd="GetJobs", queue="q", state="paused")["jobs"]) == 2
    driver.ask(cmd="Resume", queue="q")
    assert listed("paused") == []
    assert driver.ask(cmd="GetJobs", queue="q", state="paused")["jobs"] == []
    assert listed(["waiting", "paused"]) == ["waiting"]
