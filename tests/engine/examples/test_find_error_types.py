"""Jobs by the class of their last error: dead letters, and jobs that wait for another attempt."""

from __future__ import annotations

from typing import Any

from engine.shard_driver import Driver


def found(driver: Driver, **which: Any) -> list[str]:
    return [job["id"] for job in driver.ask(cmd="FindJobs", **which)["jobs"]]


def test_jobs_by_the_class_of_their_last_error(driver: Driver) -> None:
    ids = {name: driver.push(name=name, maxAttempts=most) for name, most in (("dead", 1), ("again", 3))}
    classes = {"dead": ["httpx.ConnectTimeout"], "again": ["KeyError"]}
    for job in driver.ask(cmd="PULLB", queue="q", count=9)["jobs"]:
        driver.ask(cmd="FAIL", id=job["id"], error="e", errorTypes=classes[job["name"]])
    driver.push(name="fresh")
    done = driver.push(name="done", priority=9)
    driver.ask(cmd="ACK", id=driver.ask(cmd="PULL", queue="q")["job"]["id"])
    for where, names in (
        ("error_type = ConnectTimeout", ["dead"]),
        ("error_type = httpx.ConnectTimeout", ["dead"]),
        ("error_type = Timeout", []),
        ("error_type = other.ConnectTimeout", []),
        ("error_type ~ timeout", ["dead"]),
        ("error_type in (KeyError, ConnectTimeout)", ["again", "dead"]),
        ("error_type = KeyError and state = delayed", ["again"]),
        ("error_type = KeyError and state = failed", []),
    ):
        for queue in ({}, {"queue": "q"}):
            assert found(driver, where=where, **queue) == [ids[name] for name in names], where
    assert found(driver, errorType="KeyError") == [ids["again"]]
    assert done in found(driver, where="error_type != KeyError")
    assert ids["again"] not in found(driver, where="error_type != KeyError")
    driver.restart()
    assert found(driver, errorType="KeyError", queue="q") == [ids["again"]]
    driver.ask(cmd="RetryDlq", queue="q")
    assert found(driver, errorType="ConnectTimeout") == []
