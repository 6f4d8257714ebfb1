"""What becomes of a run that meets the last one's job, and of those that a server missed that was down."""

from __future__ import annotations

from typing import Any

import pytest
from engine.examples.test_schedules import created, get, jobs, new_server, put, run
from engine.shard_driver import START, Driver

from shardproc.engine.handlers.crons import due_runs

Job = dict[str, Any]


def shown(driver: Driver) -> dict[str, Any]:
    cron = get(driver)
    assert cron is not None
    return cron


def pull(driver: Driver) -> tuple[str, str] | None:
    """The id and token of a job that is taken; None if none waits."""
    reply = driver.ask(cmd="PULL", queue="q", owner="w", lockTtl=600_000)
    return None if reply["job"] is None else (reply["job"]["id"], reply["token"])


def taken(driver: Driver) -> tuple[str, str]:
    found = pull(driver)
    assert found is not None
    return found


def end(driver: Driver, job: tuple[str, str], *, fails: bool = False) -> None:
    verb: dict[str, Any] = {"cmd": "FAIL", "error": "e"} if fails else {"cmd": "ACK"}
    assert driver.ask(id=job[0], token=job[1], **verb)["ok"]


# Overlap


def test_allow_adds_a_job_beside_the_last_one(driver: Driver) -> None:
    put(driver, repeatEvery=1000, overlap="allow")
    run(driver, START + 3000)
    assert created(driver) == [1000, 2000, 3000]
    assert shown(driver)["preventOverlap"] is False


@pytest.mark.parametrize("restarts", [False, True])
def test_skip_leaves_runs_out_until_the_job_has_ended_even_while_it_waits_for_its_retry(
    driver: Driver, restarts: bool
) -> None:
    put(driver, repeatEvery=1000, overlap="skip", jobOptions={"maxAttempts": 2, "backoff": 5000})
    run(driver, START + 1000)
    end(driver, taken(driver), fails=True)
    if restarts:
        driver.restart()
    run(driver, START + 4000)
    assert created(driver) == [1000]
    run(driver, START + 20_500)
    end(driver, taken(driver))
    run(driver, START + 22_000)
    assert created(driver) == [1000, 21_000]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_queue_begins_a_run_when_the_last_one_has_ended(driver: Driver, fails: bool, restarts: bool) -> None:
    put(driver, repeatEvery=1000, overlap="queue", jobOptions={"maxAttempts": 1})
    run(driver, START + 1000)
    first = taken(driver)
    run(driver, START + 3500)
    assert created(driver) == [1000]
    assert (shown(driver)["backlog"], shown(driver)["executions"]) == (2, 3)
    if restarts:
        driver.restart()
    end(driver, first, fails=fails)
    run(driver, START + 3500)
    assert shown(driver)["backlog"] == 1
    second = taken(driver)
    assert second[0] != first[0]
    assert pull(driver) is None, "one at a time"
    end(driver, second)
    run(driver, START + 3500)
    end(driver, taken(driver))
    run(driver, START + 3999)
    assert "backlog" not in shown(driver)
    assert pull(driver) is None
    run(driver, START + 4000)
    assert len(created(driver)) + (1 if fails else 0) >= 4


def test_a_server_that_dies_between_the_end_of_a_job_and_the_next_one_goes_on(driver: Driver) -> None:
    put(driver, repeatEvery=1000, overlap="queue")
    run(driver, START + 2500)
    end(driver, taken(driver))
    driver.commit()
    driver.restart()  # before the tick that would begin the run that waits
    run(driver, START + 2500)
    assert pull(driver) is not None
    assert "backlog" not in shown(driver)


def test_a_backlog_is_bounded_and_what_is_beyond_is_left_out(driver: Driver) -> None:
    put(driver, repeatEvery=1000, overlap="queue", maxBacklog=2)
    run(driver, START + 9000)
    assert (shown(driver)["backlog"], shown(driver)["maxBacklog"]) == (2, 2)
    begun = 0
    while (job := pull(driver)) is not None:
        end(driver, job)
        begun += 1
        run(driver, START + 9000)
    assert begun == 3


def test_a_job_that_is_removed_or_cancelled_lets_the_next_run_begin(driver: Driver) -> None:
    put(driver, repeatEvery=1000, overlap="queue")
    run(driver, START + 2500)
    (waiting,) = jobs(driver)
    assert driver.ask(cmd="Cancel", id=waiting["id"])["ok"]
    run(driver, START + 2600)
    assert pull(driver) is not None


def test_a_paused_schedule_keeps_its_backlog_until_it_is_resumed(driver: Driver) -> None:
    put(driver, repeatEvery=1000, overlap="queue")
    run(driver, START + 2500)
    driver.ask(cmd="CronPause", name="c")
    end(driver, taken(driver))
    run(driver, START + 2600)
    assert pull(driver) is None
    driver.ask(cmd="CronResume", name="c")
    run(driver, START + 2700)
    assert pull(driver) is not None


def test_a_backlog_stays_when_the_schedule_is_set_again_and_goes_with_another_policy(driver: Driver) -> None:
    fields = {"repeatEvery": 1000, "overlap": "queue"}
    put(driver, **fields)
    run(driver, START + 4500)
    assert put(driver, **fields)["backlog"] == 3
    assert put(driver, **fields, maxBacklog=1)["backlog"] == 1
    assert "backlog" not in put(driver, repeatEvery=1000, overlap="skip")


def test_a_run_by_hand_waits_as_well(driver: Driver) -> None:
    put(driver, repeatEvery=1_000_000, overlap="queue", maxBacklog=1)
    first = driver.ask(cmd="CronTrigger", name="c")
    assert driver.ask(cmd="CronTrigger", name="c") == {**first, "existing": True}
    refused = driver.ask(cmd="CronTrigger", name="c")
    assert refused["error"] == "Schedule c has 1 runs that wait, which is its maxBacklog"
    assert shown(driver)["backlog"] == 1
    end(driver, taken(driver))
    run(driver, START + 10)
    assert pull(driver) is not None


def test_cancel_tells_the_last_job_to_stop_and_runs_when_it_has(driver: Driver) -> None:
    put(driver, repeatEvery=1000, overlap="cancel")
    run(driver, START + 1000)
    first = taken(driver)
    run(driver, START + 2000)
    assert pull(driver) is None, "the last job has not stopped"
    driver.ask(cmd="FAIL", id=first[0], token=first[1], error="cancelled")
    run(driver, START + 2500)
    second = taken(driver)
    assert second[0] != first[0]
    assert shown(driver)["lastRun"]["jobId"] == second[0]


def test_cancel_takes_the_place_of_a_job_that_waits(driver: Driver) -> None:
    put(driver, repeatEvery=1000, overlap="cancel")
    run(driver, START + 3000)
    assert created(driver) == [3000]


# Missed runs


@pytest.mark.parametrize(
    ("fields", "times"),
    [
        ({"onMissed": "none"}, 0),
        ({"onMissed": "one", "overlap": "allow"}, 1),
        ({"onMissed": "one"}, 1),
        ({"onMissed": "all", "overlap": "allow"}, 5),
        ({"onMissed": "all", "preventOverlap": False}, 5),
        ({"onMissed": "all", "overlap": "allow", "maxBacklog": 3}, 3),
        ({"onMissed": "all", "overlap": "allow", "maxLimit": 2}, 2),
    ],
)
@pytest.mark.parametrize("rhythm", [{"repeatEvery": 1000}, {"schedule": "* * * * * *"}])
def test_runs_that_a_server_missed(
    driver: Driver, rhythm: dict[str, Any], fields: dict[str, Any], times: int
) -> None:
    put(driver, **rhythm, **fields)
    new_server(driver, 5_500)
    run(driver, START + 5_600)
    assert len(jobs(driver)) == times
    assert shown(driver)["missed"] == 5
    assert shown(driver)["executions"] == times
    new_server(driver, 0)
    run(driver, START + 5_700)
    assert len(jobs(driver)) == times, "they are made up for once"


def test_all_runs_of_a_shard_that_was_away_alone(driver: Driver) -> None:
    put(driver, repeatEvery=1000, onMissed="all", overlap="allow")
    driver.now += 3_500
    driver.restart()
    run(driver, driver.now)
    assert len(jobs(driver)) == 3
    assert "missed" not in shown(driver), "the server was there"


def test_all_missed_runs_one_after_the_other(driver: Driver) -> None:
    put(driver, repeatEvery=1000, onMissed="all", overlap="queue")
    new_server(driver, 4_500)
    run(driver, START + 4_600)
    assert len(jobs(driver)) == 1
    assert shown(driver)["backlog"] == 3
    for _ in range(4):
        end(driver, taken(driver))
        run(driver, START + 4_600)
    assert pull(driver) is None


def test_many_missed_runs_leave_other_commands_their_turn(driver: Driver) -> None:
    for number in range(3):
        put(
            driver,
            f"c{number}",
            queue=f"q{number}",
            repeatEvery=10,
            onMissed="all",
            overlap="allow",
            maxBacklog=1000,
        )
    driver.now = driver.shard.engine.state.now = START + 60_000
    seen = []
    for _ in range(4):
        due_runs.run_due(driver.shard.engine.state)
        seen.append(len(driver.shard.engine.state.jobs))
    assert seen == [1000, 2000, 3000, 3000], "one schedule a tick"


# What is refused


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"overlap": "later"}, "overlap"),
        ({"overlap": "skip", "preventOverlap": False}, "preventOverlap"),
        ({"overlap": "cancel", "uniqueKey": "k"}, "overlap"),
        ({"overlap": "queue", "dedup": {"ttl": 5}}, "overlap"),
        ({"onMissed": "two"}, "onMissed"),
        ({"onMissed": "none", "skipMissedOnRestart": False}, "skipMissedOnRestart"),
        ({"onMissed": "all"}, "onMissed"),
        ({"onMissed": "all", "overlap": "cancel"}, "onMissed"),
        ({"maxBacklog": 5}, "maxBacklog"),
        ({"overlap": "queue", "maxBacklog": 0}, "maxBacklog"),
        ({"overlap": "queue", "maxBacklog": 1001}, "maxBacklog"),
    ],
)
def test_what_contradicts_itself_is_refused(driver: Driver, fields: dict[str, Any], field: str) -> None:
    reply = driver.ask(cmd="Cron", name="c", queue="q", repeatEvery=1000, **fields)
    assert not reply["ok"]
    assert reply["error"].startswith(field)
    assert get(driver) is None
