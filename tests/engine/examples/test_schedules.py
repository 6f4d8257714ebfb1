"""Schedules in a real shard: what runs when, what is kept, and what becomes of runs that cannot be."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from engine.shard_driver import START, Driver

from bunqueue.model.ids import slot_of_queue
from shardproc.engine.handlers.crons import due_runs

Job = dict[str, Any]
FIELDS = {
    "name",
    "jobName",
    "queue",
    "schedule",
    "repeatEvery",
    "nextRun",
    "executions",
    "maxLimit",
    "timezone",
    "priority",
}


def put(driver: Driver, name: str = "c", queue: str = "q", **fields: Any) -> dict[str, Any]:
    reply = driver.ask(cmd="Cron", name=name, queue=queue, **fields)
    assert reply["ok"], reply
    return dict(reply["cron"])


def get(driver: Driver, name: str = "c") -> dict[str, Any] | None:
    reply = driver.ask(cmd="CronGet", name=name)
    if not reply["ok"]:
        assert reply["error"] == "Cron job not found"
        return None
    return dict(reply["cron"])


def names(driver: Driver) -> list[str]:
    return [cron["name"] for cron in driver.ask(cmd="CronList")["crons"]]


def run(driver: Driver, to: int, *, commit: bool = True) -> None:
    """Let time pass as the server does: from one deadline to the next."""
    while (at := driver.shard.engine.next_deadline()) <= to:
        driver.tick(max(at, driver.now))
        if commit:
            driver.commit()
    driver.now = to


def jobs(driver: Driver, queue: str = "q") -> list[Job]:
    return list(driver.ask(cmd="GetJobs", queue=queue)["jobs"])


def created(driver: Driver, queue: str = "q") -> list[int]:
    """When the jobs of a queue were pushed, from START on."""
    return [int(job["createdAt"]) - START for job in jobs(driver, queue)]


def new_server(driver: Driver, after: int) -> None:
    """The whole server was down for ``after`` ms."""
    driver.now += after
    driver.epoch += "+"
    driver.restart()


# What a schedule is


def test_all_fields_are_always_there(driver: Driver) -> None:
    assert put(driver, repeatEvery=60_000) == {
        "name": "c",
        "jobName": "default",
        "queue": "q",
        "schedule": None,
        "repeatEvery": 60_000,
        "nextRun": START + 60_000,
        "executions": 0,
        "maxLimit": None,
        "timezone": None,
        "priority": 0,
    }
    cron = put(driver, schedule="0 0 * * *", timezone="Europe/Rome", jobName="n", priority=3, maxLimit=9)
    assert set(cron) == FIELDS
    assert datetime.fromtimestamp(cron["nextRun"] / 1000, UTC).hour == 23
    assert (cron["jobName"], cron["priority"], cron["maxLimit"]) == ("n", 3, 9)
    assert get(driver) == cron
    assert driver.ask(cmd="CronList")["crons"] == [cron]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, "Cron job must have either schedule or repeatEvery"),
        ({"schedule": ""}, "Cron job must have either schedule or repeatEvery"),
        ({"schedule": "61 * * * *"}, "Invalid cron expression: "),
        ({"schedule": "0 0 31 2 *"}, "Invalid cron expression: there is no such date"),
        ({"schedule": "* * * * *", "timezone": "Nope/Zone"}, "Invalid cron expression: unknown time zone"),
        ({"repeatEvery": 0}, "repeatEvery must be a positive whole number of milliseconds"),
        ({"repeatEvery": 1.5}, "repeatEvery must be a positive whole number of milliseconds"),
        ({"repeatEvery": "x"}, "repeatEvery must be a positive whole number of milliseconds"),
        ({"repeatEvery": 10**15}, "repeatEvery must be a positive whole number of milliseconds"),
        ({"repeatEvery": 1, "queue": ""}, "Queue name is required"),
        ({"repeatEvery": 1, "queue": "a b"}, "Queue name contains invalid characters"),
        ({"repeatEvery": 1, "name": ""}, "name must be a non-empty string"),
        ({"repeatEvery": 1, "priority": 10**7}, "priority must be at most 1000000"),
        ({"repeatEvery": 1, "jobOptions": {"maxAttempts": 0}}, "jobOptions.maxAttempts must be at least 1"),
        ({"repeatEvery": 1, "data": "x" * 10_485_761}, "Job data too large (max 10MB)"),
    ],
)
def test_what_is_no_schedule_changes_nothing(driver: Driver, fields: dict[str, Any], error: str) -> None:
    before = put(driver, repeatEvery=1000)
    reply = driver.ask(**{"cmd": "Cron", "name": "c", "queue": "q", **fields})
    assert not reply["ok"]
    assert reply["error"].startswith(error)
    assert get(driver) == before


def test_a_schedule_can_be_deleted_once(driver: Driver) -> None:
    put(driver, repeatEvery=1000)
    assert driver.ask(cmd="CronDelete", name="c")["ok"]
    assert driver.ask(cmd="CronDelete", name="c")["error"] == "Cron job not found"
    assert get(driver) is None
    run(driver, START + 5000)
    assert not jobs(driver)


def test_the_list_is_sorted_by_name(driver: Driver) -> None:
    for name in ("b", "c", "a"):
        put(driver, name, repeatEvery=1000)
    assert names(driver) == ["a", "b", "c"]


def test_an_overview_shows_what_runs_next(driver: Driver) -> None:
    for number in range(150):
        put(driver, str(number), repeatEvery=1000 - number)
    shown = driver.ask(cmd="DashboardOverview")["data"]["crons"]
    assert [cron["name"] for cron in shown] == [str(number) for number in range(149, 49, -1)]


# Runs


def test_intervals_and_expressions_run_at_their_times(driver: Driver) -> None:
    put(driver, repeatEvery=400, preventOverlap=False)
    run(driver, START + 1300)
    assert created(driver) == [400, 800, 1200]
    cron = get(driver)
    assert cron is not None
    assert (cron["executions"], cron["nextRun"]) == (3, START + 1600)
    put(driver, "d", "r", schedule="*/20 * * * * *", preventOverlap=False)  # START is :20
    run(driver, START + 60_000)
    assert created(driver, "r") == [20_000, 40_000, 60_000]


def test_the_job_is_what_was_asked_for(driver: Driver) -> None:
    options = {
        "delay": 50,
        "maxAttempts": 5,
        "backoff": {"type": "fixed", "delay": 7},
        "timeout": 1000,
        "stallTimeout": 9,
        "removeOnComplete": True,
        "removeOnFail": True,
    }
    put(driver, repeatEvery=100, data={"a": 1}, jobName="tick", priority=4, jobOptions=options)
    run(driver, START + 100)
    (job,) = jobs(driver)
    assert (job["name"], job["data"], job["priority"], job["uniqueKey"]) == ("tick", {"a": 1}, 4, "cron:c")
    assert job["runAt"] == START + 150
    assert job["backoffConfig"] == {"type": "fixed", "delay": 7}
    for name in ("maxAttempts", "timeout", "stallTimeout", "removeOnComplete", "removeOnFail"):
        assert job[name] == options[name], name


def test_a_late_schedule_runs_once_and_keeps_its_grid(driver: Driver) -> None:
    put(driver, repeatEvery=1000, preventOverlap=False)
    driver.tick(START + 3700)
    driver.commit()
    assert created(driver) == [3700]
    cron = get(driver)
    assert cron is not None
    assert (cron["executions"], cron["nextRun"]) == (1, START + 4000)


def test_a_schedule_ends_with_its_limit(driver: Driver) -> None:
    put(driver, repeatEvery=100, maxLimit=2, preventOverlap=False)
    put(driver, "free", "r", repeatEvery=100, maxLimit=0, preventOverlap=False)
    run(driver, START + 250)
    assert get(driver) is not None
    run(driver, START + 500)
    assert created(driver) == [100, 200]
    assert names(driver) == ["free"]
    assert len(jobs(driver, "r")) == 5


def test_immediately_is_for_new_schedules_only(driver: Driver) -> None:
    assert put(driver, repeatEvery=1000, immediately=True, preventOverlap=False)["nextRun"] == START
    run(driver, START)
    assert created(driver) == [0]
    for _ in range(3):  # instances that start at the same time all say the same
        cron = put(driver, repeatEvery=1000, immediately=True, preventOverlap=False)
        assert cron["nextRun"] == START + 1000
    run(driver, START + 1500)
    assert created(driver) == [0, 1000]


# The same name again


def test_the_same_name_replaces_and_keeps_executions(driver: Driver) -> None:
    put(driver, repeatEvery=100, preventOverlap=False)
    run(driver, START + 250)
    cron = put(driver, repeatEvery=1000, data="new", preventOverlap=False)
    assert (cron["executions"], cron["nextRun"]) == (2, START + 1250)
    run(driver, START + 1300)
    assert [job["data"] for job in jobs(driver)] == [None, None, "new"]


def test_the_same_rhythm_goes_on_undisturbed(driver: Driver) -> None:
    put(driver, repeatEvery=1000)
    for passed in (300, 600, 900):
        run(driver, START + passed)
        assert put(driver, repeatEvery=1000, priority=1)["nextRun"] == START + 1000
    assert put(driver, schedule="* * * * *")["nextRun"] > START + 1000
    first = put(driver, schedule="0 12 * * *")["nextRun"]
    assert put(driver, schedule="0 12 * * *", timezone="Asia/Tokyo")["nextRun"] != first


def test_another_queue_makes_it_another_schedule(driver: Driver) -> None:
    put(driver, repeatEvery=100)
    run(driver, START + 250)
    cron = put(driver, queue="r", repeatEvery=100)
    assert (cron["queue"], cron["executions"], cron["nextRun"]) == ("r", 0, START + 350)
    run(driver, START + 1000)
    assert len(jobs(driver)) == 1
    assert len(jobs(driver, "r")) == 1


def queue_at(shard: int) -> str:
    return next(name for name in map(str, range(100)) if slot_of_queue(name) & 1 == shard)


def test_a_name_stands_for_one_schedule_on_all_shards() -> None:
    shards = [Driver(shard=number, shards=2) for number in (0, 1)]
    for home in (0, 1, 0, 0):
        request = {"cmd": "Cron", "name": "c", "queue": queue_at(home), "repeatEvery": 100}
        replies = [driver.ask(**request) for driver in shards]
        assert [reply["ok"] for reply in replies] == [home == 0, home == 1]
        assert [names(driver) for driver in shards] == [["c"] * (home == 0), ["c"] * (home == 1)]
        refusals = [driver.ask(**{**request, "schedule": "bad"})["error"] for driver in shards]
        assert refusals[0] == refusals[1]
        assert [get(driver) is not None for driver in shards] == [home == 0, home == 1]
    for driver in shards:
        driver.close()


# Overlap


def test_runs_do_not_overlap(driver: Driver) -> None:
    put(driver, repeatEvery=100)
    run(driver, START + 350)
    assert created(driver) == [100]
    cron = get(driver)
    assert cron is not None
    assert cron["executions"] == 3
    job = driver.ask(cmd="PULL", queue="q")["job"]
    run(driver, START + 450)
    assert len(jobs(driver)) == 1
    driver.ask(cmd="ACK", id=job["id"])
    run(driver, START + 550)
    assert created(driver) == [100, 500]


def test_a_key_and_a_policy_of_its_own(driver: Driver) -> None:
    put(driver, repeatEvery=100, uniqueKey="k", dedup={"replace": True})
    run(driver, START + 350)
    assert created(driver) == [300]
    assert [job["uniqueKey"] for job in jobs(driver)] == ["k"]


def test_a_run_that_a_push_would_refuse_is_counted_and_the_next_one_comes(driver: Driver) -> None:
    put(driver, repeatEvery=100, uniqueKey="k", dedup={"extend": True, "ttl": 1000})
    run(driver, START + 150)
    job = driver.ask(cmd="PULL", queue="q")["job"]
    run(driver, START + 350)  # the holder is active: Duplicate unique_key
    cron = get(driver)
    assert cron is not None
    assert cron["executions"] == 3
    driver.ask(cmd="ACK", id=job["id"])
    run(driver, START + 450)
    assert created(driver) == [100, 400]


# Workers


def test_without_a_worker_a_run_may_be_left_out(driver: Driver) -> None:
    put(driver, repeatEvery=100, skipIfNoWorker=True, preventOverlap=False)
    run(driver, START + 350)
    cron = get(driver)
    assert cron is not None
    assert (cron["executions"], cron["nextRun"]) == (0, START + 400)
    assert not jobs(driver)
    driver.execute(2, b"\x83\xa3cmd\xa4PULL\xa5queue\xa1q\xa7timeout\xcd\x03\xe8")  # waits for a job
    run(driver, START + 450)
    assert created(driver) == [400]  # which it has got
    run(driver, START + 550)
    assert created(driver) == [400, 500]  # as somebody is at work
    driver.disconnect(2)
    run(driver, START + 650)
    assert created(driver) == [400, 500]


def test_a_registered_worker_counts_even_while_it_does_not_ask_for_jobs(driver: Driver) -> None:
    put(driver, repeatEvery=100, skipIfNoWorker=True, preventOverlap=False)
    driver.shard.engine.worker_presence(["q"], present=True)
    run(driver, START + 150)
    driver.shard.engine.worker_presence(["q"], present=False)
    run(driver, START + 250)
    assert created(driver) == [100]


# Restarts


def test_schedules_are_as_they_were_after_a_restart(driver: Driver) -> None:
    put(
        driver,
        repeatEvery=100,
        data={"deep": [1, b"bytes"]},
        jobOptions={"tags": ["t"], "backoff": {"delay": 1}},
    )
    put(driver, "gone", repeatEvery=100)
    put(driver, "other", schedule="0 3 * * *", timezone="Europe/Rome", dedup={"ttl": 5.5}, maxLimit=3)
    run(driver, START + 250)
    driver.ask(cmd="CronDelete", name="gone")
    before = driver.ask(cmd="CronList")
    assert before["crons"][0]["executions"] == 2
    new_server(driver, 0)
    assert driver.ask(cmd="CronList") == before
    driver.ask(cmd="PULL", queue="q")
    run(driver, START + 300)
    assert jobs(driver)[0]["data"] == {"deep": [1, b"bytes"]}


def test_what_was_not_committed_never_happened(driver: Driver) -> None:
    driver.shard.execute(
        driver.shard.client(1, 2), b"\x84\xa3cmd\xa4Cron\xa4name\xa1x\xa5queue\xa1q\xabrepeatEvery\x64", START
    )
    assert "x" in driver.shard.engine.state.timetable.by_name
    driver.restart()
    assert names(driver) == []


@pytest.mark.parametrize("skip", [True, False])
def test_a_shard_that_is_killed_around_an_instant_runs_it_once(driver: Driver, skip: bool) -> None:
    put(driver, repeatEvery=1000, preventOverlap=False, skipMissedOnRestart=skip)
    run(driver, START + 999)
    run(driver, START + 1000, commit=False)  # killed before the commit
    driver.restart()
    assert created(driver) == []
    run(driver, START + 1005)
    assert created(driver) == [1000]
    driver.restart()  # killed after it
    run(driver, START + 1500)
    assert created(driver) == [1000]
    driver.now = START + 2100  # away while the instant passed
    driver.restart()
    run(driver, START + 2100)
    assert created(driver) == [1000, 2100]
    cron = get(driver)
    assert cron is not None
    assert (cron["executions"], cron["nextRun"]) == (2, START + 3000)


def test_runs_missed_by_a_server_that_was_down_are_left_out_or_made_up_for_once(driver: Driver) -> None:
    put(driver, "left-out", "q", repeatEvery=1000, preventOverlap=False)
    put(driver, "made-up", "r", repeatEvery=1000, preventOverlap=False, skipMissedOnRestart=False)
    new_server(driver, 3500)
    run(driver, driver.now)
    assert created(driver, "q") == []
    assert created(driver, "r") == [3500]
    run(driver, START + 4000)
    assert created(driver, "q") == [4000]
    assert created(driver, "r") == [3500, 4000]


def test_a_time_zone_that_this_machine_does_not_know_stops_nothing(driver: Driver) -> None:
    put(driver, schedule="* * * * *", timezone="Europe/Rome")
    driver.tamper("update records set value = replace(value, 'Europe/Rome', 'Gone/Zone')")
    driver.restart()
    run(driver, START + 60_000)
    assert len(jobs(driver)) == 1
    cron = get(driver)
    assert cron is not None
    assert cron["nextRun"] == jobs(driver)[0]["createdAt"] + due_runs.RECHECK_MS


# Many


def test_many_runs_at_once_go_in_slices(driver: Driver) -> None:
    count = 2 * due_runs.MAX_A_TICK + 1
    for number in range(count):
        put(driver, str(number), repeatEvery=1000, preventOverlap=False)
    engine = driver.shard.engine
    pushed = []
    driver.now = START + 1000
    for _ in range(3):
        assert engine.next_deadline() <= START + 1000
        engine.tick(START + 1000)
        pushed.append(engine.state.totals.pushed)
    assert pushed == [due_runs.MAX_A_TICK, 2 * due_runs.MAX_A_TICK, count]
    assert engine.next_deadline() == START + 2000


def test_replacing_a_schedule_for_ever_keeps_nothing(driver: Driver) -> None:
    for number in range(500):
        put(driver, repeatEvery=1000 + number)
    assert len(driver.shard.engine.state.timetable._due) < 100
    run(driver, START + 1500)
    assert created(driver) == [1499]


# SQL


def test_schedules_are_a_view(driver: Driver) -> None:
    put(driver, "a", schedule="0 3 * * *", timezone="Europe/Rome", jobName="n", maxLimit=3, priority=2)
    put(driver, "b", repeatEvery=1000)
    run(driver, START + 1500)
    query = (
        "select name, queue, job_name, schedule, repeat_every, timezone, next_run - ?, executions, max_limit,"
        " priority from cron order by name"
    )
    night = 4 * 3_600_000 - 13 * 60_000 - 20_000  # from 22:13:20 to 02:00, UTC
    assert driver.rows(query, START) == [
        ("a", "q", "n", "0 3 * * *", None, "Europe/Rome", night, 0, 3, 2),
        ("b", "q", None, None, 1000, None, 2000, 1, None, 0),
    ]


@pytest.mark.parametrize("job_name", [None, "given"])
def test_a_client_of_version_3_may_name_the_job_in_the_data(driver: Driver, job_name: str | None) -> None:
    driver.versions[3] = 3
    data = {"name": "tick", "a": 1}
    told = driver.ask(3, cmd="Cron", name="three", queue="q", repeatEvery=100, data=data, jobName=job_name)
    assert told["cron"]["jobName"] == (job_name or "tick")
    put(driver, "two", "other", repeatEvery=100, data=data)
    run(driver, START + 100)
    (job,) = jobs(driver)
    assert (job["name"], job["data"]) == (job_name or "tick", {"a": 1} if job_name is None else data)
    (job,) = jobs(driver, "other")
    assert (job["name"], job["data"]) == ("default", data)


def test_a_new_limit_that_is_reached_already_is_refused(driver: Driver) -> None:
    put(driver, repeatEvery=1_000, maxLimit=5)
    run(driver, driver.now + 3_500)
    before = get(driver)
    assert before is not None
    assert before["executions"] == 3
    for limit in (1, 3):
        reply = driver.ask(cmd="Cron", name="c", queue="q", repeatEvery=1_000, maxLimit=limit)
        assert (reply["ok"], reply["error"]) == (
            False,
            f"Cron job c has run 3 times, so a limit of {limit} would end it",
        )
        assert get(driver) == before
    assert put(driver, repeatEvery=1_000, maxLimit=4)["maxLimit"] == 4
    run(driver, driver.now + 1_000)
    assert put(driver, repeatEvery=1_000, maxLimit=4)["executions"] == 4, "the same limit, as at each start"
