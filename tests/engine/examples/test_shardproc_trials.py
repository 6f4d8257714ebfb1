"""TestWebhook on its shard: parked for the gateway, which is told once, and answered in any case."""

from __future__ import annotations

from typing import Any

import msgpack
from engine.shard_driver import Answer, Driver

HOOK: dict[str, Any] = {"cmd": "AddWebhook", "url": "https://example.com/", "events": ["job.completed"]}
DATA = {"delivered": True, "status": 204, "error": None, "durationMs": 5.0}
GATEWAY, CLIENT = 7, 8


def say(driver: Driver, conn: int = CLIENT, **request: Any) -> list[Answer]:
    """The answers to a command that may park."""
    found = driver.execute(conn, msgpack.packb(request))
    driver.commit()
    return found


def trials(driver: Driver) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = driver.ask(GATEWAY, cmd="GetDeliveries")["trials"]
    return found


def test_nobody_delivers() -> None:
    driver = Driver()
    hook = driver.ask(**HOOK)["data"]["webhookId"]
    assert "--http-port" in driver.ask(cmd="TestWebhook", webhookId=hook)["error"]
    assert driver.ask(cmd="TestWebhook", webhookId="none")["error"] == "Webhook not found"
    assert "at most 60000" in driver.ask(cmd="TestWebhook", webhookId=hook, timeout=60_001)["error"]
    driver.close()


def test_it_is_told_once_and_answered_once() -> None:
    driver = Driver()
    hook = driver.ask(**HOOK)["data"]["webhookId"]
    assert trials(driver) == []
    assert say(driver, cmd="TestWebhook", webhookId=hook, reqId="mine") == []
    ((number, told),) = [each.values() for each in trials(driver)]
    assert told == hook
    assert trials(driver) == []
    answers = say(driver, GATEWAY, cmd="RecordTrial", trial=number, data=DATA)
    assert answers == [(CLIENT, {"ok": True, "data": DATA, "reqId": "mine"}), (GATEWAY, {"ok": True})]
    assert say(driver, GATEWAY, cmd="RecordTrial", trial=number, data=DATA) == [(GATEWAY, {"ok": True})]
    assert driver.shard.engine.state.clients[CLIENT].slow == 1
    assert driver.tick(driver.now + 60_000) == []
    driver.close()


def test_the_gateway_goes_away() -> None:
    driver = Driver()
    hook = driver.ask(**HOOK)["data"]["webhookId"]
    trials(driver)
    for conn in (CLIENT, CLIENT + 1):
        assert say(driver, conn, cmd="TestWebhook", webhookId=hook, timeout=5000) == []
    driver.disconnect(CLIENT + 1)
    assert driver.shard.engine.next_deadline() <= driver.now + 5000
    ((conn, answer),) = driver.tick(driver.now + 5000)
    assert (conn, answer["ok"], answer["data"]["delivered"]) == (CLIENT, True, False)
    assert "in time" in answer["data"]["error"]
    assert driver.shard.engine.state.trials.parked == {}
    driver.close()


def delivers(driver: Driver, name: str, has: bool = False) -> bool:
    return bool(driver.ask(GATEWAY, cmd="GetDeliveries", deliverer=name, delivers=has)["delivers"])


def test_one_of_several_gateways_delivers() -> None:
    driver = Driver()
    driver.ask(**HOOK)
    assert not delivers(driver, "a"), "a shard that has just started waits for one that may be delivering"
    driver.tick(driver.now + 2_999)
    assert not delivers(driver, "b")
    driver.tick(driver.now + 1)
    assert delivers(driver, "b")
    driver.tick(driver.now + 2_000)
    assert not delivers(driver, "a", True), "it was silent for too long"
    assert delivers(driver, "b", True)
    driver.tick(driver.now + 3_000)
    assert delivers(driver, "a"), "b is silent"
    denied = driver.ask(GATEWAY, cmd="GetDeliveries", deliverer="b", delivers=True)
    assert (denied["webhooks"], denied["trials"], denied["delivers"]) == ([], [], False)
    driver.close()


def test_the_gateway_that_delivers_goes_on_when_the_shard_has_another_owner() -> None:
    driver = Driver()
    assert delivers(driver, "a", True)
    assert not delivers(driver, "b")
    driver.close()
