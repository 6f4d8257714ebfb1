"""Webhooks on their shard: checked, listed without secrets, kept over restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine.shard_driver import Driver

from shardproc.engine.handlers.webhooks import MAX_WEBHOOKS

HOOK: dict[str, Any] = {"cmd": "AddWebhook", "url": "https://example.com/", "events": ["job.completed"]}


def hooks(driver: Driver) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = driver.ask(cmd="ListWebhooks")["data"]["webhooks"]
    return found


def test_life_of_a_webhook(tmp_path: Path) -> None:
    path = str(tmp_path / "shard.db")
    driver = Driver(path)
    added = driver.ask(**{**HOOK, "queue": "q", "secret": "s3cret", "events": ["job.failed", "job.failed"]})
    webhook = added["data"]["webhookId"]
    other = driver.ask(**HOOK)["data"]["webhookId"]
    assert driver.ask(cmd="SetWebhookEnabled", id=webhook, enabled=False) == {"ok": True}
    before = hooks(driver)
    assert [hook["id"] for hook in before] == [webhook, other]
    assert before[0] == {
        "id": webhook,
        "url": "https://example.com/",
        "events": ["job.failed"],
        "queue": "q",
        "createdAt": float(driver.now),
        "lastTriggered": None,
        "successCount": 0,
        "failureCount": 0,
        "enabled": False,
        "lastError": None,
    }
    driver.close()

    again = Driver(path)
    assert hooks(again) == before
    assert again.shard.engine.state.webhooks[webhook].secret == "s3cret"
    assert again.ask(cmd="ListWebhooks")["data"]["stats"] == {
        "total": 2,
        "enabled": 1,
        "successCount": 0,
        "failureCount": 0,
    }
    assert again.ask(cmd="RemoveWebhook", webhookId=webhook) == {"ok": True, "data": {"removed": True}}
    again.close()
    last = Driver(path)
    assert [hook["id"] for hook in hooks(last)] == [other]
    last.close()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"url": "http://127.0.0.1/"}, "Webhook URL cannot point to localhost"),
        ({"url": ""}, "Webhook URL is required"),
        ({"events": []}, "events must name at least one event. Valid: job.pushed,"),
        ({"events": ["job.failed", "a", "b"]}, "Invalid webhook event(s): a, b. Valid: job.pushed,"),
        ({"queue": "not good"}, "Queue name contains invalid characters"),
        ({"secret": "s" * 1025}, "secret must be at most 1024 characters"),
    ],
)
def test_refused_ones_leave_nothing(change: dict[str, Any], error: str) -> None:
    driver = Driver()
    reply = driver.ask(**{**HOOK, **change})
    assert not reply["ok"]
    assert reply["error"].startswith(error)
    assert hooks(driver) == []
    assert driver.rows("select * from records") == []


def test_there_are_so_many_at_most() -> None:
    driver = Driver()
    replies = driver.batch(HOOK for _ in range(MAX_WEBHOOKS + 1))
    assert [reply["ok"] for reply in replies] == [True] * MAX_WEBHOOKS + [False]
    assert f"max {MAX_WEBHOOKS}" in replies[-1]["error"]


def test_unknown_ones() -> None:
    driver = Driver()
    unknown = {"ok": False, "error": "Webhook not found"}
    assert driver.ask(cmd="RemoveWebhook", webhookId="x") == unknown
    assert driver.ask(cmd="SetWebhookEnabled", id="x", enabled=True) == unknown
