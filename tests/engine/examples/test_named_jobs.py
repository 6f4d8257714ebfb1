"""Jobs that know which identity has added them, beside jobs that do not: in the same batch, on disk, and in
the file that another host builds from the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import msgspec
from engine.shard_driver import Driver

from bunqueue.model.rights import ROLES, Identity
from bunqueue.model.scope import scope_of

SHOP, LOADER, PLAIN = 2, 3, 1  # connections


def named(path: str = ":memory:") -> Driver:
    driver = Driver(path)
    for conn, identity in (
        (SHOP, Identity("shop", ROLES["producer"], ("q*",))),
        (LOADER, Identity("loader", ROLES["admin"])),
    ):
        driver.shard.client(conn, 2).act_for(scope_of(identity))
    return driver


def together(driver: Driver, *requests: tuple[int, dict[str, Any]]) -> list[Any]:
    """Replies to commands of several connections in one transaction."""
    found = [driver.execute(conn, msgpack.packb(request))[0][1] for conn, request in requests]
    driver.commit()
    assert all(reply["ok"] for reply in found), found
    return found


def adders(driver: Driver, ids: list[str]) -> list[Any]:
    return [driver.job(job_id).get("addedBy") for job_id in ids]


def test_of_each_job_in_a_batch(tmp_path: Path) -> None:
    driver = named(str(tmp_path / "shard.db"))
    push, bulk = (
        {"cmd": "PUSH", "queue": "q", "data": 1},
        {"cmd": "PUSHB", "queue": "q", "jobs": [{"data": 1}] * 2},
    )
    replies = together(
        driver,
        (SHOP, push),
        (PLAIN, push),
        (LOADER, bulk),
        (PLAIN, bulk),
        (SHOP, {**push, "delay": 5000}),
        (LOADER, {**push, "maxAttempts": 9}),
        (SHOP, {**push, "queue": "q2", "priority": 7}),
    )
    ids = [job_id for reply in replies for job_id in reply.get("ids") or [reply["id"]]]
    expected = ["shop", None, "loader", "loader", None, None, "shop", "loader", "shop"]
    assert adders(driver, ids) == expected
    rows = driver.rows("select options from jobs order by seq")
    stored = [options and msgspec.msgpack.decode(options) for (options,) in rows]
    assert [options and options.get("added_by") for options in stored] == expected
    assert stored[0] == {"added_by": "shop"}, "no option that is at its default"
    driver.restart()
    assert adders(driver, ids) == expected
    driver.close()


def test_what_happens_in_the_batch_of_the_push() -> None:
    driver = named()
    push = {"cmd": "PUSH", "queue": "q", "data": 1}
    kept, gone = (driver.execute(SHOP, msgpack.packb(push))[0][1]["id"] for _ in range(2))
    driver.execute(LOADER, msgpack.packb({"cmd": "Cancel", "id": gone}))
    ((_, pulled),) = driver.execute(LOADER, msgpack.packb({"cmd": "PULL", "queue": "q", "owner": "w"}))
    driver.commit()
    assert (pulled["job"]["id"], pulled["job"]["addedBy"]) == (kept, "shop")
    together(driver, (LOADER, {"cmd": "FAIL", "id": kept, "token": pulled["token"], "error": "no"}))
    assert adders(driver, [kept]) == ["shop"]
    assert driver.rows("select count(*) from jobs") == [(1,)]
    driver.close()


def test_a_connection_that_becomes_somebody_else() -> None:
    driver = named()
    push = {"cmd": "PUSH", "queue": "q", "data": 1}
    client = driver.shard.client(SHOP, 2)
    (first,) = together(driver, (SHOP, push))
    client.act_for(scope_of(Identity("other", ROLES["producer"])))
    (second,) = together(driver, (SHOP, push))
    client.act_for(None)
    (third,) = together(driver, (SHOP, push))
    assert adders(driver, [first["id"], second["id"], third["id"]]) == ["shop", "other", None]
    driver.close()
