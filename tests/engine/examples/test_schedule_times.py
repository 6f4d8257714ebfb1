"""Jobs of schedules know for which time they run, whatever happens before they do."""

from __future__ import annotations

from typing import Any

import pytest
from engine.examples.test_schedule_policies import end, shown, taken
from engine.examples.test_schedules import jobs, new_server, put, run
from engine.shard_driver import START, Driver


def times(driver: Driver, queue: str = "q") -> list[int]:
    """For which times the jobs of a queue run, from START on, in the order of their ids."""
    found = jobs(driver, queue)
    assert {job["schedule"] for job in found} <= {"c"}
    return sorted(int(job["scheduledFor"]) - START for job in found)


def test_a_job_says_for_which_time_of_which_schedule_it_runs(driver: Driver) -> None:
    put(driver, repeatEvery=1000, overlap="allow", jobOptions={"maxAttempts": 2, "backoff": 10, "delay": 300})
    driver.ask(cmd="PUSH", queue="other", data=1)
    run(driver, START + 1000)
    driver.now += 700  # it is late
    run(driver, START + 2800)
    assert times(driver) == [1000, 2000]
    assert "schedule" not in jobs(driver, "other")[0], "others do not pay for it"
    job = driver.ask(cmd="PULL", queue="q", owner="w")["job"]
    assert (job["schedule"], job["scheduledFor"]) == ("c", START + 1000)
    assert isinstance(job["scheduledFor"], float), "as every time of this protocol"
    driver.commit()
    driver.restart()
    assert times(driver) == [1000, 2000]


def test_it_stays_through_retries_the_dead_letters_and_other_queues(driver: Driver) -> None:
    put(driver, repeatEvery=1000, jobOptions={"maxAttempts": 1})
    run(driver, START + 1000)
    job = taken(driver)
    driver.ask(cmd="CronDelete", name="c")
    end(driver, job, fails=True)
    assert driver.job(job[0])["scheduledFor"] == START + 1000
    driver.ask(cmd="ChangeJobs", action="move", to="elsewhere", queue="q", state="failed")
    driver.commit()
    driver.restart()
    assert times(driver, "elsewhere") == [1000]
    (moved,) = jobs(driver, "elsewhere")
    assert (moved["id"], moved["schedule"]) == (job[0], "c")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"onMissed": "one", "overlap": "allow"}, [1000]),
        ({"onMissed": "all", "overlap": "allow"}, [1000, 2000, 3000, 4000, 5000]),
        ({"onMissed": "all", "overlap": "allow", "maxBacklog": 3}, [1000, 2000, 3000]),
    ],
)
@pytest.mark.parametrize("rhythm", [{"repeatEvery": 1000}, {"schedule": "* * * * * *"}])
def test_each_of_the_runs_that_were_missed_has_its_own(
    driver: Driver, rhythm: dict[str, Any], fields: dict[str, Any], expected: list[int]
) -> None:
    put(driver, **rhythm, **fields)
    new_server(driver, 5_500)
    run(driver, START + 5_600)
    assert times(driver) == expected


@pytest.mark.parametrize("restarts", [False, True])
def test_runs_that_wait_for_the_last_one_keep_theirs(driver: Driver, restarts: bool) -> None:
    put(driver, repeatEvery=1000, overlap="queue", maxBacklog=4)
    run(driver, START + 3500)
    driver.ask(cmd="CronTrigger", name="c")
    driver.commit()
    if restarts:
        driver.restart()
    put(driver, repeatEvery=1000, overlap="queue", maxBacklog=3)
    for _ in range(3):
        end(driver, taken(driver))
        run(driver, START + 3600)
    assert times(driver) == [1000, 2000, 3000, 3500], (
        "one by hand runs for the moment at which it was asked for"
    )
    assert "backlog" not in shown(driver)
