"""Errors in groups: what fails alike is one group, which says how often, since when, how fast and where."""

from __future__ import annotations

from typing import Any

import pytest
from engine.shard_driver import Driver

from bunqueue.model.errors_alike import kind_of
from shardproc.engine.lifecycle.error_groups import FORGOTTEN_MS, GIVES_WAY_MS, QUIET_MS
from shardproc.engine.memory import error_groups as memory

MINUTE = 60_000


def fail(driver: Driver, error: str | None, count: int = 1, queue: str = "q", **options: Any) -> list[str]:
    """Have jobs fail for good, or once, with max_attempts=2."""
    fields = {name: options.pop(name) for name in ("errorTypes", "stack", "appVersion") if name in options}
    owner = options.pop("owner", None)
    ids = [driver.push(queue=queue, **{"maxAttempts": 1, **options}) for _ in range(count)]
    jobs = driver.ask(cmd="PULLB", queue=queue, count=count, owner=owner)
    tokens = jobs.get("tokens")
    for place, job_id in enumerate(job["id"] for job in jobs["jobs"]):
        text = None if error is None else error.format(place)
        more = {} if tokens is None else {"token": tokens[place]}
        driver.ask(cmd="FAIL", id=job_id, error=text, **fields, **more)
    return ids


def groups(driver: Driver, queue: str | None = "q") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = driver.ask(cmd="ListErrors", queue=queue)["data"]["groups"]
    return found


def test_a_group_says_how_many_since_when_how_fast_and_where(driver: Driver) -> None:
    began = driver.now
    fail(driver, "ValueError: row {} of 'a.csv'", 3, errorTypes=["ValueError"], owner="w1", name="load")
    driver.tick(driver.now + 2 * MINUTE)
    fail(
        driver,
        "ValueError: row 7{} of 'b.csv'",
        2,
        errorTypes=["ValueError"],
        owner="w2",
        name="check",
        maxAttempts=2,
        stack="Traceback\n  line 7",
        appVersion="1.4",
    )
    fail(driver, "KeyError: 'x'", errorTypes=["KeyError"])
    first, second = groups(driver)
    assert (first["errorType"], first["pattern"]) == ("ValueError", "ValueError: row # of #")
    assert first["id"] == kind_of("ValueError", "ValueError: row 1 of 'z'")
    assert (first["failures"], first["dead"], first["kept"]) == (5, 3, 3)
    assert (first["first"], first["last"]) == (began, driver.now)
    assert first["names"] == {"load": 3, "check": 2}
    assert first["workers"] == {"w1": 3, "w2": 2}
    assert first["versions"] == {"1.4": 2}
    assert first["outcomes"] == {"explicit_fail": 5}
    assert sum(first["minutes"]) == 5
    assert first["minutes"][-1] == 2
    assert first["perMinute"] == pytest.approx(2.5)
    assert first["example"]["error"] == "ValueError: row 70 of 'b.csv'"
    assert first["example"]["stack"] == "Traceback\n  line 7"
    assert (second["errorType"], second["failures"], second["kept"]) == ("KeyError", 1, 1)


def test_what_is_kept_is_exact_whichever_way_dead_letters_go(driver: Driver) -> None:
    ids = fail(driver, "boom {}", 6)
    assert groups(driver)[0]["kept"] == 6
    driver.ask(cmd="RemoveDlqJob", queue="q", jobId=ids[0])
    driver.ask(cmd="RetryDlq", queue="q", jobId=ids[1])
    assert groups(driver)[0]["kept"] == 4
    fail(driver, "boom {}", 1)  # the one that was retried
    assert groups(driver)[0]["kept"] == 5
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxEntries": 3})
    fail(driver, "other")
    for _ in range(5):
        driver.tick(driver.now + 1)
    assert sum(group["kept"] for group in groups(driver)) == driver.ask(cmd="CountDlq", queue="q")["count"]
    driver.ask(cmd="PurgeDlq", queue="q")
    assert [group["kept"] for group in groups(driver)] == [0, 0]


def test_all_dead_letters_are_in_a_group(driver: Driver) -> None:
    fail(driver, None)
    driver.ask(cmd="Discard", id=driver.push())
    late = driver.push(timeout=5, maxAttempts=1)
    driver.ask(cmd="PULL", queue="q")
    driver.tick(driver.now + 6)
    again = driver.push(maxAttempts=2, backoff=0)
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=again, error="once", errorTypes=["E"])
    driver.ask(cmd="Discard", id=again)
    found = {group["pattern"]: group for group in groups(driver)}
    assert {pattern: group["kept"] for pattern, group in found.items()} == {
        "": 2,
        "Job timeout exceeded": 1,
        "once": 1,
    }
    assert found["Job timeout exceeded"]["outcomes"] == {"timeout": 1}
    assert found["once"]["errorType"] == "E"
    assert found["Job timeout exceeded"]["example"]["jobId"] == late


def test_a_restart_shows_the_same(driver: Driver) -> None:
    fail(driver, "boom {}", 3, errorTypes=["E"], owner="w")
    fail(driver, "else")
    driver.ask(cmd="SetErrorGroup", queue="q", group=kind_of("E", "boom 1"), muted=True)
    before = groups(driver)
    driver.restart()
    assert groups(driver) == before


def test_groups_of_failures_before_groups_were_counted_are_made_of_the_dead_letters(driver: Driver) -> None:
    began = driver.now
    (dead, *_) = fail(driver, "boom {}", 3, errorTypes=["E"], stack="trace")
    driver.shard.engine.state.errors.__init__()
    (group,) = groups(driver)
    assert (group["failures"], group["dead"], group["kept"], group["errorType"]) == (3, 3, 3, "E")
    assert (group["first"], group["example"]["jobId"], group["example"]["stack"]) == (began, dead, "trace")
    assert groups(driver) == [group]


def test_retry_and_remove_a_group(driver: Driver) -> None:
    fail(driver, "boom {}", 3)
    fail(driver, "other {}", 2)
    boom, other = (kind_of(None, text) for text in ("boom 1", "other 1"))
    which = {"errorGroup": boom}
    unknown = {"errorGroup": "0" * 12}
    assert driver.ask(cmd="RetryDlq", queue="q", filter=unknown)["count"] == 0
    assert all(group["resolved"] is None for group in groups(driver)), "nothing was dealt with"
    assert driver.ask(cmd="CountDlq", queue="q", filter=which)["count"] == 3
    assert len(driver.ask(cmd="Dlq", queue="q", filter=which)["entries"]) == 3
    assert driver.ask(cmd="RetryDlq", queue="q", filter=which)["count"] == 3
    found = {group["id"]: group for group in groups(driver)}
    assert (found[boom]["kept"], found[other]["kept"]) == (0, 2)
    assert found[boom]["resolved"] == driver.now
    assert driver.ask(cmd="PurgeDlq", queue="q", filter={"errorGroup": other})["count"] == 2
    assert driver.ask(cmd="CountDlq", queue="q")["count"] == 0
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["waiting"] == 3


def test_dead_letters_by_the_class_of_their_error(driver: Driver) -> None:
    fail(driver, "a", errorTypes=["httpx.ConnectTimeout", "OSError"])
    fail(driver, "b")
    for asked, count in (("ConnectTimeout", 1), ("httpx.ConnectTimeout", 1), ("OSError", 0), ("b", 0)):
        assert driver.ask(cmd="CountDlq", queue="q", filter={"errorType": asked})["count"] == count


def test_a_watched_group_is_reported_when_it_is_back(driver: Driver) -> None:
    driver.ask(cmd="Subscribe", queue="q", conn=7)

    def returns() -> list[dict[str, Any]]:
        found = driver.ask(cmd="GetEvents", types=["error-returned"])
        return found["events"]  # type: ignore[no-any-return]

    fail(driver, "boom 1")
    group = kind_of(None, "boom 1")
    driver.ask(cmd="SetErrorGroup", queue="q", group=group, watched=True)
    fail(driver, "boom 2")
    assert returns() == []  # it was never gone
    driver.tick(driver.now + QUIET_MS)
    fail(driver, "boom 3")
    (event,) = returns()
    assert (event["group"], event["error"], event["queue"], event["jobId"]) == (group, "boom 3", "q", "")
    fail(driver, "boom 4")
    assert len(returns()) == 1
    driver.ask(cmd="RetryDlq", queue="q", filter={"errorGroup": group})
    jobs = driver.ask(cmd="PULLB", queue="q", count=9)["jobs"]
    driver.ask(cmd="FAIL", id=jobs[0]["id"], error="boom 5")
    assert len(returns()) == 2
    driver.ask(cmd="SetErrorGroup", queue="q", group=group, muted=True, resolved=True)
    driver.ask(cmd="FAIL", id=jobs[1]["id"], error="boom 6")
    assert len(returns()) == 2  # a muted one is silent
    assert groups(driver)[0]["returned"] == driver.now


def test_groups_are_bounded_and_old_ones_make_room(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardproc.engine.lifecycle.error_groups.MAX_GROUPS", 3)
    for text in "abcdef":
        fail(driver, text, 2)
    found = {group["pattern"]: group["kept"] for group in groups(driver)}
    assert found == {"a": 2, "b": 2, "c": 2, "": 6}
    assert driver.ask(cmd="CountDlq", queue="q", filter={"errorGroup": "other"})["count"] == 6
    driver.tick(driver.now + GIVES_WAY_MS)
    fail(driver, "b")
    fail(driver, "g", 2)
    found = {group["pattern"]: group["failures"] for group in groups(driver)}
    assert found == {
        "b": 3,
        "c": 2,
        "g": 2,
        "": 8,
    }  # a, which was quiet for as long as c, is among the others
    assert sum(group["kept"] for group in groups(driver)) == 15
    driver.restart()
    assert sum(group["failures"] for group in groups(driver)) == 15
    names = {f"name-{n}": 1 for n in range(memory.MAX_EACH)}
    memory.tally(names, "another")
    assert names[memory.OTHER] == 1


def test_groups_are_forgotten_in_time_and_with_their_queue(driver: Driver) -> None:
    fail(driver, "a")
    fail(driver, "b")
    driver.ask(cmd="SetErrorGroup", queue="q", group=kind_of(None, "b"), muted=True)
    driver.ask(cmd="PurgeDlq", queue="q")
    driver.tick(driver.now + FORGOTTEN_MS)
    assert [group["pattern"] for group in groups(driver)] == ["b"]
    driver.push()
    driver.ask(cmd="Obliterate", queue="q")
    assert groups(driver) == []
    assert driver.shard.engine.state.errors.count == 0


def test_an_unknown_group_is_refused(driver: Driver) -> None:
    for command in ("GetErrorGroup", "SetErrorGroup"):
        answer = driver.ask(cmd=command, queue="q", group="0123456789ab")
        assert not answer["ok"]
        assert "no group of errors 0123456789ab" in answer["error"]


def test_errors_of_all_queues(driver: Driver) -> None:
    fail(driver, "boom", 2, queue="a")
    fail(driver, "boom", 1, queue="b")
    found = groups(driver, None)
    assert [(group["queue"], group["kept"]) for group in found] == [("a", 2), ("b", 1)]
    assert found[0]["id"] == found[1]["id"]
