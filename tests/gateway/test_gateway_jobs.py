"""Jobs over HTTP: the same commands, the same errors, the same server as over TCP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from support.server import Server
from support.waiting import PATIENCE_S, eventually
from support.web import client, fresh_queue
from support.wire import Wire

from bunqueue.protocol.commands import COMMANDS


@pytest_asyncio.fixture
async def web(web_server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    async with client(web_server) as found:
        yield found


async def test_a_job_is_pushed_pulled_and_acknowledged(web: httpx2.AsyncClient) -> None:
    queue = fresh_queue(1)
    pushed = (await web.post(f"/queues/{queue}/jobs", json={"name": "mail", "data": {"to": "ada"}})).json()
    assert pushed["ok"] is True
    pulled = (await web.get(f"/queues/{queue}/jobs")).json()
    assert (pulled["job"]["id"], pulled["job"]["data"]) == (pushed["id"], {"to": "ada"})
    assert (await web.get(f"/jobs/{pushed['id']}/state")).json()["state"] == "active"
    acked = await web.post(f"/jobs/{pushed['id']}/ack", json={"result": [1, None, "ü"]})
    assert (acked.status_code, acked.json()) == (200, {"ok": True})
    found = (await web.get(f"/jobs/{pushed['id']}")).json()["job"]
    assert (found["state"], found["returnvalue"]) == ("completed", [1, None, "ü"])
    assert (await web.get(f"/queues/{queue}/jobs")).json() == {"ok": True, "job": None}


async def test_a_pulled_job_stays_with_whoever_pulled_it(web: httpx2.AsyncClient, web_server: Server) -> None:
    queue = fresh_queue(0)
    await web.post(f"/queues/{queue}/jobs/bulk", json={"jobs": [{"data": 1}, {"data": 2}]})
    pulled = (await web.post(f"/queues/{queue}/jobs/pull-bulk", json={"count": 2, "owner": "me"})).json()
    web_server.gateway().kill()
    for job, token in zip(pulled["jobs"], pulled["tokens"], strict=True):

        async def ack(job: dict[str, Any] = job, token: str = token) -> bool:
            try:
                return (await web.post(f"/jobs/{job['id']}/ack", json={"token": token})).json()["ok"] is True
            except httpx2.TransportError:
                return False

        await eventually(ack, "the gateway is back")


async def test_a_failed_job_is_tried_again(web: httpx2.AsyncClient) -> None:
    queue = fresh_queue(0)
    job = (await web.post(f"/queues/{queue}/jobs", json={"data": 1, "maxAttempts": 1})).json()["id"]
    await web.post(f"/queues/{queue}/jobs/pull", json={})
    assert (await web.post(f"/jobs/{job}/fail", json={"error": "no luck"})).json()["ok"] is True
    dead = (await web.get(f"/queues/{queue}/dlq")).json()
    assert [entry["error"] for entry in dead["entries"]] == ["no luck"]
    assert (await web.post(f"/queues/{queue}/dlq/{job}/retry")).json() == {"ok": True, "count": 1}
    assert (await web.get(f"/queues/{queue}/counts")).json()["counts"]["waiting"] == 1


async def test_a_pull_waits_for_a_job(web: httpx2.AsyncClient) -> None:
    queue = fresh_queue(0)
    waiting = asyncio.create_task(web.get(f"/queues/{queue}/jobs", params={"timeout": 60_000}))
    await asyncio.sleep(0.05)  # it mostly waits by now; if not, it finds the job at once
    job = (await web.post(f"/queues/{queue}/jobs", json={})).json()["id"]
    assert (await waiting).json()["job"]["id"] == job


async def test_who_leaves_while_waiting_gets_no_job(web: httpx2.AsyncClient, web_server: Server) -> None:
    queue, impatient = fresh_queue(1), httpx2.Timeout(PATIENCE_S, read=0.3)
    with pytest.raises(httpx2.ReadTimeout):
        await web.get(f"/queues/{queue}/jobs", params={"timeout": 60_000}, timeout=impatient)
    async with await Wire.open(web_server.address) as wire:

        async def stays() -> bool:
            """Whether a job that is pushed now is still there for others."""
            await wire.ok("PUSH", queue=queue)
            return (await wire.ok("PULL", queue=queue, timeout=200))["job"] is not None

        await eventually(stays, "the pull was given up")


@pytest.mark.parametrize(
    ("command", "fields", "code"),
    [
        ("PUSH", {"queue": "no spaces"}, 422),
        ("PUSH", {}, 422),
        ("PUSH", {"queue": "q", "priority": "high"}, 422),
        ("PUSH", {"queue": "q", "delay": -1}, 422),
        ("PUSH", {"queue": "q", "data": "x" * 10_500_000}, 413),
        ("GetJob", {"id": "no-such-job"}, 404),
        ("ACK", {"id": "no-such-job"}, 409),
        ("Promote", {"id": "no-such-job"}, 409),
        ("CronGet", {"name": "no-such-cron"}, 404),
        ("RemoveWebhook", {"webhookId": "none"}, 404),
        ("Heartbeat", {"id": "nobody"}, 404),
        ("RateLimit", {"queue": "q", "limit": -1}, 422),
        ("GetJobs", {"queue": "q", "limit": 10_001}, 422),
        ("AddWebhook", {"url": "http://localhost/", "events": ["job.failed"]}, 422),
    ],
)
async def test_errors_are_those_of_tcp(
    web: httpx2.AsyncClient, web_server: Server, command: str, fields: dict[str, Any], code: int
) -> None:
    async with await Wire.open(web_server.address) as wire:
        await wire.ok("Hello", protocolVersion=3)
        said = await wire.call(command, **fields)
    answer = await web.post(f"/commands/{command}", json=fields)
    assert answer.json() == {name: each for name, each in said.items() if name != "reqId"}
    assert answer.status_code == code


@pytest.mark.parametrize("command", sorted({"Hello", "Auth", "SubscribeEvents", "NoSuchCommand"}))
async def test_commands_that_http_does_not_have(web: httpx2.AsyncClient, command: str) -> None:
    answer = await web.post(f"/commands/{command}", json={})
    assert answer.status_code == 404
    assert answer.json()["error"].startswith(f"Unknown command: {command}")
    assert ("/ws" in answer.json()["error"]) is (command in COMMANDS)


@pytest.mark.parametrize(
    ("body", "kind", "code", "text"),
    [
        (b"{", "application/json", 400, "the body is no JSON"),
        (b"[1]", "application/json", 400, "must be a JSON object"),
        (b"\xff{}", "application/json", 400, "the body is no JSON"),
        (
            rb'{"a": "\ud83d"}',
            "application/json",
            400,
            r"half a character (a lone surrogate: \ud83d, byte 7)",
        ),
        (b"[" * 100_000, "application/json", 400, "the body is no JSON"),
        (b'{"data": 1}', "text/plain", 415, "Content-Type: application/json"),
        (b'{"data": 100000000000000000000000000}', "application/json", 422, "cannot be sent"),
        (b'{"data": "' + b"x" * (17 << 20) + b'"}', "application/json", 413, "larger than"),
    ],
)
async def test_bodies_that_are_refused(
    web: httpx2.AsyncClient, body: bytes, kind: str, code: int, text: str
) -> None:
    answer = await web.post("/queues/q/jobs", content=body, headers={"Content-Type": kind})
    assert answer.status_code == code
    assert answer.json()["ok"] is False
    assert text in answer.json()["error"]


async def test_values_that_json_does_not_know_are_said_in_the_nearest_way(
    web: httpx2.AsyncClient, web_server: Server
) -> None:
    queue = fresh_queue(0)
    data = {"bytes": b"abc", 5: "five", "nested": [{b"key": float("inf")}]}
    async with await Wire.open(web_server.address) as wire:
        job = (await wire.ok("PUSH", queue=queue, data=data))["id"]
    found = (await web.get(f"/jobs/{job}")).json()["job"]["data"]
    assert found == {"bytes": "YWJj", "5": "five", "nested": [{"a2V5": None}]}


async def test_unknown_paths_and_methods(web: httpx2.AsyncClient) -> None:
    for method, path, code in (
        ("GET", "/nothing", 404),
        ("PATCH", "/queues/q", 405),
        ("GET", "/commands/PUSH", 405),
    ):
        answer = await web.request(method, path)
        assert (answer.status_code, answer.json()["ok"]) == (code, False)
        assert path in answer.json()["error"]


async def test_numbers_and_lists_in_queries(web: httpx2.AsyncClient) -> None:
    queue = fresh_queue(0)
    await web.post(
        f"/queues/{queue}/jobs/bulk", json={"jobs": [{"data": n, "delay": n * 1e6} for n in range(4)]}
    )
    params: dict[str, Any] = {"state": ["waiting", "delayed"], "limit": 2, "offset": 1, "asc": "false"}
    found = (await web.get(f"/queues/{queue}/jobs/list", params=params)).json()["jobs"]
    assert [job["data"] for job in found] == [2, 1]
    wrong = await web.get(f"/queues/{queue}/jobs/list", params={"limit": "many"})
    assert (wrong.status_code, wrong.json()["error"]) == (422, "limit must be a number")


async def test_a_list_may_leave_out_large_data(web: httpx2.AsyncClient) -> None:
    queue = fresh_queue(0)
    for data in ("x" * 3000, "small"):
        await web.post(f"/queues/{queue}/jobs", json={"data": data})
    await web.post(f"/queues/{queue}/jobs/pull", json={})
    listed = (await web.get(f"/queues/{queue}/jobs/list")).json()["jobs"]
    assert [(len(job["data"]), "dataBytes" in job) for job in listed] == [(3000, False), (5, False)]
    await web.post(f"/jobs/{listed[0]['id']}/ack", json={"result": "y" * 3000})
    large, small = (await web.get(f"/queues/{queue}/jobs/list?dataLimit=100")).json()["jobs"]
    assert (large["data"], large["dataBytes"], "returnvalue" in large) == (None, 3003, False)
    assert (small["data"], "dataBytes" in small) == ("small", False)
    refused = await web.get(f"/queues/{queue}/jobs/list?dataLimit=-1")
    assert (refused.status_code, "dataLimit" in refused.json()["error"]) == (422, True)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "jobs/list?state=nope", None),
        ("POST", "dlq/retry", {"filter": {"reason": "tmeout"}}),
        ("PUT", "dlq/config", {"config": {"maxAges": 1}}),
        ("PUT", "stall-config", {"config": {"maxStall": 1}}),
    ],
)
async def test_what_is_misspelled_is_refused(
    web: httpx2.AsyncClient, method: str, path: str, body: dict[str, Any] | None
) -> None:
    queue = fresh_queue(1)
    await web.post(f"/queues/{queue}/jobs", json={"data": 1})
    refused = await web.request(method, f"/queues/{queue}/{path}", json=body)
    assert refused.status_code == 422
    assert " is unknown; " in refused.json()["error"]


async def test_a_misspelled_filter_of_dead_letters_does_not_mean_all(web: httpx2.AsyncClient) -> None:
    queue = fresh_queue(1)
    pushed = (await web.post(f"/queues/{queue}/jobs", json={"data": 1})).json()
    await web.post(f"/jobs/{pushed['id']}/discard")
    refused = await web.post(f"/queues/{queue}/dlq/retry", json={"filter": {"reson": "timeout"}})
    assert refused.status_code == 422
    assert refused.json()["error"].startswith("filter.reson is unknown; did you mean reason?")
    assert (await web.get(f"/queues/{queue}/dlq/count")).json()["count"] == 1
    document = (await web.get("/openapi.json")).json()
    assert document["components"]["schemas"]["DlqFilter"]["additionalProperties"] is False


async def test_a_schedule_is_run_now(web: httpx2.AsyncClient) -> None:
    queue = fresh_queue(1)
    body = {"queue": queue, "schedule": "0 3 * * *", "jobName": "report", "data": {"full": True}}
    created = (await web.put(f"/crons/{queue}", json=body)).json()["cron"]
    answer = await web.post(f"/crons/{queue}/run")
    ran = answer.json()
    assert (answer.status_code, ran["ok"], ran["queue"], ran["existing"]) == (200, True, queue, False)
    job = (await web.get(f"/jobs/{ran['id']}")).json()["job"]
    assert (job["name"], job["data"], job["state"]) == ("report", {"full": True}, "waiting")
    again = (await web.post(f"/crons/{queue}/run")).json()
    assert (again["id"], again["existing"]) == (ran["id"], True), "the last job is still there"
    found = (await web.get(f"/crons/{queue}")).json()["cron"]
    assert (found["nextRun"], found["executions"]) == (created["nextRun"], created["executions"])
    assert found["lastRun"]["jobId"] == ran["id"]
    assert (await web.post(f"/crons/{queue}-none/run")).status_code == 404
