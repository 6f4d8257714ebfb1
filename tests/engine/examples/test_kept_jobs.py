"""Jobs that say themselves how long they are kept, whatever their queue and the server say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine.shard_driver import Driver
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproc.engine.memory.clock_correction import SetBack

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def complete(driver: Driver, queue: str = "q", **fields: Any) -> str:
    job_id = driver.push(queue=queue, **fields)
    assert driver.ask(cmd="PULL", queue=queue)["job"]["id"] == job_id
    driver.ask(cmd="ACK", id=job_id, result={"of": job_id})
    return job_id


def die(driver: Driver, queue: str = "q", **fields: Any) -> str:
    job_id = driver.push(queue=queue, maxAttempts=1, **fields)
    assert driver.ask(cmd="PULL", queue=queue)["job"]["id"] == job_id
    driver.ask(cmd="FAIL", id=job_id, error="no")
    return job_id


def maintenance(driver: Driver, ms: int = 0) -> None:
    """Time passes, and then enough rounds of upkeep."""
    driver.tick(driver.now + ms)
    for _ in range(90):
        driver.tick(driver.now + 1_000)


def state(driver: Driver, job_id: str) -> str | None:
    """Whether it is there, and how."""
    found: str = driver.ask(cmd="GetState", id=job_id)["state"]
    return None if found == "unknown" else found


def expiries(driver: Driver) -> int:
    count: int = driver.rows("select count(*) from expiries")[0][0]
    return count


def test_a_completed_job_goes_when_it_says_and_the_others_stay(driver: Driver) -> None:
    short, usual = complete(driver, keepCompleted=HOUR_MS), complete(driver)
    assert driver.job(short)["keepCompleted"] == HOUR_MS
    assert "keepCompleted" not in driver.job(usual)
    maintenance(driver, HOUR_MS - 5 * MINUTE_MS)
    assert (state(driver, short), expiries(driver)) == ("completed", 1)
    maintenance(driver, 5 * MINUTE_MS)
    assert (state(driver, short), state(driver, usual), expiries(driver)) == (None, "completed", 0)
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["completed"] == 1


def test_a_job_stays_longer_than_its_queue_and_the_server_keep_the_others(driver: Driver) -> None:
    driver.ask(cmd="SetBounds", queue="q", config={"keepAge": MINUTE_MS})
    long, usual = complete(driver, keepCompleted=30 * DAY_MS), complete(driver)
    elsewhere = complete(driver, "other", keepCompleted=30 * DAY_MS)
    maintenance(driver, HOUR_MS)
    assert (state(driver, long), state(driver, usual)) == ("completed", None)
    maintenance(driver, 29 * DAY_MS)
    assert [state(driver, job) for job in (long, elsewhere)] == ["completed", "completed"]
    maintenance(driver, DAY_MS)
    assert [state(driver, job) for job in (long, elsewhere)] == [None, None]


def test_a_dead_letter_goes_when_it_says(driver: Driver) -> None:
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxAge": HOUR_MS})
    short, long, usual = die(driver, keepFailed=MINUTE_MS), die(driver, keepFailed=2 * DAY_MS), die(driver)
    assert driver.job(long)["keepFailed"] == 2 * DAY_MS
    maintenance(driver, 2 * MINUTE_MS)
    assert [state(driver, job) for job in (short, long, usual)] == [None, "failed", "failed"]
    maintenance(driver, 2 * HOUR_MS)
    assert [state(driver, job) for job in (short, long, usual)] == [None, "failed", None]
    maintenance(driver, 2 * DAY_MS)
    assert (state(driver, long), expiries(driver)) == (None, 0)
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["failed"] == 0


def test_each_outcome_has_its_own_time(driver: Driver) -> None:
    kept = {"keepCompleted": MINUTE_MS, "keepFailed": DAY_MS}
    done, dead = complete(driver, **kept), die(driver, **kept)
    maintenance(driver, 10 * MINUTE_MS)
    assert (state(driver, done), state(driver, dead)) == (None, "failed")


def test_a_count_holds_for_all_jobs(driver: Driver) -> None:
    driver.ask(cmd="SetBounds", queue="q", config={"keepCount": 1})
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxEntries": 1})
    done = [complete(driver, keepCompleted=DAY_MS) for _ in range(3)]
    dead = [die(driver, keepFailed=DAY_MS) for _ in range(3)]
    maintenance(driver)
    assert [state(driver, job) for job in (*done, *dead)] == [None, None, "completed", None, None, "failed"]
    assert expiries(driver) == 2


def test_a_job_that_runs_again_is_kept_from_its_last_end_on(driver: Driver) -> None:
    job_id = complete(driver, keepCompleted=HOUR_MS)
    driver.tick(driver.now + HOUR_MS - 5 * MINUTE_MS)
    assert driver.ask(cmd="RetryCompleted", queue="q", id=job_id)["ok"]
    assert expiries(driver) == 0
    maintenance(driver, 2 * HOUR_MS)
    assert state(driver, job_id) == "waiting"
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="ACK", id=job_id)
    maintenance(driver, 10 * MINUTE_MS)
    assert state(driver, job_id) == "completed"
    maintenance(driver, HOUR_MS)
    assert state(driver, job_id) is None


def test_a_dead_letter_that_is_brought_back_is_not_removed(driver: Driver) -> None:
    job_id = die(driver, keepFailed=HOUR_MS)
    assert driver.ask(cmd="RetryDlq", queue="q", jobId=job_id)["ok"]
    maintenance(driver, 2 * HOUR_MS)
    assert (state(driver, job_id), expiries(driver)) == ("waiting", 0)


@pytest.mark.parametrize(
    "command", [{"cmd": "Obliterate", "force": True}, {"cmd": "Clean", "state": "completed", "grace": 0}]
)
def test_who_removes_jobs_by_command_need_not_wait(driver: Driver, command: dict[str, Any]) -> None:
    job_id = complete(driver, keepCompleted=DAY_MS)
    assert driver.ask(queue="q", **command)["ok"]
    assert (state(driver, job_id), expiries(driver)) == (None, 0)


def test_it_holds_through_a_crash(tmp_path: Path) -> None:
    driver = Driver(str(tmp_path / "shard.db"))
    job_id, dead = complete(driver, keepCompleted=HOUR_MS), die(driver, keepFailed=HOUR_MS)
    waiting = driver.push(queue="later", keepCompleted=HOUR_MS)
    driver = driver.restarted()
    assert (state(driver, job_id), state(driver, dead)) == ("completed", "failed")
    assert driver.job(waiting)["keepCompleted"] == HOUR_MS
    driver.ask(cmd="PULL", queue="later")
    driver.ask(cmd="ACK", id=waiting)
    driver = driver.restarted()
    maintenance(driver, 2 * HOUR_MS)
    assert [state(driver, each) for each in (job_id, dead, waiting)] == [None, None, None]
    assert expiries(driver) == 0
    driver = driver.restarted()
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["completed"] == 0
    driver.close()


def test_jobs_that_repeat_and_jobs_of_schedules_have_it(driver: Driver) -> None:
    first = complete(driver, keepCompleted=HOUR_MS, repeat={"every": 1_000})
    driver.tick(driver.now + 2_000)
    again = driver.ask(cmd="PULL", queue="q")["job"]["id"]
    assert again != first
    assert driver.job(again)["keepCompleted"] == HOUR_MS
    options = {"keepCompleted": MINUTE_MS, "keepFailed": DAY_MS}
    made = driver.ask(cmd="Cron", name="c", queue="c", repeatEvery=1_000, jobOptions=options)
    assert made["cron"]["jobOptions"] == options
    driver.tick(driver.now + 1_500)
    job = driver.job(driver.ask(cmd="PULL", queue="c")["job"]["id"])
    assert (job["keepCompleted"], job["keepFailed"]) == (MINUTE_MS, DAY_MS)


def test_a_job_that_is_added_for_a_dead_one_has_it(driver: Driver) -> None:
    die(driver, onDead={"name": "tell", "queue": "told", "keepCompleted": HOUR_MS})
    job_id = driver.ask(cmd="PULL", queue="told")["job"]["id"]
    assert driver.job(job_id)["keepCompleted"] == HOUR_MS


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"keepCompleted": 0}, "keepCompleted must be a positive number of milliseconds, at most 10 years"),
        ({"keepFailed": -1}, "keepFailed must be a positive number of milliseconds, at most 10 years"),
        ({"keepFailed": 11 * 365 * DAY_MS}, "keepFailed must be a positive number of"),
        ({"keepCompleted": "1h"}, "keepCompleted"),
        ({"keepCompleted": 5, "removeOnComplete": True}, "keepCompleted is 5, but removeOnComplete keeps"),
        (
            {"keepFailed": 5, "removeOnFail": True},
            "keepFailed is 5, but removeOnFail keeps nothing; leave one",
        ),
        ({"onDead": {"keepFailed": 5, "removeOnFail": True}}, "onDead.keepFailed is 5, but removeOnFail"),
    ],
)
def test_what_cannot_be_is_refused(driver: Driver, fields: dict[str, Any], text: str) -> None:
    assert text in driver.ask(cmd="PUSH", queue="q", **fields)["error"]
    batch = driver.ask(cmd="PUSHB", queue="q", jobs=[{"data": 1}, fields])
    assert "jobs[1]" in batch["error"]
    assert text.split(" ")[0] in batch["error"]
    if "onDead" not in fields:
        refused = driver.ask(cmd="Cron", name="c", queue="q", repeatEvery=1_000, jobOptions=fields)
        assert "jobOptions" in refused["error"]
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["waiting"] == 0


def test_jobs_that_stay_do_not_keep_others_from_going(driver: Driver) -> None:
    """More of them than one piece of a round has stand before those that are too old."""
    driver.ask(cmd="SetBounds", queue="q", config={"keepAge": MINUTE_MS})
    jobs = [{"keepCompleted": DAY_MS}] * 1_500 + [{}] * 300
    ids = driver.ask(cmd="PUSHB", queue="q", jobs=jobs)["ids"]
    for _ in range(0, len(ids), 900):
        pulled = driver.ask(cmd="PULLB", queue="q", count=900)["jobs"]
        driver.ask(cmd="ACKB", ids=[job["id"] for job in pulled])
    maintenance(driver, 2 * MINUTE_MS)
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["completed"] == 1_500
    maintenance(driver, DAY_MS)
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["completed"] == 0


def test_the_time_is_brought_back_with_the_clock(driver: Driver) -> None:
    """The clock was two hours ahead when the job ended."""
    job_id, dead = complete(driver, keepCompleted=HOUR_MS), die(driver, keepFailed=HOUR_MS)
    ahead, driver.now = driver.now, driver.now - 2 * HOUR_MS
    back = SetBack(driver.now, ahead, 2 * HOUR_MS)
    engine, rebase = driver.shard.engine, driver.shard.store.rebase
    pending = rebase.begin(back, engine.state.next_seq)
    engine.set_back(back)
    for _ in (*engine.set_jobs_back(back, pending.jobs), *rebase.steps(pending)):
        pass
    rebase.end()
    driver.commit()
    found = driver.rows("select finished_at, at from expiries")
    assert found == [(driver.now, driver.now + HOUR_MS)] * 2
    maintenance(driver, HOUR_MS - 5 * MINUTE_MS)
    assert (state(driver, job_id), state(driver, dead)) == ("completed", "failed")
    maintenance(driver, 10 * MINUTE_MS)
    assert (state(driver, job_id), state(driver, dead)) == (None, None)


AGES = st.sampled_from([None, MINUTE_MS, HOUR_MS, 3 * HOUR_MS])
JOBS = st.lists(st.tuples(st.booleans(), AGES, st.integers(0, 3)), min_size=1, max_size=12)


@settings(deadline=None)
@given(JOBS, AGES, st.integers(0, 8))
def test_each_job_is_kept_as_long_as_it_says_and_no_longer(
    jobs: list[tuple[bool, int | None, int]], queue_age: int | None, hours: int
) -> None:
    """Compared with the rule: the job's own age, or else the queue's, or else the server's."""
    driver = Driver()
    driver.ask(cmd="SetBounds", queue="q", config={"keepAge": queue_age})
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxAge": queue_age})
    ended = []
    for dies, age, later in jobs:
        driver.tick(driver.now + later * MINUTE_MS)
        field = "keepFailed" if dies else "keepCompleted"
        job_id = (die if dies else complete)(driver, **{field: age})
        ended.append((job_id, "failed" if dies else "completed", age or queue_age or 7 * DAY_MS, driver.now))
    driver.tick(driver.now + hours * HOUR_MS)
    before = driver.now
    maintenance(driver)
    for job_id, was, age, at in ended:
        if at + age <= before:
            assert state(driver, job_id) is None
        elif at + age > driver.now:
            assert state(driver, job_id) == was
