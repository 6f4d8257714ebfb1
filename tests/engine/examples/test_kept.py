"""What is set and stays is bounded, so that there is always memory for jobs; see `engine.memory.kept`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import ErrorReply
from bunqueue.protocol.commands.base import MAX_SHOWN
from shardproc.engine.all_handlers import RECORDS
from shardproc.engine.kept_kinds import KEPT
from shardproc.engine.memory import kept
from shardproc.engine.memory.kept import Bound

MANY = 5
NODE = {"name": "a", "queue": "more", "after": [], "input": {"data": {}}}
HOUR = 3_600_000


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(str(tmp_path / "jobs.db"))
    yield driver
    driver.close()


def few(driver: Driver) -> None:
    """Let the shard keep few of each kind."""
    driver.shard.engine.state.kept.bounds = {kind: bound._replace(most=MANY) for kind, bound in KEPT.items()}


# Kind -> the command that sets the n-th, the field that its refusal names, the command that takes it away.
SETTINGS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "breaker": (
        {"cmd": "SetBreaker", "queue": "q", "name": "n{}"}, "name",
        {"cmd": "ClearBreaker", "queue": "q", "name": "n{}"},
    ),
    "group": (
        {"cmd": "SetGroupConcurrency", "queue": "q", "groupId": "g{}", "concurrency": 1}, "groupId",
        {"cmd": "RemoveGroupConcurrency", "queue": "q", "groupId": "g{}"},
    ),
    "group-defaults": (
        {"cmd": "SetGroupDefaults", "queue": "q{}", "config": {"concurrency": 1}}, "queue",
        {"cmd": "SetGroupDefaults", "queue": "q{}", "config": {"concurrency": None}},
    ),
    "limits": (
        {"cmd": "SetConcurrency", "queue": "q{}", "limit": 1}, "queue",
        {"cmd": "ClearConcurrency", "queue": "q{}"},
    ),
    "pause": ({"cmd": "Pause", "queue": "q{}"}, "queue", {"cmd": "Resume", "queue": "q{}"}),
    "cron": (
        {"cmd": "Cron", "queue": "q", "name": "n{}", "repeatEvery": HOUR, "data": 1}, "name",
        {"cmd": "CronDelete", "name": "n{}"},
    ),
    "dlq": (
        {"cmd": "SetDlqConfig", "queue": "q{}", "config": {"maxEntries": 7}}, "queue",
        {"cmd": "Obliterate", "queue": "q{}", "force": True},
    ),
    "stall": (
        {"cmd": "SetStallConfig", "queue": "q{}", "config": {"maxStalls": 7}}, "queue",
        {"cmd": "Obliterate", "queue": "q{}", "force": True},
    ),
    "bounds": (
        {"cmd": "SetBounds", "queue": "q{}", "config": {"maxWaiting": 7}}, "queue",
        {"cmd": "Obliterate", "queue": "q{}", "force": True},
    ),
    "functions": (
        {"cmd": "DeclareFunctions", "queue": "q{}", "functions": [{"name": "f"}]}, "queue",
        {"cmd": "Obliterate", "queue": "q{}", "force": True},
    ),
    "signal_types": (
        {"cmd": "SetSignalTypes", "queue": "q{}", "workflows": {"w": {"paid": {"type": "boolean"}}}}, "queue",
        {"cmd": "Obliterate", "queue": "q{}", "force": True},
    ),
}  # fmt: skip


def refusal(driver: Driver, **command: Any) -> tuple[Any, ...]:
    """What a refusal says beside its text."""
    driver.shard.execute(driver.shard.client(1, 3), msgpack.packb(command), driver.now)
    ((_, reply),) = driver.shard.commit()
    assert isinstance(reply, ErrorReply), reply
    return (reply.code, reply.field, reply.value, reply.bound)


def numbered(command: dict[str, Any], number: int) -> dict[str, Any]:
    return {
        name: value.format(number) if isinstance(value, str) else value for name, value in command.items()
    }


def test_every_kind_that_is_set_has_a_bound() -> None:
    assert set(SETTINGS) == set(KEPT) <= set(RECORDS)


@pytest.mark.parametrize("kind", SETTINGS)
def test_more_than_that_many_are_refused_and_can_be_taken_away(driver: Driver, kind: str) -> None:
    setting, field, removal = SETTINGS[kind]
    few(driver)
    for number in range(MANY):
        driver.ask(cmd="PUSH", queue=numbered(setting, number)["queue"], data=1)
        assert driver.ask(**numbered(setting, number))["ok"]
    more = numbered(setting, MANY)
    for restarted in (False, True):
        if restarted:
            driver.restart()
            few(driver)
        assert refusal(driver, **more) == (Code.TOO_MANY_SETTINGS, field, more[field], MANY)
        assert "remove what is no longer needed" in driver.ask(**more)["error"]
        assert driver.ask(**numbered(setting, 0))["ok"], "one that is there may be changed"
        assert driver.ask(cmd="PUSH", queue="innocent", data=1)["ok"]
    assert driver.ask(**numbered(removal, 0))["ok"]
    while driver.shard.engine.work():
        pass
    assert driver.ask(**more)["ok"]


def test_a_refusal_changes_nothing(driver: Driver) -> None:
    few(driver)
    for kind, (setting, _, _) in SETTINGS.items():
        driver.shard.engine.state.kept.bounds = {**KEPT, kind: Bound(0, "things")}
        before = set(driver.shard.engine.state.queues)
        assert refusal(driver, **numbered(setting, 0))[0] == Code.TOO_MANY_SETTINGS
        assert set(driver.shard.engine.state.queues) == before, kind
    assert driver.ask(cmd="CronList")["crons"] == []
    assert driver.ask(cmd="ListBreakers")["breakers"] == []


def test_all_together_have_a_part_of_the_memory(driver: Driver) -> None:
    state = driver.shard.engine.state
    state.kept.memory = 1 << 20
    added = 0
    while driver.ask(cmd="SetBreaker", queue="q", name=(name := f"{added}{'n' * 200}"))["ok"]:
        added += 1
    assert 50 < added < 500
    refused = refusal(driver, cmd="SetBreaker", queue="q", name=name)
    assert refused == (Code.TOO_MANY_SETTINGS, "name", name[:MAX_SHOWN], (1 << 20) // 5)
    large = {"cmd": "Cron", "queue": "q", "name": "large", "repeatEvery": HOUR, "data": "x" * 1000}
    assert refusal(driver, **large)[:3] == (Code.TOO_MANY_SETTINGS, "name", "large")
    assert driver.ask(cmd="PUSH", queue="other", data=1)["ok"]
    size = state.kept.size
    driver.restart()
    assert driver.shard.engine.state.kept.size == size
    assert driver.ask(cmd="PUSH", queue="other", data=1)["ok"]
    for number in range(added):
        assert driver.ask(cmd="ClearBreaker", queue="q", name=f"{number}{'n' * 200}")["ok"]
    assert driver.shard.engine.state.kept.size == 0


def test_a_schedule_may_not_grow_without_end(driver: Driver) -> None:
    driver.shard.engine.state.kept.memory = 1 << 20
    schedule = {"cmd": "Cron", "queue": "q", "name": "c", "repeatEvery": HOUR}
    assert driver.ask(**schedule, data="x")["ok"]
    refused = refusal(driver, **schedule, data="x" * 300_000)
    assert refused[:3] == (Code.TOO_MANY_SETTINGS, "name", "c")
    assert driver.ask(cmd="CronGet", name="c")["cron"]["data"] == "x"


def test_there_are_so_many_queues(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_QUEUES", 3)
    for number in range(3):
        assert driver.ask(cmd="PUSH", queue=f"q{number}", data=1)["ok"]
    for command in (
        {"cmd": "PUSH", "queue": "more", "data": 1},
        {"cmd": "PUSHB", "queue": "more", "jobs": [{"data": 1}]},
        {"cmd": "Pause", "queue": "more"},
        {"cmd": "SetConcurrency", "queue": "more", "limit": 1},
        {"cmd": "SetBreaker", "queue": "more"},
        {"cmd": "SetGroupConcurrency", "queue": "more", "groupId": "g", "concurrency": 1},
        {"cmd": "AddFlow", "flow": "f", "nodes": [NODE]},
    ):  # fmt: skip
        refused = refusal(driver, **command)
        assert refused[0] == Code.TOO_MANY_QUEUES, command
        if command["cmd"] != "AddFlow":
            assert refused[1:] == ("queue", "more", 3), command
    assert driver.ask(cmd="PUSH", queue="q0", data=1)["ok"]
    due = {"cmd": "Cron", "queue": "of-schedule", "name": "c", "repeatEvery": HOUR, "data": 1}
    assert driver.ask(**due, immediately=True)["ok"]
    driver.tick(driver.now + 1)
    assert driver.ask(cmd="Count", queue="of-schedule")["count"] == 1, "what the server adds finds space"
    driver.restart()
    assert driver.ask(cmd="PUSH", queue="q0", data=1)["ok"]
    for queue in ("q0", "q1"):
        assert driver.ask(cmd="Obliterate", queue=queue, force=True)["ok"]
        while driver.shard.engine.work():
            pass
    assert driver.ask(cmd="PUSH", queue="more", data=1)["ok"]


def test_keys_of_ended_jobs_have_a_part_of_the_memory(driver: Driver) -> None:
    driver.shard.engine.state.kept.memory = 100_000
    push = {"cmd": "PUSH", "queue": "q", "data": 1, "dedup": {"states": ["completed"], "ttl": HOUR}}
    added = 0
    while driver.ask(**push, uniqueKey=f"{added}{'k' * 200}")["ok"]:
        taken = driver.ask(cmd="PULL", queue="q")
        assert driver.ask(cmd="ACK", id=taken["job"]["id"])["ok"]
        added += 1
    assert 5 < added < 50
    assert refusal(driver, **push, uniqueKey="more") == (Code.TOO_MANY_KEYS, "uniqueKey", added, added)
    assert driver.ask(cmd="PUSH", queue="q", data=1)["ok"]
    key = f"0{'k' * 200}"
    assert driver.ask(cmd="RemoveDeduplicationKey", queue="q", deduplicationId=key)["ok"]
    assert driver.ask(**push, uniqueKey=key)["ok"]


def test_while_memory_is_full_nothing_new_is_kept_but_what_exists_can_be_changed(driver: Driver) -> None:
    assert driver.ask(cmd="SetBreaker", queue="q", name="there")["ok"]
    driver.shard.engine.state.kept.refusal = "full"
    for command, field in (
        ({"cmd": "SetBreaker", "queue": "q", "name": "n"}, "name"),
        ({"cmd": "SetGroupConcurrency", "queue": "q", "groupId": "g", "concurrency": 1}, "groupId"),
        ({"cmd": "Pause", "queue": "new"}, "queue"),
    ):
        assert refusal(driver, **command)[:2] == (Code.MEMORY_LIMIT, field)
    assert driver.ask(cmd="SetBreaker", queue="q", name="there", config={"failures": 9})["ok"]
    assert driver.ask(cmd="Pause", queue="q")["ok"]
    assert driver.ask(cmd="SetConcurrency", queue="q", limit=1)["ok"]
    assert driver.ask(cmd="ClearBreaker", queue="q", name="there")["ok"]
