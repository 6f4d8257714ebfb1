"""Jobs whose connection is gone: an attempt is charged only to who has shown that he got the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine.shard_driver import Driver


def delivered(driver: Driver, **push: Any) -> tuple[str, str]:
    """A job that was pulled with a lock of a second: its id and token."""
    job_id = driver.ask(cmd="PUSH", queue="q", **push)["id"]
    return job_id, driver.ask(cmd="PULL", queue="q", owner="w", lockTtl=1000)["token"]


def severed(path: Path) -> tuple[Driver, str, str]:
    """The server cut the connection that the job went to."""
    driver = Driver(str(path / "one.db"))
    job_id, token = delivered(driver, maxAttempts=1)
    driver.disconnect(1, severed=True)
    return driver, job_id, token


def crashed(path: Path) -> tuple[Driver, str, str]:
    """The shard died with the reply, and the connection with it."""
    driver = Driver(str(path / "one.db"))
    job_id, token = delivered(driver, maxAttempts=1)
    driver.close()
    return Driver(str(path / "one.db"), now=driver.now), job_id, token


ends = pytest.mark.parametrize("end", [severed, crashed], ids=lambda end: end.__name__)


@ends
def test_a_delivery_that_may_be_lost_costs_nothing(end: Any, tmp_path: Path) -> None:
    driver, job_id, token = end(tmp_path)
    driver.tick(driver.now + 6000)
    job = driver.ask(cmd="GetJob", id=job_id)["job"]
    assert (job["state"], job["attempts"], job["stallCount"]) == ("waiting", 0, 0)
    driver.close()
    driver = Driver(driver.path, now=driver.now)
    late = driver.ask(cmd="ACK", id=job_id, token=token)
    driver.close()
    assert late["ok"]


@ends
def test_the_late_token_ends_with_the_next_delivery(end: Any, tmp_path: Path) -> None:
    driver, job_id, token = end(tmp_path)
    driver.tick(driver.now + 6000)
    assert driver.ask(cmd="PULL", queue="q")["job"]["id"] == job_id
    driver.disconnect(1)
    late = driver.ask(cmd="ACK", id=job_id, token=token)
    driver.close()
    assert not late["ok"]


@ends
def test_who_showed_that_he_had_the_job_is_charged(end: Any, tmp_path: Path) -> None:
    driver, job_id, token = end(tmp_path)
    assert driver.ask(2, cmd="JobHeartbeat", id=job_id, token=token)["ok"]
    driver.tick(driver.now + 6000)
    job = driver.ask(cmd="GetJob", id=job_id)["job"]
    driver.close()
    assert (job["state"], job["attempts"], job["stallCount"]) == ("failed", 1, 1)
