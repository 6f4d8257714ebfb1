"""Workflows over HTTP: started, listed, shown, signalled, cancelled, retried from a step, undone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest_asyncio
from support.server import Server
from support.waiting import eventually
from support.web import client, fresh_queue

from bunqueue import Bunqueue, Flow, Undo


class Shop:
    """An app that works while the tests speak HTTP, and what it has done."""

    def __init__(self, server: Server) -> None:
        self.app = app = Bunqueue(fresh_queue(), host=server.host, port=server.port)
        self.undone: list[str] = []
        self.bank_is_there = True

        @app.workflow(max_attempts=1)
        async def order(flow: Flow) -> Any:
            await flow.step("charge", lambda: "charge", undo=Undo(self._refund, retry=1))
            approved = await flow.wait_for("approval", Any)
            if not approved:
                raise ValueError("not approved")
            return approved

        @app.workflow
        async def parcel(flow: Flow, key: str) -> Any:
            return await flow.wait_for("paid", Any, key=key)

    def _refund(self, what: str) -> None:
        if not self.bank_is_there and what != "edited":
            raise ConnectionError("the bank is away")
        self.undone.append(what)


@pytest_asyncio.fixture
async def shop(web_server: Server) -> AsyncIterator[Shop]:
    shop = Shop(web_server)
    async with shop.app:
        yield shop


@pytest_asyncio.fixture
async def web(web_server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    async with client(web_server) as found:
        yield found


async def ok(answer: httpx2.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()
    assert (answer.status_code, found["ok"]) == (200, True), found
    return found


async def start(web: httpx2.AsyncClient, shop: Shop, name: str, data: Any = None) -> str:
    fields = {"name": name, "data": data or {}, "workflow": True, "maxAttempts": 1, "jobId": f"w-{uuid4()}"}
    return str((await ok(await web.post(f"/queues/{shop.app.name}/jobs", json=fields)))["id"])


async def state(web: httpx2.AsyncClient, job: str) -> str:
    return str((await ok(await web.get(f"/workflows/{job}")))["data"]["state"])


async def comes_to(web: httpx2.AsyncClient, job: str, wanted: str) -> None:
    async def is_so() -> bool:
        return await state(web, job) == wanted

    await eventually(is_so, f"workflow {job} is {wanted}")


async def test_a_workflow_from_its_start_to_its_undo(web: httpx2.AsyncClient, shop: Shop) -> None:
    job = await start(web, shop, "order")
    await comes_to(web, job, "waiting-signal")
    query = {"where": f"workflow = true and state = waiting-signal and queue = {shop.app.name}"}
    found = (await ok(await web.get("/jobs", params=query)))["jobs"]
    assert [each["id"] for each in found] == [job]
    refused = await web.post(f"/workflows/{job}/undo", json={"action": "skip", "step": "charge"})
    assert (refused.status_code, refused.json()["code"]) == (409, "JOB_STATE")
    sent = {"data": {"by": "ada"}, "signalId": "1"}
    answers = [await ok(await web.post(f"/workflows/{job}/signals/approval", json=sent)) for _ in range(2)]
    assert answers[0]["data"] == {"delivered": True, "kept": 0}
    await comes_to(web, job, "completed")
    data = (await ok(await web.get(f"/workflows/{job}")))["data"]
    assert [(step["name"], step["status"]) for step in data["steps"]] == [
        ("charge", "completed"),
        ("approval", "completed"),
    ]
    assert data["signals"] == []  # the second one was the first
    await ok(await web.post(f"/workflows/{job}/retry", json={"step": "approval"}))
    await comes_to(web, job, "waiting-signal")
    shop.bank_is_there = False
    await ok(await web.post(f"/jobs/{job}/cancel", json={"reason": "withdrawn"}))
    await comes_to(web, job, "stuck")
    await ok(
        await web.post(f"/workflows/{job}/undo", json={"action": "edit", "step": "charge", "data": "edited"})
    )
    await comes_to(web, job, "cancelled")
    assert shop.undone == ["edited"]


async def test_the_webhook_of_somebody_else_is_a_signal(web: httpx2.AsyncClient, shop: Shop) -> None:
    """Its whole body is the data, whatever JSON that is."""
    job = await start(web, shop, "order")
    event = {"type": "paid", "signalId": "theirs", "lines": [1, 2]}
    url = f"/workflows/{job}/signals/approval/raw?signalId=evt-1"
    await ok(await web.post(url, json=event))
    await ok(await web.post(url, json=event))  # it is sent until somebody answers in time
    await comes_to(web, job, "completed")
    data = (await ok(await web.get(f"/workflows/{job}")))["data"]
    assert (data["steps"][-1]["result"], data["signals"]) == (event, [])


async def test_one_webhook_for_all_who_wait_for_its_key(web: httpx2.AsyncClient, shop: Shop) -> None:
    key = f"order {uuid4()}"
    jobs = [await start(web, shop, "parcel", {"key": key}) for _ in range(2)]
    await ok(await web.post("/signals/paid/raw", params={"key": key, "broadcastId": key}, json=[1, "card"]))
    for job in jobs:
        await comes_to(web, job, "completed")
        assert (await ok(await web.get(f"/jobs/{job}/result")))["result"] == [1, "card"]


async def test_what_is_refused(web: httpx2.AsyncClient, shop: Shop) -> None:
    job = await start(web, shop, "order")
    raw = f"/workflows/{job}/signals/approval/raw"
    for answer, status, code, text in (
        (
            await web.post(f"{raw}?data=1", json=2),
            422,
            "UNKNOWN_FIELD",
            "data is the body; leave it out of the query",
        ),
        (
            await web.post(raw, content=b"{", headers={"Content-Type": "application/json"}),
            400,
            None,
            "no JSON",
        ),
        (
            await web.post(raw, content=b"a=1", headers={"Content-Type": "text/plain"}),
            415,
            None,
            "must be JSON",
        ),
        (await web.post("/signals/paid/raw", json=2), 422, None, "key"),
        (await web.post(raw, json="x" * (1 << 20)), 413, "STEP_TOO_LARGE", "1048576"),
        (await web.post("/workflows/none/signals/approval/raw", json=1), 404, "JOB_NOT_FOUND", "not found"),
    ):
        found = answer.json()
        assert (answer.status_code, found["code"] if code else None) == (status, code), found
        assert text in found["error"], found
    await comes_to(web, job, "waiting-signal")


async def test_arguments_without_names_are_refused(web: httpx2.AsyncClient, shop: Shop) -> None:
    fields = {"name": "order", "data": [1], "workflow": True}
    refused = await web.post(f"/queues/{shop.app.name}/jobs", json=fields)
    answer = refused.json()
    assert (refused.status_code, answer["code"]) == (422, "INVALID_FIELD")
    assert (answer["field"], answer["value"], answer["bound"]) == ("data", "a list", "an object")
