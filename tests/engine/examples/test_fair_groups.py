"""Fair pulls: turns by weight, limits of the queue for all groups, and the jobs of one group."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver

WORKER = {"owner": "w", "lockTtl": 86_400_000}
V2, V3 = 2, 3
FAIR = {"fair": True}


@pytest.fixture
def driver(driver: Driver) -> Driver:
    driver.versions = {V2: 2, V3: 3}
    return driver


def push(driver: Driver, *names: str, **fields: Any) -> list[str]:
    """Jobs named like "a1" go to group "a", those that begin with "-" to none."""
    jobs = [{"data": name, **fields} | ({} if name[0] == "-" else {"groupId": name[0]}) for name in names]
    reply = driver.ask(V3, cmd="PUSHB", queue="q", jobs=jobs)
    assert reply["ok"], reply
    return list(reply["ids"])


def pull(driver: Driver, count: int = 100, conn: int = V3, **rule: Any) -> list[str]:
    rule = {**FAIR, **rule}
    jobs = driver.ask(conn, cmd="PULLB", queue="q", count=count, group=rule, **WORKER)["jobs"]
    return [job["data"] for job in jobs]


def ask(driver: Driver, command: str, **fields: Any) -> dict[str, Any]:
    reply = driver.ask(V3, cmd=command, queue="q", **fields)
    assert reply["ok"], reply
    return reply


def defaults(driver: Driver, **config: Any) -> None:
    # The driver leaves out what is None at the top only.
    ask(driver, "SetGroupDefaults", config=config)


@pytest.mark.parametrize("conn", [V2, V3])
def test_groups_take_turns_and_the_jobs_without_one_do_so_together(driver: Driver, conn: int) -> None:
    push(driver, "a1", "a2", "a3", "b1", "b2", "-1", "-2")
    assert pull(driver, conn=conn) == ["a1", "b1", "-1", "a2", "b2", "-2", "a3"]


def test_sixteen_jobs_of_one_group_do_not_go_before_four_of_another(driver: Driver) -> None:
    push(driver, *["a"] * 16)
    push(driver, *["b"] * 4)
    assert [pull(driver, 1)[0] for _ in range(8)] == ["a", "b"] * 4


def test_a_group_that_comes_late_waits_for_one_turn_of_each_other(driver: Driver) -> None:
    push(driver, *["a"] * 50, *["b"] * 50, *["c"] * 50)
    pull(driver, 40)
    push(driver, "d1")
    assert "d1" in pull(driver, 4)


def test_weights_share_the_turns(driver: Driver) -> None:
    push(driver, *["a"] * 60, *["b"] * 60, *["c"] * 60)
    ask(driver, "SetGroupWeight", groupId="a", weight=3)
    ask(driver, "SetGroupWeight", groupId="b", weight=2)
    assert Counter(pull(driver, 60)) == {"a": 30, "b": 20, "c": 10}
    assert ask(driver, "RemoveGroupWeight", groupId="a")["data"] == {"removed": 1}
    assert ask(driver, "RemoveGroupWeight", groupId="a")["data"] == {"removed": 0}
    assert Counter(pull(driver, 40)) == {"a": 10, "b": 20, "c": 10}


def test_a_weight_is_spread_over_time(driver: Driver) -> None:
    push(driver, *["a"] * 9, *["b"] * 9)
    ask(driver, "SetGroupWeight", groupId="a", weight=2)
    assert "".join(pull(driver, 9)).count("aaa") == 0


def test_adding_jobs_one_by_one_gains_nothing(driver: Driver) -> None:
    """A group that is empty in between has the same share as one that never is."""
    ask(driver, "SetGroupWeight", groupId="a", weight=4)
    push(driver, *["a"] * 100)
    taken = Counter[str]()
    for _ in range(50):
        if (
            not taken["b"]
            or driver.ask(V3, cmd="GetGroupJobsCount", queue="q", groupId="b")["data"]["count"] == 0
        ):
            push(driver, "b")
        taken.update(pull(driver, 1))
    assert taken["b"] in (10, 11)


def test_within_a_group_the_order_is_that_of_the_queue(driver: Driver) -> None:
    push(driver, "a1", "a2")
    push(driver, "a3", priority=5)
    push(driver, "a4", priority=-5, fair=True)
    push(driver, "a5", lifo=True)
    assert pull(driver) == ["a3", "a5", "a1", "a2", "a4"]
    refused = driver.ask(V3, cmd="PUSH", queue="q", groupId="a", priority=-5)
    assert refused["error"] == "group.priority must be between 0 and 2097151"


def test_a_groups_own_limits_hold_for_every_fair_pull(driver: Driver) -> None:
    push(driver, "a1", "a2", "a3", "b1")
    ask(driver, "SetGroupConcurrency", groupId="a", concurrency=2)
    assert pull(driver) == ["a1", "b1", "a2"]
    assert driver.ask(V3, cmd="WhyWaiting", id=job_id(driver, "a3"))["data"]["reasons"][-1]["kind"] == (
        "group-concurrency"
    )


def job_id(driver: Driver, data: str) -> str:
    jobs = driver.ask(V3, cmd="GetJobs", queue="q")["jobs"]
    return str(next(job["id"] for job in jobs if job["data"] == data))


@pytest.mark.parametrize("conn", [V2, V3])
@pytest.mark.parametrize("fair", [True, False])
def test_limits_of_the_queue_hold_for_every_group_that_comes(driver: Driver, conn: int, fair: bool) -> None:
    defaults(driver, concurrency=2)
    push(driver, "a1", "a2", "a3", "b1", "b2", "b3")
    assert Counter(name[0] for name in pull(driver, conn=conn, fair=fair)) == {"a": 2, "b": 2}
    push(driver, "c1", "c2", "c3")
    assert pull(driver, conn=conn, fair=fair) == ["c1", "c2"]
    driver.restart()
    assert pull(driver, conn=conn, fair=fair) == []
    ask(driver, "SetGroupConcurrency", groupId="a", concurrency=3)
    assert pull(driver, conn=conn, fair=fair) == ["a3"]
    defaults(driver, concurrency=None)
    if fair:
        assert pull(driver, conn=conn) == ["b3", "c3"]


def test_the_nearest_limit_counts(driver: Driver) -> None:
    """The group's own before the queue's before the pull's."""
    push(driver, *["a"] * 9, *["b"] * 9)
    assert Counter(pull(driver, concurrency=1)) == {"a": 1, "b": 1}
    defaults(driver, concurrency=3)
    assert Counter(pull(driver, concurrency=1)) == {"a": 2, "b": 2}
    ask(driver, "SetGroupConcurrency", groupId="a", concurrency=4)
    assert Counter(pull(driver, concurrency=1)) == {"a": 1}


def test_a_rate_of_the_queue_holds_for_each_group(driver: Driver) -> None:
    defaults(driver, max=2, duration=500)
    push(driver, *["a"] * 5, "b")
    assert pull(driver) == ["a", "b", "a"]
    driver.tick(driver.now + 499)
    assert pull(driver) == []
    driver.tick(driver.now + 1)
    assert pull(driver) == ["a", "a"]
    ask(driver, "SetGroupRateLimit", groupId="a", max=9, duration=500)
    assert pull(driver) == ["a"]


def test_parked_pulls_get_what_another_limit_lets_through(driver: Driver) -> None:
    defaults(driver, concurrency=1)
    push(driver, "a1", "a2")
    assert pull(driver) == ["a1"]
    poll = {"cmd": "PULL", "queue": "q", "timeout": 60_000, "group": FAIR, "reqId": "poll"}
    assert driver.execute(V3, msgpack.packb(poll)) == []
    answers = driver.execute(
        V3, msgpack.packb({"cmd": "SetGroupDefaults", "queue": "q", "config": {"concurrency": 2}})
    )
    assert [reply["job"]["data"] for _, reply in answers if reply.get("reqId") == "poll"] == ["a2"]


def test_settings_are_changed_one_by_one_and_vanish_with_the_queue(driver: Driver) -> None:
    assert ask(driver, "GetGroupDefaults")["config"] == {"concurrency": None, "max": None, "duration": 1000}
    assert "q" not in driver.shard.engine.state.queues
    defaults(driver, concurrency=5)
    defaults(driver, max="100", duration=60_000)
    ask(driver, "SetGroupWeight", groupId="a", weight=7)
    driver.restart()
    assert ask(driver, "GetGroupDefaults")["config"] == {"concurrency": 5, "max": 100, "duration": 60_000}
    assert ask(driver, "GetGroupWeight", groupId="a")["data"] == {"weight": 7}
    defaults(driver, max=None)
    assert ask(driver, "GetGroupDefaults")["config"]["max"] is None
    (shown,) = ask(driver, "ListGroups")["data"]["groups"]
    assert (shown["id"], shown["weight"], shown["concurrency"]) == ("a", 7, None)
    ask(driver, "Obliterate")
    assert driver.rows("select * from records") == []
    assert ask(driver, "GetGroupWeight", groupId="a")["data"] == {"weight": None}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"max": -1}, "max must be at least 0"),
        ({"duration": 0}, "duration must be at least 1"),
        ({"weight": 3}, "config"),
    ],
)
def test_wrong_settings_change_nothing(driver: Driver, config: dict[str, Any], problem: str) -> None:
    refused = driver.ask(V3, cmd="SetGroupDefaults", queue="q", config=config)
    assert not refused["ok"]
    assert problem in refused["error"]
    assert "q" not in driver.shard.engine.state.queues
    for weight in (0, 1001):
        assert not driver.ask(V3, cmd="SetGroupWeight", queue="q", groupId="a", weight=weight)["ok"]


def test_the_jobs_of_one_group(driver: Driver) -> None:
    push(driver, "a1", "b1", "a2", "-1", "b2", "a3")
    push(driver, "a4", delay=60_000)
    assert pull(driver, 1) == ["a1"]
    jobs = ask(driver, "GetGroupJobs", groupId="a")["jobs"]
    assert [(job["data"], job["state"]) for job in jobs] == [
        ("a1", "active"),
        ("a2", "waiting"),
        ("a3", "waiting"),
        ("a4", "delayed"),
    ]
    page = ask(driver, "GetGroupJobs", groupId="a", offset=1, limit=2, state=["waiting", "delayed"])["jobs"]
    assert [job["data"] for job in page] == ["a3", "a4"]
    assert ask(driver, "GetGroupJobs", groupId="nobody")["jobs"] == []
    assert (
        "state 'gone' is unknown"
        in driver.ask(V3, cmd="GetGroupJobs", queue="q", groupId="a", state="gone")["error"]
    )
