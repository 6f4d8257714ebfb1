"""The token of a former holder is worth nothing, also when the present one needs none."""

from __future__ import annotations

import pytest
from properties.shard_driver import Driver


@pytest.mark.parametrize("cmd", ["ACK", "FAIL"])
def test_an_old_token_decides_nothing_about_a_job_pulled_without_owner(cmd: str) -> None:
    driver = Driver()
    job_id = driver.ask(cmd="PUSH", queue="q", data=1)["id"]
    token = driver.ask(conn=2, cmd="PULL", queue="q", owner="w")["token"]
    driver.disconnect(2)
    assert driver.ask(conn=3, cmd="PULL", queue="q")["job"]["id"] == job_id
    refused = driver.ask(conn=4, cmd=cmd, id=job_id, token=token)
    assert refused["error"] == f"Invalid or expired lock token for job {job_id}"
    assert driver.ask(cmd="GetJob", id=job_id)["job"]["attempts"] == 0
    assert driver.ask(conn=3, cmd=cmd, id=job_id, token="anything") == {"ok": True}
    driver.close()
