"""What a schedule tells of its runs: the last one and how it ended, those that were missed, one right now."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from engine.examples.test_schedules import created, get, jobs, new_server, put, run
from engine.shard_driver import START, Driver

from shardproc import missed_runs
from shardproc.engine.handlers.crons import due_runs

HOUR = 3_600_000


def shown(driver: Driver, name: str = "c") -> dict[str, Any]:
    cron = get(driver, name)
    assert cron is not None
    return cron


def last(driver: Driver) -> dict[str, Any]:
    return dict(shown(driver)["lastRun"])


# All settings


def test_a_schedule_is_shown_with_all_its_settings(driver: Driver) -> None:
    settings: dict[str, Any] = {
        "jobName": "n",
        "priority": 3,
        "maxLimit": 9,
        "preventOverlap": False,
        "skipIfNoWorker": True,
        "skipMissedOnRestart": False,
        "uniqueKey": "k",
        "dedup": {"ttl": 5.0},
        "jobOptions": {"maxAttempts": 5, "tags": ["t"]},
        "app": "a",
    }
    told = put(driver, schedule="0 3 * * *", timezone="Europe/Rome", data={"x": [1]}, **settings)
    assert "data" not in told  # who sets it knows
    assert settings.items() <= told.items()
    assert shown(driver) == told | {"data": {"x": [1]}}
    assert driver.ask(cmd="CronList")["crons"] == [told]  # many with large data would be too long
    driver.ask(cmd="CronPause", name="c")
    new_server(driver, 0)
    assert shown(driver) == told | {"data": {"x": [1]}, "paused": True}


# The last run


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("outcome", ["completed", "failed"])
def test_the_last_run_says_how_its_job_ended(
    driver: Driver, outcome: str, gone: bool, restarts: bool
) -> None:
    options = {"maxAttempts": 1, "removeOnComplete": gone, "removeOnFail": gone}
    put(driver, repeatEvery=1000, jobOptions=options)
    assert "lastRun" not in shown(driver)
    run(driver, START + 1000)
    pulled = driver.ask(cmd="PULL", queue="q", owner="w")
    job, token = pulled["job"], pulled["token"]
    assert last(driver) == {"at": START + 1000, "jobId": job["id"]}
    if restarts:
        new_server(driver, 0)
    driver.now = START + 1600
    verb: dict[str, Any] = {"cmd": "ACK"} if outcome == "completed" else {"cmd": "FAIL", "error": "e"}
    assert driver.ask(id=job["id"], token=token, **verb)["ok"]
    if restarts:
        new_server(driver, 0)
    wanted = {"at": START + 1000, "jobId": job["id"], "outcome": outcome, "endedAt": START + 1600}
    assert last(driver) == wanted


def test_a_run_that_gives_no_job_leaves_the_last_one(driver: Driver) -> None:
    put(driver, repeatEvery=1000)
    run(driver, START + 3500)
    assert shown(driver)["executions"] == 3
    assert last(driver)["at"] == START + 1000


def test_an_attempt_that_fails_is_no_outcome_yet_and_a_retried_dead_letter_is_none_again(
    driver: Driver,
) -> None:
    put(driver, repeatEvery=HOUR, jobOptions={"maxAttempts": 2, "backoff": 0})
    run(driver, START + HOUR)
    for attempt in (1, 2):
        job = driver.ask(cmd="PULL", queue="q")["job"]
        driver.ask(cmd="FAIL", id=job["id"], error="e")
        assert last(driver).get("outcome") == (None if attempt == 1 else "failed")
    assert driver.ask(cmd="RetryDlq", queue="q")["ok"]
    assert last(driver) == {"at": START + HOUR, "jobId": job["id"]}
    driver.ask(cmd="ACK", id=driver.ask(cmd="PULL", queue="q")["job"]["id"])
    assert last(driver)["outcome"] == "completed"


@pytest.mark.parametrize(
    ("verb", "outcome"),
    [({"cmd": "Cancel"}, "removed"), ({"cmd": "Discard"}, "failed")],
)
def test_what_becomes_of_a_job_that_nobody_takes(driver: Driver, verb: dict[str, Any], outcome: str) -> None:
    put(driver, repeatEvery=HOUR)
    run(driver, START + HOUR)
    assert driver.ask(id=last(driver)["jobId"], **verb)["ok"]
    assert last(driver)["outcome"] == outcome


def test_a_job_that_expires_says_so(driver: Driver) -> None:
    put(driver, repeatEvery=HOUR, jobOptions={"ttl": 10})
    run(driver, START + HOUR + 20)
    driver.ask(cmd="PULL", queue="q")
    assert last(driver)["outcome"] == "expired"


def test_the_end_of_an_earlier_job_is_not_that_of_the_last(driver: Driver) -> None:
    put(driver, repeatEvery=1000, preventOverlap=False)
    run(driver, START + 2500)
    first, second = jobs(driver)
    driver.ask(cmd="ACK", id=driver.ask(cmd="PULL", queue="q")["job"]["id"])
    assert last(driver) == {"at": START + 2000, "jobId": second["id"]}
    driver.ask(cmd="CronDelete", name="c")
    assert driver.ask(cmd="ACK", id=driver.ask(cmd="PULL", queue="q")["job"]["id"])["ok"]
    assert first["id"] != second["id"]


def test_what_was_not_committed_is_no_outcome(driver: Driver) -> None:
    put(driver, repeatEvery=1000, preventOverlap=False)
    run(driver, START + 1000)
    job = driver.ask(cmd="PULL", queue="q")["job"]
    ack = b"\x82\xa3cmd\xa3ACK\xa2id" + bytes([0xD9, len(job["id"])]) + job["id"].encode()
    driver.shard.execute(driver.shard.client(1, 2), ack, driver.now)  # killed before the commit
    driver.restart()
    assert last(driver) == {"at": START + 1000, "jobId": job["id"]}
    run(driver, START + 2000, commit=False)
    driver.restart()
    assert last(driver) == {"at": START + 1000, "jobId": job["id"]}


# Runs that were missed


@pytest.mark.parametrize("skip", [True, False])
def test_runs_that_a_server_misses_are_counted_shown_and_logged(
    driver: Driver, skip: bool, caplog: pytest.LogCaptureFixture
) -> None:
    put(driver, repeatEvery=1000, preventOverlap=False, skipMissedOnRestart=skip)
    run(driver, START + 500)
    with caplog.at_level(logging.WARNING):
        new_server(driver, 3000)
        run(driver, driver.now)
        missed_runs.log_all(driver.shard.engine.state.timetable)
    assert shown(driver)["missed"] == 3
    assert len(created(driver)) == (0 if skip else 1)
    (record,) = [each for each in caplog.records if "missed" in each.message]
    fields: dict[str, Any] = vars(record)["fields"]
    assert (fields["schedule"], fields["queue"], fields["missed"], fields["made_up"]) == (
        "c",
        "q",
        3,
        not skip,
    )
    assert fields["first"] == "2023-11-14T22:13:21.000+00:00"
    assert driver.ask(cmd="Prometheus")["data"]["shards"][0]["cron_missed_total"] == 3
    new_server(driver, 1000)
    run(driver, driver.now)
    assert shown(driver)["missed"] == 4
    put(driver, repeatEvery=1000)
    assert shown(driver)["missed"] == 4


def test_a_shard_that_comes_back_and_a_schedule_that_is_paused_miss_nothing(driver: Driver) -> None:
    put(driver, repeatEvery=1000, preventOverlap=False)
    driver.now = START + 2500
    driver.restart()  # only the shard was down
    run(driver, driver.now)
    assert created(driver) == [2500]
    assert "missed" not in shown(driver)
    driver.ask(cmd="CronPause", name="c")
    new_server(driver, 5000)
    run(driver, driver.now)
    assert "missed" not in shown(driver)


def test_counting_what_was_missed_is_bounded(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    put(driver, "by-the-second", schedule="* * * * * *")
    for number in range(missed_runs.MAX_LINES + 5):
        put(driver, str(number), schedule="0 * * * *")
    with caplog.at_level(logging.WARNING):
        new_server(driver, 24 * HOUR)
        run(driver, driver.now)
        missed_runs.log_all(driver.shard.engine.state.timetable)
    assert shown(driver, "by-the-second")["missed"] == due_runs.MAX_COUNTED
    assert shown(driver, "0")["missed"] == 24
    lines = [each for each in caplog.records if "missed" in each.message]
    assert len(lines) == missed_runs.MAX_LINES + 1


# Now


def test_a_schedule_can_be_run_now(driver: Driver) -> None:
    before = put(driver, repeatEvery=HOUR, data=7, jobName="n", maxLimit=5)
    driver.ask(cmd="CronPause", name="c")
    told = driver.ask(cmd="CronTrigger", name="c")
    (job,) = jobs(driver)
    assert (told["id"], told["queue"], told["existing"]) == (job["id"], "q", False)
    assert (job["name"], job["data"], job["uniqueKey"]) == ("n", 7, "cron:c")
    again = driver.ask(cmd="CronTrigger", name="c")
    assert (again["id"], again["existing"]) == (job["id"], True)
    after = shown(driver)
    assert (after["nextRun"], after["executions"]) == (before["nextRun"], 0)
    assert after["lastRun"] == {"at": START, "jobId": job["id"]}
    driver.restart()
    assert shown(driver) == after
    assert driver.ask(cmd="CronTrigger", name="none")["error"] == "Cron job not found"


# Whose the name is


def clash(driver: Driver, **fields: Any) -> dict[str, Any]:
    request = {"cmd": "Cron", "name": "c", "repeatEvery": HOUR, "queue": "q", **fields}
    return dict(driver.ask(**request))


def test_a_name_of_another_queue_or_app_is_refused_to_who_would_not_move_it(driver: Driver) -> None:
    put(driver, repeatEvery=1000, app="a", move=False)
    before = shown(driver)
    for fields in ({"queue": "other"}, {"queue": "other", "app": "a"}, {"app": "b"}):
        reply = clash(driver, move=False, **fields)
        assert reply["code"] == "SCHEDULE_CONFLICT"
        assert "'c' belongs to queue 'q', declared by app 'a'" in reply["error"]
        assert "another name" in reply["error"]
        assert shown(driver) == before
    assert clash(driver, move=False)["cron"]["app"] == "a"  # somebody changes it by hand
    assert clash(driver, move=False, app="a")["ok"]


def test_an_app_takes_over_a_schedule_of_no_app(driver: Driver) -> None:
    put(driver, repeatEvery=1000, preventOverlap=False)
    run(driver, START + 1500)
    cron = put(driver, repeatEvery=1000, preventOverlap=False, app="a", move=False)
    assert (cron["app"], cron["executions"], cron["nextRun"]) == ("a", 1, START + 2000)
    run(driver, START + 2500)
    assert created(driver) == [1000, 2000]


def test_an_app_deletes_only_what_it_declares(driver: Driver) -> None:
    put(driver, repeatEvery=1000, app="a")
    put(driver, "by-hand", repeatEvery=1000)
    for name, app in (("c", "b"), ("by-hand", "a")):
        assert driver.ask(cmd="CronDelete", name=name, app=app)["error"] == "Cron job not found"
    assert driver.ask(cmd="CronDelete", name="c", app="a")["ok"]
    assert get(driver) is None
