"""What people ask who look after queues is answered as things are."""

from __future__ import annotations

from typing import Any

from engine.shard_driver import START, Driver


def push(driver: Driver, queue: str = "q", **fields: Any) -> str:
    return str(driver.ask(cmd="PUSH", queue=queue, data=1, **fields)["id"])


def reasons(driver: Driver, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = driver.ask(cmd="WhyWaiting", id=job)["data"]["reasons"]
    return found


def kinds(driver: Driver, job: str) -> list[str]:
    return [reason["kind"] for reason in reasons(driver, job)]


def staffed() -> Driver:
    """A shard whose queue q has a worker."""
    driver = Driver()
    driver.shard.engine.worker_presence(["q"], present=True)
    return driver


def bury(driver: Driver, error: str, **fields: Any) -> str:
    job = push(driver, maxAttempts=1, **fields)
    driver.ask(cmd="PULL", queue="q", owner="worker-1")
    token = driver.shard.engine.state.jobs[job].lock
    assert token is not None
    assert driver.ask(cmd="FAIL", id=job, error=error, stack=["line 1", "line 2"], token=token.token)["ok"]
    return job


def test_a_job_that_nothing_holds_back_waits_for_its_turn() -> None:
    driver = staffed()
    job = push(driver)
    assert kinds(driver, job) == ["turn"]
    driver.ask(cmd="PULL", queue="q")
    assert driver.ask(cmd="WhyWaiting", id=job)["data"] == {"state": "active", "reasons": []}
    assert driver.ask(cmd="WhyWaiting", id="none")["error"] == "Job not found"


def test_nobody_works_on_the_queue() -> None:
    driver = Driver()
    assert kinds(driver, push(driver)) == ["no-worker"]


def test_nobody_runs_a_job_of_this_name() -> None:
    driver = Driver()
    engine = driver.shard.engine
    job = push(driver, name="ghost")
    engine.worker_presence(["q"], present=True, names={"q": ["mail", "call"]})
    (reason,) = reasons(driver, job)
    assert reason["kind"] == "unknown-name"
    assert reason["text"] == "nobody runs 'ghost': no worker of the queue q has a function of this name"
    assert kinds(driver, push(driver, name="call")) == ["turn"]
    assert kinds(driver, push(driver, name="ghost", delay=5000)) == ["delay", "unknown-name"]
    engine.worker_presence(["q"], present=True, origin=1)  # another router's workers do not say what they run
    assert kinds(driver, job) == ["turn"]
    engine.worker_presence(["q"], present=True, names={"q": ["ghost"]}, origin=1)
    assert kinds(driver, job) == ["turn"]
    engine.router_disconnected(1)
    assert kinds(driver, job) == ["unknown-name"]
    engine.worker_presence(["q"], present=True)
    assert kinds(driver, job) == ["turn"]


def test_pauses_limits_and_times_hold_back() -> None:
    driver = staffed()
    first, job = push(driver), push(driver)
    later = push(driver, delay=5000)
    (delay,) = reasons(driver, later)
    assert (delay["kind"], delay["until"]) == ("delay", START + 5000)
    driver.ask(cmd="Pause", queue="q")
    assert kinds(driver, job) == ["paused"]
    assert kinds(driver, later) == ["delay", "paused"]
    driver.ask(cmd="Resume", queue="q")
    driver.ask(cmd="SetConcurrency", queue="q", limit=1)
    driver.ask(cmd="RateLimit", queue="q", limit=1, duration=1000)
    assert driver.ask(cmd="PULL", queue="q")["job"]["id"] == first
    concurrency, rate = reasons(driver, job)
    assert concurrency["text"] == "1 of at most 1 jobs of the queue are active"
    assert (rate["kind"], rate["until"]) == ("rate-limit", START + 1000)


def test_a_retry_and_dependencies_hold_back() -> None:
    driver = staffed()
    job = push(driver, backoff=4000)
    child = push(driver, dependsOn=[job])
    (waits,) = reasons(driver, child)
    assert (waits["kind"], waits["ids"]) == ("dependencies", [job])
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=job, error="no")
    assert kinds(driver, job) == ["retry"]


def test_groups_hold_back_and_are_listed() -> None:
    driver = staffed()
    job = [push(driver, groupId="acme") for _ in range(2)][1]
    push(driver, groupId="zoo")
    driver.ask(cmd="SetGroupConcurrency", queue="q", groupId="acme", concurrency=1)
    driver.ask(cmd="SetGroupRateLimit", queue="q", groupId="acme", max=1, duration=9000)
    driver.ask(cmd="PULL", queue="q")
    assert kinds(driver, job) == ["group-concurrency", "group-rate-limit"]
    driver.ask(cmd="PauseGroup", queue="q", groupId="acme")
    assert kinds(driver, job)[0] == "group-paused"
    listed = driver.ask(cmd="ListGroups", queue="q", limit=1)["data"]
    acme = {"id": "acme", "waiting": 1, "active": 1, "paused": True, "concurrency": 1, "max": 1}
    assert listed == {"groups": [{**acme, "duration": 9000}], "total": 2}
    (other,) = driver.ask(cmd="ListGroups", queue="q", offset=1)["data"]["groups"]
    assert (other["id"], other["concurrency"], other["max"]) == ("zoo", None, None)
    assert driver.ask(cmd="ListGroups", queue="none")["data"] == {"groups": [], "total": 0}


def test_every_attempt_is_told() -> None:
    driver = staffed()
    job = push(driver, maxAttempts=2, backoff=10)
    for error in ("first", "second"):
        driver.ask(cmd="PULL", queue="q")
        driver.ask(cmd="FAIL", id=job, error=error, stack="at line 3")
        driver.tick(driver.now + 1000)
    first, second = driver.ask(cmd="GetAttempts", id=job)["data"]["attempts"]
    assert (first["number"], first["error"], first["startedAt"]) == (1, "first", START)
    assert (second["number"], second["error"]) == (2, "second")
    assert "at line 3" in second["stack"]
    assert driver.ask(cmd="GetAttempts", id="none")["error"] == "Job not found"


def test_attempts_are_counted_on_after_a_retry() -> None:
    driver = staffed()
    job = push(driver, maxAttempts=2, backoff=0)
    for life in range(3):
        for _ in range(2):
            driver.tick(driver.now + 1000)
            token = driver.ask(cmd="PULL", queue="q", owner="w")["token"]
            if life == 1:  # the worker has to stop: that counts for nothing
                driver.ask(cmd="FAIL", id=job, token=token, interrupted=True)
                driver.tick(driver.now + 1000)
                token = driver.ask(cmd="PULL", queue="q", owner="w")["token"]
            driver.ask(cmd="FAIL", id=job, token=token, error="no")
        driver.ask(cmd="RetryDlq", queue="q", jobId=job)
    told = driver.ask(cmd="GetAttempts", id=job)["data"]["attempts"]
    failed = [attempt["number"] for attempt in told if attempt["outcome"] != "interrupted"]
    assert failed == [1, 2, 3, 4, 5, 6]
    assert [each["number"] for each in told if each["outcome"] == "interrupted"] == [3, 4]


def test_what_went_wrong_before_is_not_told_of_a_completed_job() -> None:
    driver = staffed()
    job = push(driver, maxAttempts=2, backoff=0)
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=job, error="Lock expired")
    driver.tick(driver.now + 1000)
    assert driver.ask(cmd="GetJob", id=job)["job"]["failedReason"] == "Lock expired"
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="ACK", id=job)
    assert "failedReason" not in driver.ask(cmd="GetJob", id=job)["job"]
    failed, completed = driver.ask(cmd="GetAttempts", id=job)["data"]["attempts"]
    assert (failed["number"], failed["outcome"], failed["error"]) == (1, "explicit_fail", "Lock expired")
    assert (completed["number"], completed["outcome"], completed["error"]) == (2, "completed", None)


def test_dead_letters_are_chosen_by_name_and_error() -> None:
    driver = staffed()
    bury(driver, "Timeout of the bank", name="pay")
    bury(driver, "timeout of the tax office", name="declare")
    bury(driver, "no money", name="pay")

    def count(**fields: Any) -> int:
        return int(driver.ask(cmd="CountDlq", queue="q", filter=fields)["count"])

    assert (count(), count(error="TIMEOUT"), count(name="pay"), count(name="pay", error="timeout")) == (
        3,
        2,
        2,
        1,
    )
    assert driver.ask(cmd="CountDlq", queue="q")["count"] == 3
    assert [
        entry["error"] for entry in driver.ask(cmd="Dlq", queue="q", filter={"name": "pay"})["entries"]
    ] == ["Timeout of the bank", "no money"]
    assert driver.ask(cmd="RetryDlq", queue="q", filter={"error": "timeout"})["count"] == 2
    assert count() == 1


def test_a_misspelled_filter_does_not_mean_all() -> None:
    driver = staffed()
    bury(driver, "no money", name="pay")
    for command in ("Dlq", "CountDlq", "RetryDlq"):
        refused = driver.ask(cmd=command, queue="q", filter={"reson": "timeout"})
        assert not refused["ok"]
        assert refused["error"].startswith("filter.reson is unknown; there are reason, name, error")
    assert driver.ask(cmd="CountDlq", queue="q")["count"] == 1


def test_misspelled_reasons_states_and_settings_are_refused() -> None:
    driver = staffed()
    bury(driver, "no money")
    for command in ("Dlq", "CountDlq", "RetryDlq"):
        refused = driver.ask(cmd=command, queue="q", filter={"reason": "tmeout"})
        assert refused["error"].startswith("filter.reason 'tmeout' is unknown; there are explicit_fail, ")
    for queue in ("q", "none"):
        for state in ("nope", ["failed", "nope"]):
            refused = driver.ask(cmd="GetJobs", queue=queue, state=state)
            assert refused["error"].startswith("state 'nope' is unknown; there are waiting, ")
    for command, config in (
        ("SetDlqConfig", {"autoRetry": True, "maxAges": 1}),
        ("SetStallConfig", {"maxStalls": 1, "maxAges": 1}),
    ):
        refused = driver.ask(cmd=command, queue="q", config=config)
        assert refused["error"].startswith("config.maxAges is unknown; there are ")
    assert not driver.ask(cmd="GetDlqConfig", queue="q")["config"]["autoRetry"]
    assert driver.ask(cmd="CountDlq", queue="q")["count"] == 1


def test_a_schedule_is_paused_and_tells_its_next_runs() -> None:
    driver = Driver()
    driver.ask(cmd="Cron", name="tick", queue="q", repeatEvery=1000, preventOverlap=False, maxLimit=5)
    runs = driver.ask(cmd="CronNext", name="tick", count=3)["data"]["runs"]
    assert runs == [START + 1000, START + 2000, START + 3000]
    assert len(driver.ask(cmd="CronNext", name="tick")["data"]["runs"]) == 5  # its limit
    assert driver.ask(cmd="CronPause", name="tick")["cron"]["paused"] is True
    driver.tick(START + 2500)
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["waiting"] == 0
    driver.ask(cmd="Cron", name="tick", queue="q", repeatEvery=1000, preventOverlap=False)  # changes nothing
    assert driver.ask(cmd="CronGet", name="tick")["cron"]["paused"] is True
    assert "paused" not in driver.ask(cmd="CronResume", name="tick")["cron"]
    driver.tick(START + 3500)
    assert driver.ask(cmd="CronGet", name="tick")["cron"]["executions"] == 1
    for command in ("CronPause", "CronResume", "CronNext"):
        assert driver.ask(cmd=command, name="none")["error"] == "Cron job not found"


def test_a_shard_tells_of_itself() -> None:
    driver = Driver()
    push(driver)
    (shard,) = driver.ask(cmd="ListShards")["data"]["shards"]
    assert (shard["shard"], shard["of"], shard["queues"], shard["jobs"], shard["error"]) == (0, 1, 1, 1, None)
