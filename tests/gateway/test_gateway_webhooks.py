"""Webhooks against a real receiver: order, signature, repeats, restarts, and what may not be called."""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.receiver import Receiver, receiving
from support.server import Server, dispose, quiet_port
from support.waiting import eventually, wait_until
from support.warm import COMMAND, ROOT, run
from support.web import client, fresh_queue
from support.wire import Wire

from bunqueue.model.errors_alike import kind_of

SECRET = "hush"


@pytest.fixture(scope="module")
def calling_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose webhooks may lead to this machine."""
    server = Server(
        tmp_path_factory.mktemp("calling") / "data", "--webhook-addresses", "any", http_port=quiet_port()
    )
    try:
        server.start()
        yield server
    finally:
        dispose(server)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


async def add(wire: Wire, receiver: Receiver, queue: str | None, *events: str, **more: Any) -> str:
    added = await wire.ok("AddWebhook", url=receiver.url, queue=queue, events=list(events), **more)
    webhook_id: str = added["data"]["webhookId"]
    return webhook_id


async def known(wire: Wire, webhook_id: str) -> dict[str, Any]:
    listed = (await wire.ok("ListWebhooks"))["data"]["webhooks"]
    return next(each for each in listed if each["id"] == webhook_id)


async def run_job(wire: Wire, queue: str, **outcome: Any) -> str:
    job: str = (await wire.ok("PUSH", queue=queue, data=1, maxAttempts=1))["id"]
    assert (await wire.ok("PULL", queue=queue))["job"]["id"] == job
    await wire.ok("FAIL" if "error" in outcome else "ACK", id=job, **outcome)
    return job


async def test_events_arrive_in_order_and_signed(calling_server: Server, receiver: Receiver) -> None:
    queue = fresh_queue(1)
    async with await Wire.open(calling_server.address) as wire:
        hook = await add(wire, receiver, queue, "job.pushed", "job.started", "job.failed", secret=SECRET)
        job = await run_job(wire, queue, error="no luck")
        await wire.ok("PUSH", queue=fresh_queue(1), data="of another queue")
        await wire.ok("PUSH", queue=queue, data="the last")
        messages = receiver.wait_for(4)
        assert [each["event"] for each in messages] == [
            "job.pushed",
            "job.started",
            "job.failed",
            "job.pushed",
        ]
        assert {each["queue"] for each in messages} == {queue}
        assert [each["jobId"] for each in messages[:3]] == [job] * 3
        assert messages[2]["data"]["error"] == "no luck"
        assert abs(messages[0]["timestamp"] - time.time() * 1000) < 60_000
        for each in receiver.deliveries:
            assert each.headers["x-bunqueue-event"] == each.message["event"]
            assert each.headers["x-bunqueue-delivery"] == each.message["id"]
            stamp, _, given = each.headers["x-bunqueue-signature"].partition(",v1=")
            signed = stamp.removeprefix("t=").encode() + b"." + each.body
            assert given == hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()

        async def counted() -> bool:
            found = await known(wire, hook)
            return found["successCount"] == 4 and found["lastTriggered"] is not None

        await eventually(counted, "the deliveries are counted")


async def test_one_that_fails_is_repeated_and_holds_up_the_others(
    calling_server: Server, receiver: Receiver
) -> None:
    queue = fresh_queue(0)
    receiver.statuses = [500, 302]
    async with await Wire.open(calling_server.address) as wire:
        hook = await add(wire, receiver, queue, "job.pushed")
        jobs = [(await wire.ok("PUSH", queue=queue, data=n))["id"] for n in range(3)]
        assert [each["jobId"] for each in receiver.wait_for(3)] == jobs
        tried = [each.message["jobId"] for each in receiver.deliveries]
        assert tried == [jobs[0]] * 3 + jobs[1:]
        assert len({each.message["id"] for each in receiver.deliveries}) == 3
        assert "x-bunqueue-signature" not in receiver.deliveries[0].headers

        async def counted() -> bool:
            found = await known(wire, hook)
            return (found["successCount"], found["failureCount"], found["lastError"]) == (3, 2, None)

        await eventually(counted, "attempts are counted")


async def test_a_receiver_that_wants_no_more_is_left_alone(
    calling_server: Server, receiver: Receiver
) -> None:
    queue = fresh_queue(0)
    receiver.status = 410
    async with await Wire.open(calling_server.address) as wire:
        hook = await add(wire, receiver, queue, "job.pushed")
        await wire.ok("PUSH", queue=queue, data=1)

        async def off() -> bool:
            found = await known(wire, hook)
            return found["enabled"] is False and found["lastError"].startswith("410")

        await eventually(off, "it is switched off")
        await wire.ok("PUSH", queue=queue, data=2)
        receiver.status = 200
        await wire.ok("SetWebhookEnabled", id=hook, enabled=True)
        assert len({each["jobId"] for each in receiver.wait_for(2)}) == 2


async def test_a_shard_that_is_away_for_a_moment_forgets_nothing(
    calling_server: Server, receiver: Receiver
) -> None:
    """The first one keeps the webhooks; a courier goes on with what it knows, and records it later."""
    queue = fresh_queue(1)
    async with await Wire.open(calling_server.address) as wire:
        hook = await add(wire, receiver, queue, "job.pushed")
        await wire.ok("PUSH", queue=queue, data=1)
        receiver.wait_for(1)
    for number in range(2, 5):
        calling_server.kill_shards(0)
        async with await Wire.open(calling_server.address) as wire:
            await wire.ok("PUSH", queue=queue, data=number)
        receiver.wait_for(number)

    async def all_counted() -> bool:
        async with await Wire.open(calling_server.address) as wire:
            listed = await wire.call("ListWebhooks")  # the shard may still be away
            hooks = listed["data"]["webhooks"] if listed["ok"] else []
            return any(each["id"] == hook and each["successCount"] == 4 for each in hooks)

    await eventually(all_counted, "all are recorded")
    assert len(receiver.deliveries) == 4


@pytest.mark.parametrize("ending", ["stop", "kill", "gateway"])
async def test_nothing_is_lost_by_a_restart(tmp_path: Path, receiver: Receiver, ending: str) -> None:
    flags = ("--webhook-addresses", "any")
    server = Server(tmp_path / "data", *flags, port=quiet_port(), http_port=quiet_port())
    try:
        server.start()
        queues = [fresh_queue(0), fresh_queue(1)]
        jobs: list[str] = []
        async with await Wire.open(server.address) as wire:
            await add(wire, receiver, None, "job.pushed")
            for number in range(30):
                jobs += [(await wire.ok("PUSH", queue=queue, data=number))["id"] for queue in queues]
        receiver.wait_for(5)
        if ending == "gateway":
            server.gateway().kill()
        elif ending == "stop":
            assert server.stop() == 0
            server.restart()
        else:
            server.kill_all()
            server.restart()
        async with await Wire.open(server.address) as wire:
            jobs += [(await wire.ok("PUSH", queue=queues[0], data="later"))["id"]]

        async def complete() -> bool:
            return set(jobs) <= {each["jobId"] for each in receiver.arrived()}

        await eventually(complete, "everything arrives")
        for queue in queues:  # in order, but for what is told again from an earlier place on
            seen: list[str] = []
            for each in receiver.arrived():
                if each["queue"] == queue and each["jobId"] not in seen:
                    seen.append(each["jobId"])
            assert seen == [job for job in jobs if job in seen]
        if ending == "stop":
            assert len(receiver.arrived()) == len(jobs), (
                "what was told before an orderly end is not told again"
            )
    finally:
        dispose(server)


def reshard(folder: Path, shards: int) -> None:
    command = [*COMMAND, "reshard", "--data-dir", str(folder), "--shards", str(shards)]
    run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}).check_returncode()


async def test_nothing_is_lost_by_another_number_of_shards(tmp_path: Path, receiver: Receiver) -> None:
    folder, queues = tmp_path / "data", [fresh_queue(0), fresh_queue(1)]
    jobs: list[str] = []
    server = Server(folder, "--webhook-addresses", "any", http_port=quiet_port())
    try:
        server.start()
        async with await Wire.open(server.address) as wire:
            await add(wire, receiver, None, "job.pushed")
            jobs += [(await wire.ok("PUSH", queue=queue, data=1))["id"] for queue in queues]
            receiver.wait_for(2)
            receiver.status = 503  # so that some are left for later
            jobs += [(await wire.ok("PUSH", queue=queue, data=2))["id"] for queue in queues]
        assert server.stop() == 0
    finally:
        dispose(server)
    reshard(folder, 4)
    receiver.status = 200
    server = Server(folder, "--webhook-addresses", "any", shards=4, http_port=quiet_port())
    try:
        server.start()
        async with await Wire.open(server.address) as wire:
            jobs += [(await wire.ok("PUSH", queue=queue, data=3))["id"] for queue in queues]
        wait_until(lambda: set(jobs) <= {each["jobId"] for each in receiver.arrived()}, "all arrive")
    finally:
        dispose(server)


async def test_a_webhook_can_be_tried(calling_server: Server, receiver: Receiver) -> None:
    async with await Wire.open(calling_server.address) as wire, client(calling_server) as web:
        hook = await add(wire, receiver, None, "job.failed", secret=SECRET)
        tried = (await web.post(f"/webhooks/{hook}/test")).json()
        assert tried["ok"] is True
        assert (tried["data"]["delivered"], tried["data"]["status"]) == (True, 200)
        assert receiver.arrived()[0]["event"] == "webhook.test"
        assert "x-bunqueue-signature" in receiver.deliveries[0].headers
        receiver.status = 500
        assert (await web.post(f"/webhooks/{hook}/test")).json()["data"]["delivered"] is False
        tried = await wire.ok("TestWebhook", webhookId=hook)
        assert [tried["data"][name] for name in ("delivered", "status", "error")] == [False, 500, None]
        assert (await web.post("/webhooks/none/test")).status_code == 404
        assert await wire.error("TestWebhook", webhookId="none") == "Webhook not found"
        await wire.ok("RemoveWebhook", webhookId=hook)


async def test_a_password_in_the_url_is_used_and_not_shown(
    calling_server: Server, receiver: Receiver
) -> None:
    queue = fresh_queue(1)
    url = receiver.url.replace("://", "://ada:p%40ss:word@")
    async with await Wire.open(calling_server.address) as wire:
        added = await wire.ok("AddWebhook", url=url, queue=queue, events=["job.pushed"])
        hook = added["data"]["webhookId"]
        assert (await known(wire, hook))["url"] == receiver.url.replace("://", "://ada:***@")
        await wire.ok("PUSH", queue=queue, data=1)
        receiver.wait_for(1)
    assert receiver.deliveries[0].headers["authorization"] == f"Basic {b64encode(b'ada:p@ss:word').decode()}"
    async with client(calling_server) as web:
        assert "p%40ss" not in (await web.get("/webhooks")).text


async def test_what_is_for_the_gateway_is_for_nobody_else(calling_server: Server) -> None:
    async with await Wire.open(calling_server.address) as wire, client(calling_server) as web:
        for command in ("GetDeliveries", "RecordDelivery", "RecordTrial"):
            assert await wire.error(command, webhookId="any") == f"Unknown command: {command}"
            assert (await web.post(f"/commands/{command}", json={})).status_code == 404


async def test_a_watched_group_of_errors_reports_its_return(
    calling_server: Server, receiver: Receiver
) -> None:
    queue, group = fresh_queue(1), kind_of(None, "no mailbox for 'a'")
    async with await Wire.open(calling_server.address) as wire:
        await add(wire, receiver, queue, "error.returned")
        await run_job(wire, queue, error="no mailbox for 'a'")
        await wire.ok("SetErrorGroup", queue=queue, group=group, watched=True, resolved=True)
        await run_job(wire, queue, error="disk full")  # of another group
        await run_job(wire, queue, error="no mailbox for 'b'")
        await run_job(wire, queue, error="no mailbox for 'c'")  # it is back already
        await wire.ok("RetryDlq", queue=queue, filter={"errorGroup": group})
        again = (await wire.ok("PULLB", queue=queue, count=9))["jobs"]
        assert len(again) == 3
        await wire.ok("SetErrorGroup", queue=queue, group=group, muted=True)
        for job in again:
            await wire.ok("FAIL", id=job["id"], error="no mailbox for 'd'")  # nobody wants to know
        await wire.ok("SetErrorGroup", queue=queue, group=group, muted=False, resolved=True)
        await run_job(wire, queue, error="no mailbox for 'e'")
        first, second = receiver.wait_for(2)
        assert (first["event"], first["queue"], first["jobId"]) == ("error.returned", queue, "")
        assert first["data"] == {"group": group, "error": "no mailbox for 'b'", "reason": "no mailbox for #"}
        assert second["data"]["error"] == "no mailbox for 'e'"
        assert len(receiver.deliveries) == 2
