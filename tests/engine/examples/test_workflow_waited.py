"""What a run is told of the waits that its last run ended for."""

from __future__ import annotations

from typing import Any

from engine.shard_driver import Driver


def take(driver: Driver) -> tuple[str, list[int] | None]:
    """The token of the next run, and what it is told."""
    taken: dict[str, Any] = driver.ask(cmd="PULL", queue="q", owner="w")
    return taken["token"], taken["job"]["workflow"].get("waited")


def wait(driver: Driver, job: str, token: str, name: str) -> None:
    step = {"id": job, "token": token, "name": name, "kind": "signal", "status": "waiting", "signal": name}
    assert driver.ask(cmd="RecordSteps", queue="q", steps=[step])["ok"]


def suspend(driver: Driver, job: str, token: str, *names: str) -> None:
    groups = [{"steps": [name]} for name in names]
    assert driver.ask(cmd="SuspendJob", queue="q", id=job, token=token, groups=groups) == {"ok": True}


def test_a_signal_before_the_end_of_the_run_is_seen_by_the_next(driver: Driver) -> None:
    job = driver.push(workflow=True)
    token, waited = take(driver)
    assert waited is None
    for name in ("a", "b", "c"):
        wait(driver, job, token, name)
    driver.ask(cmd="SendSignal", id=job, name="a")  # the worker has decided to end the run
    suspend(driver, job, token, "a", "b")
    token, waited = take(driver)
    assert waited == [1, 2]
    suspend(driver, job, token, "c")
    driver.ask(cmd="SendSignal", id=job, name="c")
    token, waited = take(driver)
    assert waited == [3, 3]
    driver.ask(cmd="FAIL", id=job, token=token, error="no", delay=0)
    driver.tick(driver.now + 60_000)
    _, waited = take(driver)
    assert waited is None, "the run that failed went on with it"


def test_it_is_known_after_a_restart(driver: Driver) -> None:
    job = driver.push(workflow=True)
    token, _ = take(driver)
    wait(driver, job, token, "a")
    suspend(driver, job, token, "a")
    driver.restart()
    driver.ask(cmd="SendSignal", id=job, name="a")
    _, waited = take(driver)
    assert waited == [1, 1]
