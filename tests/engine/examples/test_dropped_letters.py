"""Dead messages that nobody removed: each is told of, counted for good, and remembered for who asks."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver
from engine.shard_world import QUEUES, World

from bunqueue.model.dead_letters import DlqConfig
from shardproc import dropped_letters as dropped_log
from shardproc.engine.lifecycle import dropped_letters as rules

V3 = 3
DAY, MINUTE = 86_400_000, 60_000


def die(driver: Driver, count: int = 1, queue: str = "q", **options: Any) -> list[str]:
    ids = [driver.ask(cmd="PUSH", queue=queue, maxAttempts=1, **options)["id"] for _ in range(count)]
    driver.ask(cmd="PULLB", queue=queue, count=1000)
    for number, job_id in enumerate(ids):
        driver.ask(cmd="FAIL", id=job_id, error=f"boom {number}")
    driver.tick(driver.now)
    driver.commit()
    return ids


def events(driver: Driver, kind: str = "dropped") -> list[tuple[str, str, str]]:
    found = driver.ask(cmd="GetEvents", types=[kind], limit=10_000)["events"]
    return [(event["jobId"], event["reason"], event["error"]) for event in found]


def dropped(driver: Driver, queue: str = "q") -> tuple[int, int]:
    found = driver.ask(cmd="GetDlqConfig", queue=queue)["dropped"]
    assert found == driver.ask(cmd="GetDlqStats", queue=queue)["data"]["stats"]["dropped"]
    assert (found["firstAt"] is None) == (found["lastAt"] is None) == (not found["tooMany"] + found["tooOld"])
    return found["tooMany"], found["tooOld"]


def of_server(driver: Driver, **bounds: Any) -> None:
    driver.shard.engine.state.maintenance.dead_letters = DlqConfig(**bounds)


def test_beyond_the_bound_each_is_told_of_and_counted(driver: Driver) -> None:
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxEntries": 3})
    assert dropped(driver) == (0, 0)
    assert "dropped" not in driver.ask(cmd="Dlq", queue="q")
    ids = die(driver, 5)
    assert events(driver) == [(ids[0], "max_entries", "boom 0"), (ids[1], "max_entries", "boom 1")]
    assert events(driver, "purged") == []
    first = driver.now
    driver.keep_up(MINUTE)
    ids += die(driver, 2)
    assert dropped(driver) == (4, 0)
    driver = driver.restarted()
    assert dropped(driver) == (4, 0)
    answer = driver.ask(cmd="Dlq", queue="q")
    assert [job["id"] for job in answer["jobs"]] == ids[4:]
    assert answer["dropped"] == {"tooMany": 4, "tooOld": 0, "firstAt": first, "lastAt": first + MINUTE}
    overview = driver.ask(cmd="DashboardQueues")["data"]["queues"]
    assert overview[0]["dropped"] == answer["dropped"]
    driver.close()


def test_old_ones_count_but_not_those_that_were_meant_to_go(driver: Driver) -> None:
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxAge": DAY})
    (short,), (usual,) = die(driver, keepFailed=MINUTE), die(driver)
    driver.keep_up(2 * MINUTE)
    assert events(driver) == [(short, "keep_failed", "boom 0")]
    assert dropped(driver) == (0, 0)
    driver.keep_up(DAY + 2 * MINUTE)
    assert events(driver)[1:] == [(usual, "max_age", "boom 0")]
    assert dropped(driver) == (0, 1)


def test_who_asks_for_one_is_told(driver: Driver) -> None:
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxEntries": 1})
    driver.now = 1_700_000_000_000
    gone, kept = die(driver, 2)
    said = (
        "Job not found: it was a dead letter of queue 'q', and was dropped at 2023-11-14 22:13:20 UTC as "
        "there were more than 1 (max_entries); its error: boom 0"
    )
    for _ in range(2):
        for request in ({"cmd": "GetJob"}, {"cmd": "WaitJob", "timeout": 0}, {"cmd": "GetAttempts"}):
            assert driver.ask(id=gone, **request) == {"ok": False, "error": said}
        (end,) = driver.ask(cmd="WaitJobs", queue="q", ids=[gone], timeout=0)["ended"]
        assert (end["state"], end["error"], end["reason"]) == ("failed", "boom 0", "max_attempts_exceeded")
        found = driver.ask(cmd="GetState", id=gone)
        assert (found["state"], found["explanation"]) == ("unknown", said.removeprefix("Job not found: "))
        driver = driver.restarted()
    assert driver.ask(cmd="GetJob", id=kept)["ok"]
    assert driver.ask(cmd="GetJob", id="never")["error"] == "Job not found"
    driver.close()


def test_only_the_last_ones_are_remembered(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_KNOWN", 3)
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxEntries": 1})
    ids = die(driver, 6)
    for _ in range(2):
        known = [":" in driver.ask(cmd="GetJob", id=job_id).get("error", "") for job_id in ids]
        assert known == [False, False, True, True, True, False]
        assert len(driver.rows("select key from records where kind = 'dropped-letter'")) == 3
        driver = driver.restarted()
    assert list(driver.shard.engine.state.dropped.known) == ids[2:5], "in the order in which they went"
    driver.close()


def test_an_id_may_have_another_life(driver: Driver) -> None:
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxEntries": 1})
    die(driver, jobId="mine")
    die(driver)
    assert "dropped at" in driver.ask(cmd="GetJob", id="mine")["error"]
    driver.ask(cmd="PUSH", queue="q", jobId="mine")
    assert driver.ask(cmd="GetJob", id="mine")["ok"]
    driver.ask(cmd="Cancel", id="mine")
    assert driver.ask(cmd="GetJob", id="mine")["error"] == "Job not found"


def test_the_server_has_a_bound_for_queues_that_have_none(driver: Driver) -> None:
    of_server(driver, max_entries=2, max_age=DAY)
    driver.ask(cmd="SetDlqConfig", queue="auto", config={"autoRetry": True})
    driver.ask(cmd="SetDlqConfig", queue="own", config={"maxEntries": 4, "maxAge": 2 * DAY})
    driver.ask(cmd="SetDlqConfig", queue="all", config={"maxEntries": 0, "maxAge": None})
    driver.execute(1, msgpack.packb({"cmd": "SetDlqConfig", "queue": "all", "config": {"maxAge": None}}))
    driver.commit()
    queues = {"q": 3, "auto": 3, "own": 1, "all": 0}
    for queue in queues:
        die(driver, 5, queue)
    assert {queue: dropped(driver, queue)[0] for queue in queues} == queues
    for name, config in (("auto", (2, DAY)), ("own", (4, 2 * DAY)), ("all", (0, None))):
        found = driver.ask(cmd="GetDlqConfig", queue=name)["config"]
        assert (found["maxEntries"], found["maxAge"]) == config
    reply = {"cmd": "SetDlqConfig", "queue": "own", "config": {"maxEntries": None}, "reqId": "r"}
    assert driver.execute(1, msgpack.packb(reply))[0][1]["ok"]
    assert driver.ask(cmd="GetDlqConfig", queue="own")["config"]["maxEntries"] == 2, "as the server says"
    driver.keep_up(DAY + 2 * MINUTE)
    assert [dropped(driver, queue)[1] for queue in ("q", "own", "all")] == [2, 0, 0]


def test_retry_all_says_how_many_were_gone(driver: Driver) -> None:
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxEntries": 2})
    ids = die(driver, 5)
    assert "dropped" not in driver.ask(cmd="RetryDlq", queue="q", jobId=ids[4])
    assert "dropped" not in driver.ask(cmd="RetryDlq", queue="q", filter={"reason": "stalled"})
    reply = driver.ask(cmd="RetryDlq", queue="q")
    assert (reply["count"], reply["dropped"]["tooMany"]) == (1, 3)


def test_a_purge_begins_anew_and_an_obliterate_forgets(driver: Driver) -> None:
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxEntries": 1})
    gone = die(driver, 3)[0]
    assert driver.ask(cmd="PurgeDlq", queue="q")["count"] == 1
    driver = driver.restarted()
    assert dropped(driver) == (0, 0)
    assert "dropped at" in driver.ask(cmd="GetJob", id=gone)["error"]
    die(driver, 2)
    assert dropped(driver) == (1, 0)
    driver.ask(cmd="Obliterate", queue="q")
    assert driver.ask(cmd="GetJob", id=gone)["error"] == "Job not found"
    assert driver.rows("select kind from records") == []
    driver.close()


def test_an_unused_queue_stays_for_a_week_so_that_somebody_sees_it(driver: Driver) -> None:
    of_server(driver, max_age=float(MINUTE))
    die(driver)
    driver.keep_up(10 * MINUTE)
    assert dropped(driver) == (0, 1)
    driver = driver.restarted()
    assert driver.ask(cmd="ListQueues")["queues"] != []
    driver.keep_up(7 * DAY)
    assert driver.ask(cmd="ListQueues")["queues"] == []
    assert driver.rows("select key from records where kind = 'dropped'") == []
    driver.close()


def test_subscribers_hear_of_it(driver: Driver) -> None:
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxEntries": 1})
    driver.ask(V3, cmd="SubscribeEvents", queue="q")
    driver.ask(cmd="PUSH", queue="q", removeOnComplete=True)
    driver.ask(cmd="ACK", id=driver.ask(cmd="PULL", queue="q")["job"]["id"])
    ids = [driver.ask(cmd="PUSH", queue="q", maxAttempts=1)["id"] for _ in range(2)]
    driver.ask(cmd="PULLB", queue="q", count=2)
    heard: list[dict[str, Any]] = []
    for job_id in ids:
        driver.ask(cmd="FAIL", id=job_id, error="boom")
    driver.shard.published.clear()
    driver.tick(driver.now)
    driver.shard.commit()
    for published in driver.shard.published.values():
        heard += [msgpack.unpackb(frame[4:])["event"] for frame in published.frames]
    assert [(event["eventType"], event["jobId"], event["reason"], event["error"]) for event in heard] == [
        ("dropped", ids[0], "max_entries", "boom")
    ]


def test_the_log_has_a_line_a_minute_for_each_queue(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(dropped_log, "_log", SimpleNamespace(warning=lambda _, **more: lines.append(more)))
    log, of_server_ = dropped_log.DroppedLog(), driver.shard.engine.state.dropped
    of_server(driver, max_entries=1)
    die(driver, 4, "a")
    die(driver, 2, "b")
    log.log_due(of_server_, driver.now)
    assert lines == [
        {"queue": "a", "too_many": 3, "too_old": 0},
        {"queue": "b", "too_many": 1, "too_old": 0},
    ]
    for second in range(60):
        die(driver, 1, "a")
        log.log_due(of_server_, driver.now + 1000 * second)
    assert len(lines) == 2
    log.log_due(of_server_, driver.now + MINUTE)
    assert lines[2:] == [{"queue": "a", "too_many": 60, "too_old": 0}]
    for number in range(50):
        die(driver, 2, f"q{number}")
    log.log_due(of_server_, driver.now + 3 * MINUTE)
    assert len(lines) == 3 + dropped_log.MAX_LINES + 1
    assert lines[-1] == {"queues": 50 - dropped_log.MAX_LINES, "letters": 50 - dropped_log.MAX_LINES}


@pytest.mark.parametrize("shards", [2])
def test_chosen_ids_are_remembered_where_they_point(tmp_path: Path, shards: int) -> None:
    world = World(tmp_path, shards, seed=1, crash_rate=0.0)
    queue = QUEUES[0]
    world.ask(cmd="SetDlqConfig", queue=queue, config={"maxEntries": 1})
    ids = [f"mine-{number}" for number in range(8)]
    for job_id in ids:
        world.ask(cmd="PUSH", queue=queue, jobId=job_id, maxAttempts=1, data=1)
        world.settle()
        assert (world.ask(cmd="PULL", queue=queue) or {})["job"]["id"] == job_id
        world.ask(cmd="FAIL", id=job_id, error="boom")
        for number, shard in enumerate(world.shards):
            shard.engine.tick(world.now)
            world.finish(number)
        world.settle()
    for job_id in ids[:-1]:
        assert re.search("dropped at .*boom$", (world.ask(cmd="GetJob", id=job_id) or {})["error"]), job_id
        (end,) = (world.ask(cmd="WaitJobs", queue=queue, ids=[job_id], timeout=0) or {})["ended"]
        assert (end["state"], end["error"]) == ("failed", "boom")
    assert (world.ask(cmd="GetJob", id=ids[-1]) or {})["ok"]
    for job_id in ids:
        world.ask(cmd="PUSH", queue=queue, jobId=job_id, data=2)
        world.settle()
        assert (world.ask(cmd="GetJob", id=job_id) or {})["ok"]
    world.close()
