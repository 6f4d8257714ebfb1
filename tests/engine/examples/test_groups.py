"""Groups: turns, limits, windows and parked pulls; what a naive model cannot see."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver

from shardproc.engine.memory.lazy_heap import MIN_STALE
from shardproc.engine.ready.groups import Groups

WORKER = {"owner": "w", "lockTtl": 86_400_000}
V2, V3 = 2, 3  # connections, which speak these versions
# A group's own limits count for pulls of version 3 that name a default.
DEFAULTS = {"concurrency": 100, "limit": {"max": 100, "duration": 60_000}}


def push(driver: Driver, *names: str, **fields: Any) -> None:
    """Jobs named like "a1" go to group "a", those that begin with "-" to none."""
    jobs = [{"data": name, **fields} | ({} if name[0] == "-" else {"groupId": name[0]}) for name in names]
    assert driver.ask(cmd="PUSHB", queue="q", jobs=jobs)["ok"]


def pull(driver: Driver, conn: int, count: int = 100, **fields: Any) -> list[str]:
    jobs = driver.ask(conn, cmd="PULLB", queue="q", count=count, **WORKER, **fields)["jobs"]
    return [job["data"] for job in jobs]


def park(driver: Driver, conn: int, name: str, **fields: Any) -> None:
    request = {"cmd": "PULL", "queue": "q", "timeout": 60_000, "reqId": name, **fields}
    assert driver.execute(conn, msgpack.packb(request)) == []


def group(driver: Driver, command: str, name: str = "a", **fields: Any) -> Any:
    reply = driver.ask(cmd=command, queue="q", groupId=name, **fields)
    assert reply["ok"], reply
    return reply.get("data")


def groups_of(driver: Driver) -> Groups:
    limits = driver.shard.engine.state.queues["q"].limits
    assert limits is not None
    assert limits.groups is not None
    return limits.groups


def wait(driver: Driver, ms: int) -> list[str]:
    """Time passes; the polls that were served meanwhile."""
    return [reply["reqId"] for _, reply in driver.tick(driver.now + ms)]


def test_groups_go_on_taking_turns_from_pull_to_pull(driver: Driver) -> None:
    push(driver, "a1", "a2", "a3", "b1", "b2", "c1")
    assert [pull(driver, V3, 1) for _ in range(3)] == [["a1"], ["b1"], ["c1"]]
    push(driver, "d1", "c2", "-1")
    assert pull(driver, V3) == ["-1", "a2", "b2", "d1", "c2", "a3"]


def test_one_group_with_many_jobs_does_not_keep_others_waiting(driver: Driver) -> None:
    push(driver, *["a"] * 1000)
    push(driver, "b1")
    assert "b1" in pull(driver, V3, 2)


def test_the_order_of_version_2_is_that_of_the_queue(driver: Driver) -> None:
    push(driver, "a1", "-1", "b1", "a2", "-2")
    push(driver, "c1", "-3", priority=5)
    push(driver, "d1", "-4", lifo=True)
    assert pull(driver, V2) == ["c1", "-3", "-4", "d1", "a1", "-1", "b1", "-2"]


def test_both_versions_at_one_queue(driver: Driver) -> None:
    push(driver, "a1", "a2", "a3", "b1", "b2")
    assert pull(driver, V2, 1) == ["a1"]
    assert pull(driver, V3, 2) == ["a2", "b1"]
    assert pull(driver, V2) == []
    assert pull(driver, V3) == ["a3", "b2"]


@pytest.mark.parametrize("conn", [V2, V3])
def test_a_setting_of_the_group_goes_before_what_the_pull_says(driver: Driver, conn: int) -> None:
    push(driver, "a1", "a2", "a3", "b1", "b2")
    group(driver, "SetGroupConcurrency", concurrency=2)
    assert pull(driver, conn, group={"concurrency": 1}) in (["a1", "a2", "b1"], ["a1", "b1", "a2"])
    group(driver, "RemoveGroupConcurrency")
    assert pull(driver, conn, group={"concurrency": 3}) in (["a3", "b2"], ["b2", "a3"])


@pytest.mark.parametrize("conn", [V2, V3])
def test_a_window_begins_with_its_first_job(driver: Driver, conn: int) -> None:
    group(driver, "SetGroupRateLimit", max=2, duration=500)
    group(driver, "SetGroupConcurrency", concurrency=9)
    push(driver, "a1", "a2", "a3", "a4", "a5")
    assert group(driver, "GetGroupRateLimitTtl") == {"ttl": -2}
    wait(driver, 400)
    assert pull(driver, conn, 1, group=DEFAULTS) == ["a1"]
    assert group(driver, "GetGroupRateLimitTtl") == {"ttl": 500}
    wait(driver, 300)
    assert pull(driver, conn, group=DEFAULTS) == ["a2"]
    wait(driver, 199)
    assert pull(driver, conn, group=DEFAULTS) == []
    wait(driver, 1)
    assert pull(driver, conn, group=DEFAULTS) == ["a3", "a4"]


@pytest.mark.parametrize("conn", [V2, V3])
def test_parked_pulls_get_their_job_when_a_window_ends(driver: Driver, conn: int) -> None:
    group(driver, "RateLimitGroup", duration=700)
    push(driver, "a1")
    park(driver, conn, "p")
    assert driver.shard.engine.next_deadline() == driver.now + 700
    assert wait(driver, 699) == []
    assert wait(driver, 1) == ["p"]


def test_the_windows_of_many_groups_end_one_by_one(driver: Driver) -> None:
    for n, name in enumerate("abcdef"):
        group(driver, "RateLimitGroup", name, duration=100 * (n + 1))
    push(driver, "f1", "e1", "d1", "c1", "b1", "a1")
    for name in "abcdef":
        park(driver, V3, name)
    for name in "abcdef":
        assert driver.shard.engine.next_deadline() == driver.now + 100
        assert wait(driver, 100) == [name]


def test_what_is_blocked_for_one_parked_pull_is_not_for_another(driver: Driver) -> None:
    push(driver, "a1")
    assert pull(driver, V2) == ["a1"]
    park(driver, V2, "one", owner="x")
    park(driver, V3, "strict", group={"concurrency": 1})
    park(driver, V3, "free")
    push_two = {"cmd": "PUSHB", "queue": "q", "jobs": [{"data": "a2", "groupId": "a"}]}
    replies = driver.execute(V2, msgpack.packb(push_two))
    assert [reply.get("reqId") for _, reply in replies] == [None, "free"]


def test_pulls_that_were_parked_before_there_were_groups(driver: Driver) -> None:
    park(driver, V2, "one", owner="x")
    park(driver, V2, "two", owner="x")
    park(driver, V3, "free", owner="x")
    entries = [{"data": n, "groupId": "a"} for n in range(3)]
    replies = driver.execute(1, msgpack.packb({"cmd": "PUSHB", "queue": "q", "jobs": entries}))
    assert [reply.get("reqId") for _, reply in replies] == [None, "one", "free"]


def test_a_slot_that_frees_serves_a_parked_pull(driver: Driver) -> None:
    push(driver, "a1", "a2")
    held = driver.ask(V2, cmd="PULL", queue="q")["job"]["id"]
    park(driver, V2, "p")
    replies = driver.execute(V2, msgpack.packb({"cmd": "ACK", "id": held}))
    assert [reply.get("reqId") for _, reply in replies] == [None, "p"]


def test_everything_holds_over_a_restart(driver: Driver) -> None:
    push(driver, "a1", "a2", "b1", "c1", "d1", "d2", "d3")
    group(driver, "SetGroupConcurrency", "a", concurrency=1)
    group(driver, "PauseGroup", "b")
    group(driver, "RateLimitGroup", "c", duration=5000)
    group(driver, "SetGroupRateLimit", "d", max=2, duration=9000)
    assert pull(driver, V3, group=DEFAULTS) == ["a1", "d1", "d2"]
    driver.now += 1000
    driver.restart()
    driver.versions = {V2: 2, V3: 3}
    assert group(driver, "IsGroupPaused", "b") == {"paused": True}
    assert group(driver, "GetGroupActiveCount", "a") == {"count": 1}
    assert group(driver, "GetGroupRateLimit", "d") == {"limit": {"max": 2, "duration": 9000}}
    assert group(driver, "GetGroupRateLimitTtl", "d") == {"ttl": 8000}
    assert driver.ask(cmd="GetGroupsJobsCount", queue="q")["data"] == {"count": 4}
    assert pull(driver, V3, group=DEFAULTS) == []
    wait(driver, 4000)
    assert pull(driver, V3, group=DEFAULTS) == ["c1"]
    wait(driver, 4000)
    assert pull(driver, V3, group=DEFAULTS) == ["d3"]


def test_a_window_outlives_the_jobs_of_its_group_but_is_forgotten_in_the_end(driver: Driver) -> None:
    rule = {"group": {"limit": {"max": 1, "duration": 100}}}
    push(driver, "a1", "b1")
    job = driver.ask(V3, cmd="PULL", queue="q", **rule)["job"]
    driver.ask(cmd="ACK", id=job["id"])
    assert driver.rows("select kind, key from records") == [("group", "q/a")]
    push(driver, "a2")
    assert pull(driver, V3, **rule) == ["b1"]  # a new job does not open the window anew
    wait(driver, 100)
    job = driver.ask(V3, cmd="PULL", queue="q", **rule)["job"]
    assert job["data"] == "a2"
    driver.ask(cmd="ACK", id=job["id"])
    driver.restart()
    assert sorted(groups_of(driver).by_id) == ["a", "b"]
    wait(driver, 100)
    push(driver, "c1")
    job = driver.ask(V3, cmd="PULL", queue="q")["job"]
    assert sorted(groups_of(driver).by_id) == ["b", "c"]
    driver.ask(cmd="ACK", id=job["id"])
    assert driver.rows("select kind, key from records") == [("group", "q/b")]  # its job is active


def test_obliterate_takes_jobs_and_limits_of_groups_away(driver: Driver) -> None:
    push(driver, "a1", "a2", "b1")
    assert pull(driver, V2, 1) == ["a1"]
    group(driver, "PauseGroup", "b")
    group(driver, "SetGroupConcurrency", "z", concurrency=1)
    driver.ask(cmd="RateLimit", queue="q", limit=1)
    assert driver.ask(cmd="Obliterate", queue="q")["ok"]
    assert driver.rows("select * from records") == []
    driver.restart()
    driver.versions = {V2: 2, V3: 3}
    push(driver, "b1", "a1", "a2")
    assert pull(driver, V2) == ["b1", "a1"]


def test_the_first_job_of_a_group_is_cancelled(driver: Driver) -> None:
    push(driver, "a9")
    push(driver, "b1", priority=5)
    first = driver.ask(cmd="PUSH", queue="q", data="a3", groupId="a", priority=7)["id"]
    assert driver.ask(cmd="Cancel", id=first)["ok"]
    assert pull(driver, V2) == ["b1", "a9"]
    assert driver.ask(cmd="GetGroupJobsCount", queue="q", groupId="a")["data"] == {"count": 0}


def test_groups_without_jobs_and_limits_are_forgotten(driver: Driver) -> None:
    for n in range(20):
        driver.ask(cmd="PUSH", queue="q", groupId=f"g{n}", data=n, removeOnComplete=n % 2 == 0)
    for _ in range(20):
        driver.ask(cmd="ACK", id=driver.ask(V3, cmd="PULL", queue="q")["job"]["id"])
    assert groups_of(driver).by_id == {}
    group(driver, "PauseGroup")
    assert list(groups_of(driver).by_id) == ["a"]
    group(driver, "ResumeGroup")
    assert groups_of(driver).by_id == {}
    assert driver.rows("select * from records") == []


@pytest.mark.parametrize("conn", [V2, V3])
def test_blocked_groups_are_not_looked_at_again_by_every_pull(
    driver: Driver, conn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    free = Groups.free

    def counted(self: Groups, *args: Any) -> Any:
        nonlocal looked
        looked += 1
        return free(self, *args)

    rule = {"group": {"concurrency": 1}}
    for part in range(10):
        jobs = [{"data": n, "groupId": f"{part}-{n}"} for n in range(500) for _ in range(2)]
        driver.ask(cmd="PUSHB", queue="q", jobs=jobs)
    for _ in range(5):
        assert len(pull(driver, conn, 1000, **rule)) == 1000
    assert pull(driver, conn, **rule) == []
    monkeypatch.setattr(Groups, "free", counted)
    for n in range(100):
        assert pull(driver, conn, **rule) == []
        driver.ask(cmd="PUSH", queue="q", groupId=f"0-{n}", data=n)
    assert looked <= 200  # not 100 times 5,000


def test_a_full_group_takes_no_job_and_a_batch_is_taken_whole_or_not(driver: Driver) -> None:
    full = {"ok": False, "error": "Group a has reached its maximum size of 2"}
    entry = {"data": 1, "groupId": "a", "groupMaxSize": 2}
    assert driver.ask(cmd="PUSHB", queue="q", jobs=[{"data": 0}, entry, entry, entry]) == full
    assert driver.ask(cmd="Count", queue="q")["count"] == 0
    assert driver.ask(cmd="PUSH", queue="q", **entry)["ok"]
    assert driver.ask(cmd="PUSH", queue="q", **entry, delay=1000)["ok"]
    assert driver.ask(cmd="PUSH", queue="q", **entry) == full
    assert pull(driver, V3) == [1]  # an active one takes no room
    assert driver.ask(cmd="PUSH", queue="q", **entry)["ok"]


@pytest.mark.parametrize("batch", [False, True])
def test_priorities_within_a_group_are_checked_by_version(driver: Driver, batch: bool) -> None:
    def error(conn: int, **entry: Any) -> str | None:
        if batch:
            reply = driver.ask(conn, cmd="PUSHB", queue="q", jobs=[{"data": 1}, {"data": 1, **entry}])
        else:
            reply = driver.ask(conn, cmd="PUSH", queue="q", data=1, **entry)
        text: str | None = reply.get("error")
        return text.removeprefix("jobs[1]: ") if text else None

    grouped = "group.priority must be between 0 and 2097151"
    assert error(V3, groupId="a", priority=-1) == error(V3, groupId="a", priority=2_097_152) == grouped
    assert error(V3, groupId="a", priority=2_097_151) is None
    assert error(V3, priority=-1) is error(V2, groupId="a", priority=-1) is None
    for conn, entry in ((V3, {}), (V2, {}), (V2, {"groupId": "a"})):
        assert error(conn, priority=1_000_001, **entry) == "priority must be at most 1000000"
        assert error(conn, priority=-1_000_001, **entry) == "priority must be at least -1000000"


def test_a_dead_letter_comes_back_into_its_group(driver: Driver) -> None:
    push(driver, "a1", "a2", maxAttempts=1)
    job = driver.ask(V2, cmd="PULL", queue="q", owner="w")
    driver.ask(cmd="FAIL", id=job["job"]["id"], token=job["token"])
    driver.restart()
    driver.versions = {V2: 2}
    assert driver.ask(cmd="RetryDlq", queue="q")["count"] == 1
    assert group(driver, "GetGroupJobsCount") == {"count": 2}
    assert len(pull(driver, V2)) == 1


def oldest_ms(driver: Driver) -> float:
    (queue,) = driver.ask(cmd="DashboardQueues")["data"]["queues"]
    found: float = queue["oldestMs"]
    return found


def test_the_age_of_the_oldest_job_of_any_group(driver: Driver) -> None:
    began = driver.now
    push(driver, "a1")
    wait(driver, 1000)
    push(driver, "b1")
    wait(driver, 1000)
    assert oldest_ms(driver) == driver.now - began
    assert pull(driver, V3, 1) == ["a1"]
    second = oldest_ms(driver)
    assert 0 < second < driver.now - began
    push(driver, "-1")
    assert sorted(pull(driver, V3)) == ["-1", "b1"]
    assert oldest_ms(driver) == 0
    push(driver, "c1")
    driver.restart()
    wait(driver, 500)
    assert oldest_ms(driver) >= 500


def test_ages_are_found_without_a_look_at_every_group(driver: Driver) -> None:
    for number in range(300):
        driver.ask(cmd="PUSH", queue="q", groupId=f"g{number}", data=number)
        assert pull(driver, V3) == [number]
    ages = groups_of(driver)._ages
    assert len(ages) <= 2 * MIN_STALE  # those that left are cleared away
    assert ages.first() is None
    assert ages.entries == []


def test_a_timer_of_a_forgotten_group_does_not_take_a_new_one_of_that_name_away(driver: Driver) -> None:
    push(driver, "a1")
    group(driver, "RateLimitGroup", duration=30)
    assert pull(driver, V2) == []
    wait(driver, 30)
    assert driver.ask(cmd="Drain", queue="q")["ok"]
    wait(driver, 1000)
    push(driver, "a2")
    assert pull(driver, V2) == ["a2"]
