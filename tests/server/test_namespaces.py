"""Identities in a namespace: two tenants use the same names and never meet.  Each command of the table is
sent by both of them with the same fields; what is expected follows from the declarations.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server.test_scopes import NOBODY, REPLACED, request_of
from support.receiver import receiving
from support.server import Server, dispose, quiet_port
from support.waiting import eventually
from support.web import client, events
from support.websocket import socket
from support.wire import Wire, at_router

from bunqueue import AsyncQueue, Job, Worker
from bunqueue.client.connection.transport import Endpoint
from bunqueue.gateway.http.resources import OFFERED
from bunqueue.mcp.calls import Calls
from bunqueue.protocol.commands import COMMANDS
from bunqueue.protocol.commands.base import Reach
from bunqueue.server.identities import edit
from bunqueue.server.identities.identity_file import IdentityRow

TENANTS = ("acme", "beta")
QUEUE = "emails"
SAID = ("acme/key", "acme/x", "acme/t")  # by both of them: they look like names in a namespace, and are none


class Tenants:
    """A server with an admin in each of two namespaces, and one in none."""

    def __init__(self, folder: Path, routers: int = 2) -> None:
        self.path = str(folder / "identities.toml")
        self.tokens: dict[str, str] = {}
        for name in TENANTS:
            self.add(name, "admin", name)
        self.add("root", "admin")
        self.add("sales", "admin", "acme", ["sales.*"])
        self.add("plain", "admin", "", ["*"])
        self.add("looker", "viewer", "acme")
        self.routers = routers
        more = ("--identities", self.path, "--routers", str(routers), "--webhook-addresses", "any")
        self.server = Server(folder / "data", *more, http_port=quiet_port())

    def add(self, name: str, role: str, namespace: str = "", queues: list[str] | None = None) -> None:
        made = edit.make_token()
        row = IdentityRow(role, tokens=[made.row], queues=queues, namespace=namespace)
        edit.change(self.path, name, lambda _: row)
        self.tokens[name] = made.text

    @property
    def text(self) -> str:
        """The file of identities."""
        return Path(self.path).read_text(encoding="utf-8")

    def write(self, text: str) -> None:
        Path(self.path).write_text(text, encoding="utf-8")

    @asynccontextmanager
    async def wires(self, *names: str, router: int = 0) -> AsyncIterator[list[Wire]]:
        wires = [await self._wire(self.tokens[name], router) for name in names]
        try:
            for wire in wires:  # a namespace may have sent as many commands as it may in this second
                await eventually(partial(agrees, wire), "the connection speaks version 3")
            yield wires
        finally:
            for wire in wires:
                await wire.close()

    async def _wire(self, token: str, router: int) -> Wire:
        if self.routers > 1:
            return await at_router(self.server.address, router, token)
        wire = await Wire.open(self.server.address)
        await wire.ok("Auth", token=token)
        return wire

    def web(self, name: str) -> httpx2.AsyncClient:
        return client(self.server, self.tokens[name])


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    made = Tenants(tmp_path_factory.mktemp("namespaces"))
    try:
        made.server.start()
        yield made
    finally:
        dispose(made.server)


async def agrees(wire: Wire) -> bool:
    return bool((await wire.call("Hello", protocolVersion=3))["ok"])


def told(reply: object) -> str:
    return json.dumps(reply, default=repr, sort_keys=True)


async def fill(wire: Wire, word: str) -> dict[str, str]:
    """A job of each kind, and settings, with names that another tenant uses, too.  The ids."""
    data, ids = {"word": word}, dict[str, str]()
    await wire.ok("RegisterWorker", name="w", queues=[QUEUE], workerId="worker", namesByQueue={QUEUE: ["x"]})
    for name in ("done", "dead", "active"):
        fields = {"maxAttempts": 1, "name": name, "jobId": name}
        assert (await wire.ok("PUSH", queue=QUEUE, data=data, **fields))["id"] == name
        pulled = await wire.ok("PULL", queue=QUEUE, owner="worker", lockTtl=10**7)
        assert (pulled["job"]["id"], pulled["job"]["data"], pulled["job"]["queue"]) == (name, data, QUEUE)
        if name == "done":
            await wire.ok("ACK", id=name, token=pulled["token"], result=data)
        if name == "dead":
            await wire.ok("FAIL", id=name, token=pulled["token"], error=f"{word} broke", errorTypes=["E"])
        ids[name] = pulled["token"]
    await wire.ok("PUSH", queue=QUEUE, data=data, uniqueKey="acme/key", name="acme/x", tags=["acme/t"])
    await wire.ok("PUSH", queue=QUEUE, data=data, jobId="child", dependsOn=["done", "active"])
    await wire.ok("PUSH", queue="other", data={"__parentId": "child"}, jobId="small", parentId="child")
    await wire.ok("Cron", name="nightly", queue=QUEUE, repeatEvery=10**9, data=data)
    await wire.ok("CronTrigger", name="nightly")
    functions = [{"name": "f", "options": {"onDead": {"data": data, "queue": "late"}}}]
    await wire.ok("DeclareFunctions", queue=QUEUE, functions=functions)
    await wire.ok("SetBreaker", queue=QUEUE)
    await wire.ok("SetBreaker", queue=QUEUE, name="a/b")
    await wire.ok("PauseGroup", queue=QUEUE, groupId="g/1")
    kept = {"uniqueKey": "kept/key", "dedup": {"states": ["completed"]}, "jobId": "kept", "priority": 9}
    await wire.ok("PUSH", queue="ended", data=1, **kept)
    await wire.ok("PULL", queue="ended")
    await wire.ok("ACK", id="kept")
    nodes = [
        {"name": "a", "queue": QUEUE, "input": {"data": {"word": word}}},
        {"name": "b", "queue": "other", "after": ["a"], "input": {"data": {"word": word}}},
    ]
    assert (await wire.ok("AddFlow", flow="flow", nodes=nodes))["data"]["ids"] == ["flow:a", "flow:b"]
    pair = [
        {
            "id": "top",
            "queue": "other",
            "input": {"data": {}, "dependsOn": ["leaf"], "childrenIds": ["leaf"]},
        },
        {"id": "leaf", "queue": QUEUE, "input": {"data": {}, "parentId": "top"}},
    ]
    await wire.ok("PUSHF", jobs=pair)
    await wire.ok("AddWebhook", url="http://127.0.0.1:9/", events=["job.completed"], queue=QUEUE)
    return ids


async def test_the_same_names_in_two_namespaces_never_meet(tenants: Tenants) -> None:
    """Each command gets the same kind of answer, whoever sends it, and no answer names the other."""
    async with tenants.wires(*TENANTS) as (acme, beta), tenants.wires("root", router=1) as (root,):
        await fill(acme, "word-of-acme")
        await fill(beta, "word-of-beta")
        failed = await read_all(acme, beta)
        assert not failed, "\n".join(failed[:20])
        names = sorted((await root.ok("ListQueues"))["queues"])
        assert names == sorted(f"{name}/{queue}" for name in TENANTS for queue in (QUEUE, "other", "ended"))


async def read_all(one: Wire, other: Wire) -> list[str]:
    """What is wrong with the answers to each command that only reads."""
    failed = []
    for spec in COMMANDS.values():
        if spec.name in REPLACED or spec.internal or spec.writes:
            continue
        for job_id in ("done", "dead", "active", "child", "top", NOBODY):
            request = request_of(spec, QUEUE, job_id)
            request |= {name: value for name, value in NAMES.items() if name in request}
            replies = [await wire.call(spec.name, **request) for wire in (one, other)]
            for reply, own in zip(replies, TENANTS, strict=True):
                if foreign(reply, own):
                    failed.append(f"{spec.name} {job_id} of {own}: {told(reply)[:2000]}")
            ends = {(reply["ok"], reply.get("code")) for reply in replies}
            if len(ends) > 1:
                failed.append(f"{spec.name} {job_id}: {replies}")
    return failed


NAMES = {"flow": "flow", "name": "nightly", "webhookId": NOBODY}


def foreign(reply: object, own: str) -> bool:
    """Whether an answer names another namespace, or its own, except in what the tenant has said."""
    text = told(reply)
    for said in SAID:
        text = text.replace(f'"{said}"', "").replace(f'\\"{said}\\"', "")
    return f"{own}/" in text or any(name in text for name in TENANTS if name != own)


STABLE: dict[str, dict[str, Any]] = {
    **{f"GetState {job_id}": {"id": job_id} for job_id in ("done", "dead", "active", "child", "small")},
    "GetResult": {"id": "done"},
    "GetJobCounts": {"queue": QUEUE},
    "GetJobCounts other": {"queue": "other"},
    "ListQueues": {},
    "IsPaused": {"queue": QUEUE},
    "GetBounds": {"queue": QUEUE},
    "GetQueueLimits": {"queue": QUEUE},
    "GetDlqConfig": {"queue": QUEUE},
    "GetStallConfig": {"queue": QUEUE},
    "CronNext": {"name": "nightly"},
    "ListBreakers": {},
    "ListErrors": {},
    "ListFunctions": {},
    "ListWebhooks": {},
    "GetFlow": {"flow": "flow"},
    "GetLogs": {"id": "active"},
    "IsGroupPaused": {"queue": QUEUE, "groupId": "g/1"},
    "CountDlq": {"queue": QUEUE},
    "GetDeduplicationJobId kept": {"queue": "ended", "deduplicationId": "kept/key"},
    "GetDeduplicationJobId": {"queue": QUEUE, "deduplicationId": "acme/key"},
}


async def stable(wire: Wire) -> dict[str, Any]:
    """What does not change unless somebody changes it."""
    found = {name: await wire.ok(name.split()[0], **fields) for name, fields in STABLE.items()}
    for group in found["ListErrors"]["data"]["groups"]:
        del group["perMinute"], group["minutes"]  # they fall with time
    hooks = found["ListWebhooks"]["data"]  # deliveries are tried, and counted, at any time
    del hooks["stats"]
    hooks["webhooks"] = [{name: hook[name] for name in ("id", "url", "queue")} for hook in hooks["webhooks"]]
    return {name: {**reply, "reqId": 0} for name, reply in found.items()}


async def test_whatever_one_tenant_does_the_other_sees_no_difference(tenants: Tenants) -> None:
    async with tenants.wires(*TENANTS) as (acme, beta), tenants.wires("beta", router=1) as (again,):
        if "emails" not in (await beta.ok("ListQueues"))["queues"]:
            await fill(acme, "word-of-acme")
            await fill(beta, "word-of-beta")
        before, failed = await stable(beta), []
        for spec in COMMANDS.values():
            if spec.name in REPLACED or spec.internal or not spec.writes or spec.reach is Reach.SERVER:
                continue
            for job_id in ("active", "dead", "done", "child"):
                request = request_of(spec, QUEUE, job_id)
                request |= {name: value for name, value in NAMES.items() if name in request}
                reply = await acme.call(spec.name, **request)
                if foreign(reply, "acme"):
                    failed.append(f"{spec.name}: {told(reply)[:2000]}")
        assert not failed, "\n".join(failed)
        assert await stable(beta) == before
        assert await stable(again) == before
        assert (await acme.ok("GetJobCounts", queue=QUEUE))["counts"] != (
            await beta.ok("GetJobCounts", queue=QUEUE)
        )["counts"]


async def test_what_each_kind_of_identity_sees(tenants: Tenants) -> None:
    """Patterns are without the namespace, and one in no namespace has names with it."""
    async with tenants.wires("acme", "sales", "plain", "root", "beta") as (acme, sales, plain, root, beta):
        for wire in (acme, beta, plain, root):
            await wire.ok("PUSH", queue="sales.eu", data=1, jobId="mine")
        assert (await sales.ok("GetJob", id="mine"))["job"]["queue"] == "sales.eu"
        refused = await sales.call("PUSH", queue=QUEUE, data=1)
        assert (refused["code"], refused["value"], refused["bound"]) == ("FORBIDDEN", QUEUE, "sales.*")
        seen = (await root.ok("ListQueues"))["queues"]
        assert {"sales.eu", "acme/sales.eu", "beta/sales.eu"} <= set(seen)
        assert set((await plain.ok("ListQueues"))["queues"]) == {each for each in seen if "/" not in each}
        assert (await root.ok("GetJob", id="acme/mine"))["job"]["queue"] == "acme/sales.eu"
        assert (await root.ok("GetState", id="mine"))["state"] == "waiting"
        assert (await plain.call("GetJob", id="acme/mine"))["code"] == "JOB_NOT_FOUND"
        assert (await plain.call("PUSH", queue="acme/sales.eu", data=1))["code"] == "FORBIDDEN"
        await root.ok("Pause", queue="acme/sales.eu")
        assert [(await wire.ok("IsPaused", queue="sales.eu"))["paused"] for wire in (acme, beta, plain)] == [
            True,
            False,
            False,
        ]
        refused = await root.call("PUSH", queue="acme/sales.eu", data=1, jobId="other")
        assert (refused["code"], refused["field"], refused["bound"]) == ("INVALID_FIELD", "jobId", "acme/")
        made = (await root.ok("PUSH", queue="sales.old", data=1))["id"]
        await root.ok("PUSH", queue="sales.old", data=1, jobId="chosen")
        moved = await root.ok("ChangeJobs", queue="sales.old", action="move", to="acme/sales.new")
        assert (moved["data"]["changed"], moved["data"]["skipped"]) == (1, {"own-id": 1})
        assert (await sales.ok("GetJob", id=made))["job"]["queue"] == "sales.new"
        found = (await root.ok("FindJobs", where="queue = acme/sales.eu"))["jobs"]
        assert [job["id"] for job in found] == ["acme/mine"]
        found = (await acme.ok("FindJobs", where="queue = sales.eu"))["jobs"]
        assert [job["id"] for job in found] == ["mine"]


async def test_names_that_look_like_those_of_others_stay_inside(tenants: Tenants) -> None:
    async with tenants.wires(*TENANTS, "root") as (acme, beta, root):
        made = (await beta.ok("PUSH", queue="secret", data={"word": "of-beta"}, jobId="7"))["id"]
        number = (await beta.ok("PUSH", queue="secret", data={"word": "of-beta"}))["id"]
        for name in ("beta/secret", "../beta/secret", "/secret", "beta//secret", "acme/secret"):
            refused = await acme.call("PUSH", queue=name, data=1)
            assert (refused["code"], refused["value"]) == ("INVALID_QUEUE", name)
        unknown = f"{number[:-6]}ffffff"
        for job_id in ("beta/7", "acme/beta/7", made, number):
            for command in ("GetJob", "Cancel", "GetResult", "RemoveJob", "GetJobByCustomId"):
                key = "customId" if command == "GetJobByCustomId" else "id"
                hidden = told({**await acme.call(command, **{key: job_id}), "reqId": 0})
                absent = told({**await acme.call(command, **{key: unknown}), "reqId": 0})
                assert hidden.replace(job_id, "?") == absent.replace(unknown, "?"), (command, job_id)
        for own in ("beta/7", "acme/7", "acme/acme/7"):
            assert (await acme.ok("PUSH", queue="secret", data=1, jobId=own))["id"] == own
            job = (await acme.ok("GetJob", id=own))["job"]
            assert (job["id"], job["queue"]) == (own, "secret")
            assert (await root.ok("GetState", id=f"acme/{own}"))["state"] == "waiting"
        assert (await root.ok("GetJob", id="beta/7"))["job"]["data"] == {"word": "of-beta"}
        long = "x" * 300
        refused = await acme.call("PUSH", queue=long, data=1)
        assert refused["code"] == "INVALID_QUEUE"
        refused = await acme.call("PUSH", queue="x" * 254, data=1)
        assert (refused["code"], refused["bound"]) == ("INVALID_FIELD", 251)
        await acme.ok("PUSH", queue="x" * 251, data=1)


async def test_searches_have_the_names_of_the_namespace(tenants: Tenants) -> None:
    """Its own name is in no name: what contains a part of it is found only if its users gave it that name."""
    async with tenants.wires("acme", "root") as (acme, root):
        for job_id in ("ended", "running"):
            await acme.ok("PUSH", queue="sought", data=1, jobId=job_id)
            token = (await acme.ok("PULL", queue="sought", owner="miller", lockTtl=10**7))["token"]
            if job_id == "ended":
                await acme.ok("ACK", id=job_id, token=token)

        async def found(wire: Wire = acme, **fields: Any) -> set[str]:
            return {job["id"] for job in (await wire.ok("FindJobs", limit=100, **fields))["jobs"]}

        both = {"ended", "running"}
        assert await found(queue="sought", worker="miller") == both
        matching = ("worker = miller", "worker ~ mill", "worker != acme/miller", "queue ~ sough")
        for where in matching:
            assert await found(queue="sought", where=where) == both, where
        for where in ("worker = acme/miller", "worker ~ acme", "worker ~ /", "queue ~ acme", "queue ~ /"):
            assert not await found(queue="sought", where=where), where
            assert not await found(where=where), where
        jobs = {"acme/ended", "acme/running"}
        for where in ("worker ~ acme/mill", "queue ~ acme/sou", "worker = acme/miller"):
            assert await found(root, queue="acme/sought", where=where) == jobs, where


async def test_nobody_puts_into_a_namespace_what_those_there_cannot_name(tenants: Tenants) -> None:
    """A job with another id would be pulled, and could not be ended."""
    async with tenants.wires("acme", "root") as (acme, root):
        into, own = {"queue": "acme/given"}, {"data": 1, "jobId": "given-1"}
        node = {"name": "n", **into, "input": {"data": {}}}
        flow = [{"id": "given-2", **into, "input": {"data": {}}}]
        for command, fields, field in (
            ("PUSH", {**into, **own}, "jobId"),
            ("PUSHB", {**into, "jobs": [{"data": 1}, own]}, "jobs[1].jobId"),
            ("PUSHF", {"jobs": flow}, "jobs"),
            ("AddFlow", {"flow": "given", "nodes": [node]}, "jobs"),
            ("Cron", {**into, "name": "given", "repeatEvery": 10**9}, "name"),
        ):
            refused = await root.call(command, **fields)
            seen = tuple(refused.get(name) for name in ("code", "field", "bound"))
            assert seen == ("INVALID_FIELD", field, "acme/"), (command, refused)
        await root.ok("PUSH", queue="flows-of-root", data={}, workflow=True, jobId="root-boss")
        token = (await root.ok("PULL", queue="flows-of-root", owner="w", lockTtl=10**7))["token"]
        child = {**into, "input": own}
        step = {"id": "root-boss", "token": token, "name": "s", "kind": "child", "child": child}
        step["status"] = "waiting"
        (answer,) = (await root.ok("RecordSteps", queue="flows-of-root", steps=[step]))["results"]
        refused = answer["refused"]
        assert (refused["code"], refused["field"]) == ("INVALID_FIELD", "child.input.jobId")
        assert not (await acme.ok("FindJobs", queue="given"))["jobs"]
        await root.ok("PUSH", queue="movable", **own)
        made = (await root.ok("PUSH", queue="movable", data=1))["id"]
        moved = (await root.ok("ChangeJobs", queue="movable", action="move", to="acme/given"))["data"]
        assert (moved["changed"], moved["skipped"]) == (1, {"own-id": 1})
        await root.ok("PUSH", **into, data=1, jobId="acme/given-3")
        for job_id in (made, "given-3"):
            pulled = await acme.ok("PULL", queue="given", lockTtl=10**7, owner="w")
            assert pulled["job"]["id"] == job_id
            await acme.ok("ACK", id=job_id, token=pulled["token"])


async def test_names_of_a_namespace_are_not_taken_from_outside(tenants: Tenants) -> None:
    """An identity for some queues outside gets the same answer as for a name that somebody has."""
    async with tenants.wires("acme", "plain") as (acme, plain):
        data, name = {"data": {}}, "acme/kept"
        flow = [{"id": name, "queue": "outer", "input": data}]
        await plain.ok("PUSH", queue="outer", data={}, jobId="boss", workflow=True)
        token = (await plain.ok("PULL", queue="outer", owner="w", lockTtl=10**7))["token"]
        for command, fields, code in (
            ("PUSH", {"queue": "outer", **data, "jobId": name}, "FORBIDDEN"),
            ("PUSHB", {"queue": "outer", "jobs": [{**data, "customId": name}]}, "FORBIDDEN"),
            ("PUSHF", {"jobs": flow}, "FORBIDDEN"),
            ("Cron", {"name": name, "queue": "outer", "repeatEvery": 10**9}, "SCHEDULE_CONFLICT"),
            ("RegisterWorker", {"workerId": name, "name": "x", "queues": ["outer"]}, "WORKER_NOT_FOUND"),
        ):
            refused = await plain.call(command, **fields)
            assert (refused.get("code"), refused.get("value")) == (code, name), (command, refused)
        child = {"queue": "outer", "input": {**data, "jobId": name}}
        step = {"id": "boss", "token": token, "name": "s", "kind": "child", "child": child}
        step["status"] = "waiting"
        await plain.ok("RecordSteps", queue="outer", steps=[step])
        await plain.ok("PUSH", queue="outer", **data, jobId="other/kept")  # no namespace has this name
        assert (await acme.ok("PUSH", queue=QUEUE, **data, jobId="kept"))["id"] == "kept"
        await acme.ok("Cron", name="kept", queue=QUEUE, repeatEvery=10**9)
        await acme.ok("RegisterWorker", workerId="kept", name="x", queues=[QUEUE])
        assert (await plain.ok("GetState", id=name))["state"] == "unknown"


async def test_what_the_server_sends_unasked_has_names_of_the_namespace(tenants: Tenants) -> None:
    """Events, and notices that a job must stop."""
    async with tenants.wires(*TENANTS, "root") as (acme, beta, root):
        for wire in (acme, beta):
            await wire.ok("SubscribeEvents", queue="pushed")
        await root.ok("SubscribeEvents", queue="acme/pushed")
        for wire, word in ((acme, "acme"), (beta, "beta")):
            await wire.ok("PUSH", queue="pushed", data={"word": word}, jobId="9")
            await wire.ok("PULL", queue="pushed", owner="w", lockTtl=10**7, signals=True)
        for wire, prefix in ((acme, ""), (beta, ""), (root, "acme/")):
            for kind in ("pushed", "pulled"):
                event = (await wire.next_stray())["event"]
                seen = (event["eventType"], event["jobId"], event["queue"])
                assert seen == (kind, f"{prefix}9", f"{prefix}pushed")
        await acme.ok("Cancel", id="9", running=True, grace=10**6)
        assert (await acme.next_stray())["cancel"]["id"] == "9"
        assert (await acme.ok("JobHeartbeat", id="9"))["data"]["cancelled"][0]["id"] == "9"
        assert "cancelled" not in (await beta.ok("JobHeartbeat", id="9"))["data"]
        for wire in (acme, beta):  # an id that the server makes is one of the namespace, too
            made = (await wire.ok("RegisterWorker", name="w", queues=["pushed"]))["data"]["workerId"]
            await wire.ok("Heartbeat", id=made)
            assert (await wire.ok("UnregisterWorker", workerId=made))["data"]["removed"]


async def test_all_surfaces_have_the_names_of_the_namespace(tenants: Tenants) -> None:
    """HTTP, Server-Sent Events, WebSocket, MCP and webhooks; the shared connections mix up nobody."""
    queue = "web.mail"
    async with AsyncExitStack() as stack:
        acme, beta, root = [await stack.enter_async_context(tenants.web(name)) for name in (*TENANTS, "root")]
        *hooks, every_hook = [stack.enter_context(receiving()) for _ in range(3)]
        added = {"url": every_hook.url, "events": ["job.pushed"]}
        assert (await root.post("/webhooks", json=added)).status_code == 200
        for web, hook in zip((acme, beta), hooks, strict=True):
            added = {"url": hook.url, "events": ["job.pushed"], "queue": queue}
            assert (await web.post("/webhooks", json=added)).json()["data"]["queue"] == queue
        stream = await stack.enter_async_context(events(acme, params={"queue": queue}))
        every = await stack.enter_async_context(events(root, params={"queue": f"acme/{queue}"}))
        headers = {"Authorization": f"Bearer {tenants.tokens['beta']}"}
        ws = await stack.enter_async_context(socket(tenants.server, additional_headers=headers))
        assert (await ws.call("Subscribe", queues=[queue], jobId="web-7"))["ok"]
        for web, word in ((acme, "of-acme"), (beta, "of-beta")):
            for job_id in ("web-7", "acme/web-7"):  # in the second, acme is no namespace
                job = {"data": {"word": word}, "jobId": job_id}
                assert (await web.post(f"/queues/{queue}/jobs", json=job)).json()["id"] == job_id
        for web, whole in ((acme, False), (root, True)):  # the dashboard shows what its user may use
            rights = (await web.get("/session")).json()["data"]
            commands = rights["commands"]
            assert (rights["everywhere"], "Broadcast" in commands, "ListShards" in commands) == (whole,) * 3
            assert {"Pause", "ListQueues", "AddWebhook"} <= set(commands)
        for web, word in ((acme, "of-acme"), (beta, "of-beta")) * 2:
            found = (await web.get("/jobs/web-7")).json()["job"]
            assert (found["id"], found["queue"], found["data"]) == ("web-7", queue, {"word": word})
            assert "/" not in "".join((await web.get("/queue-names")).json()["queues"])
            assert (await web.get("/jobs/beta%2Fweb-7")).status_code == 404
            for path in ("/queues/beta%2Fweb.mail", "/events?queue=beta%2Fweb.mail"):
                refused = await web.get(path)
                assert refused.status_code == 422, path
                assert (refused.json()["code"], refused.json()["field"]) == ("INVALID_QUEUE", "queue"), path
            for page in ("/queues", "/overview", "/workers", "/crons", "/prometheus", "/webhooks", "/stats"):
                text = (await web.get(page)).text
                own = "acme" if web is acme else "beta"
                assert not foreign(text, own), page
        found = (await root.get("/jobs/acme%2Fweb-7")).json()["job"]
        assert (found["id"], found["queue"]) == ("acme/web-7", f"acme/{queue}")
        assert (await root.get(f"/queues/acme%2F{queue}")).json()["data"]["name"] == f"acme/{queue}"
        for job_id in ("web-7", "acme/web-7"):
            heard = await stream.next()
            assert (heard["queue"], heard["jobId"]) == (queue, job_id)
        heard = await every.next()
        assert (heard["queue"], heard["jobId"]) == (f"acme/{queue}", "acme/web-7")
        (told_,) = await ws.until(1)
        assert (told_["queue"], told_["jobId"]) == (queue, "web-7")
        for hook in hooks:
            message, *_ = await asyncio.to_thread(hook.wait_for, 1)
            assert (message["queue"], message["jobId"]) == (queue, "web-7")
        text = (await root.get("/prometheus")).text
        assert re.search(r'^bunqueue_namespace_queues\{namespace="beta"\} [1-9]', text, re.MULTILINE)
        assert f'queue="acme/{queue}"' in text
        found = await asyncio.to_thread(every_hook.wait_for, 2)
        assert {message["queue"] for message in found} == {f"{name}/{queue}" for name in TENANTS}
    host, port = tenants.server.address
    calls = Calls(Endpoint(host, port, token=tenants.tokens["beta"]))
    job = (await calls.call(OFFERED["GetJob"], {"id": "web-7"}))["job"]
    assert (job["queue"], job["data"]) == (queue, {"word": "of-beta"})
    await calls.close()


async def test_each_entry_of_the_trail_says_the_namespace(tenants: Tenants) -> None:
    """Also those of refused commands, on every surface."""
    async with tenants.wires("acme", "root") as (acme, root), tenants.web("acme") as web:
        await acme.ok("Pause", queue="trailed")
        refusals = [(await acme.call("ListKeys"))["code"], (await web.get("/shards")).json()["code"]]
        refusals.append((await web.get("/audit")).json()["code"])
        assert refusals == ["FORBIDDEN"] * 3
        await root.call("Pause", queue="trailed")
    async with tenants.web("root") as web:

        async def entries() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await web.get("/audit?limit=1000")).json()["data"]["entries"]
            return found

        wanted = {("acme", "acme", each) for each in ("Pause", "ListKeys", "ListShards", "the trail")}

        async def all_there() -> bool:
            found = await entries()
            assert {each.get("namespace") for each in found if each.get("who") == "acme"} <= {"acme"}
            seen = {(each.get("who"), each.get("namespace", ""), each["what"]) for each in found}
            return wanted | {("root", "", "Pause")} <= seen

        await eventually(all_there, "all entries are in the trail")


async def test_workers_of_two_namespaces_get_their_own_jobs(tenants: Tenants) -> None:
    """The SDK: the same queue, the same ids, flows and results."""
    host, port = tenants.server.address
    for name in TENANTS:
        token = tenants.tokens[name]
        async with AsyncQueue("sdk", host=host, port=port, token=token) as queue:
            await queue.add("greet", {"word": name}, job_id="same")
    for name in TENANTS:
        token, done = tenants.tokens[name], asyncio.Event()

        async def handle(job: Job, name: str = name, done: asyncio.Event = done) -> str:
            assert (job.id, job.queue, job.data) == ("same", "sdk", {"word": name})
            done.set()
            return f"by-{name}"

        async with Worker("sdk", handle, host=host, port=port, token=token), asyncio.timeout(60):
            await done.wait()
        async with AsyncQueue("sdk", host=host, port=port, token=token) as queue:
            assert await queue.handle("same").result() == f"by-{name}"


async def test_children_of_workflows_and_failed_children(tenants: Tenants) -> None:
    async with tenants.wires(*TENANTS) as wires:
        for wire in wires:
            await wire.ok("PUSH", queue="flows", data={}, jobId="boss", workflow=True)
            token = (await wire.ok("PULL", queue="flows", owner="w", lockTtl=10**7))["token"]
            child = {"queue": "kids", "input": {"data": 1, "jobId": "kid:1"}}
            step = {"id": "boss", "token": token, "name": "s", "kind": "child", "child": child}
            step |= {"status": "waiting"}
            (made,) = (await wire.ok("RecordSteps", queue="flows", steps=[step]))["results"]
            assert made["child"] == "kid:1"
            again = {**step, "name": "taken", "child": {**child, "input": {"data": 1, "jobId": "boss:2"}}}
            await wire.ok("PUSH", queue="flows", data={}, jobId="boss:2")
            only = {"functions": [{"name": "f"}], "invalidJobs": "refuse"}
            await wire.ok("DeclareFunctions", queue="strict", **only)
            unknown = {**step, "name": "unknown", "child": {"queue": "strict", "input": {"data": 1}}}
            await wire.ok("RecordSteps", queue="flows", steps=[again, unknown])

            async def are_refused(wire: Wire = wire) -> bool:
                found = (await wire.ok("GetSteps", queue="flows", id="boss"))["data"]["steps"]
                errors = {each["name"]: each["error"] for each in found if each.get("error")}
                if len(errors) == 2:
                    assert errors["taken"] == "another job has the id boss:2"
                    assert "for queue 'strict'" in errors["unknown"]
                return len(errors) == 2

            await eventually(are_refused, "both children are refused")
            found, *_ = (await wire.ok("GetSteps", queue="flows", id="boss"))["data"]["steps"]
            assert (found["child"], found["childQueue"], found["worker"]) == ("kid:1", "kids", "w")
            assert (await wire.ok("PULL", queue="kids", timeout=10_000))["job"]["id"] == "kid:1"
            failing = {"failParentOnFailure": True, "data": {}, "maxAttempts": 1, "parentId": "up:1"}
            downs = ["down:1", "down:2"]
            up = {"data": {}, "dependsOn": downs, "childrenIds": downs}
            jobs = [
                {"id": "up:1", "queue": "ups", "input": up},
                {"id": "down:1", "queue": "downs", "input": failing},
                {"id": "down:2", "queue": "downs", "input": failing | {"failParentOnFailure": False}},
            ]
            await wire.ok("PUSHF", jobs=jobs)
            for _ in range(2):
                job = (await wire.ok("PULL", queue="downs", timeout=10_000))["job"]
                assert job["parentId"] == "up:1"
                if job["id"] == "down:2":
                    await wire.ok("ACK", id="down:2", result="fine")
                else:
                    await wire.ok("FAIL", id="down:1", error="no")
            await wire.ok("WaitJobs", queue="ups", ids=["up:1"], timeout=30_000)
            ended = (await wire.ok("GetJob", id="up:1"))["job"]
            assert ended["failedReason"] == "Child job down:1 failed: no"
            values = (await wire.ok("GetChildrenValues", id="up:1"))["data"]["values"]
            assert values == {"downs:down:2": "fine"}
            for job_id in ("old", "young"):
                await wire.ok("PUSH", queue=job_id, data={}, jobId=job_id)
            await wire.ok("UpdateParent", childId="young", parentId="old")
            job = (await wire.ok("GetJob", id="young"))["job"]
            family = (job["parentId"], job["data"]["__parentId"], job["data"]["__parentQueue"])
            assert family == ("old", "old", "old")


async def groups(wire: Wire) -> list[dict[str, Any]]:
    """The groups of errors, in an order that does not change."""
    found: list[dict[str, Any]] = (await wire.ok("ListErrors"))["data"]["groups"]
    return sorted(found, key=lambda each: (each["queue"], each["id"]))


async def test_a_restart_keeps_what_is_in_namespaces(tenants: Tenants) -> None:
    async with tenants.wires("beta") as (beta,):
        if QUEUE not in (await beta.ok("ListQueues"))["queues"]:
            await fill(beta, "word-of-beta")
        before = await stable(beta)
        known = [(each["queue"], each["id"]) for each in (await groups(beta))]
        assert known
    tenants.server.kill_all()
    tenants.server.restart()
    async with tenants.wires("beta") as (beta,):
        after = await stable(beta)
        assert [(each["queue"], each["id"]) for each in (await groups(beta))] == known
    moved = {"GetState active", "GetBounds", "GetJobCounts"}  # the active job waits for its worker, or again
    assert {name: after[name] for name in after.keys() - moved} == {
        name: before[name] for name in before.keys() - moved
    }
    assert before["GetDeduplicationJobId kept"]["data"]["jobId"] == "kept"
    assert len(before["ListBreakers"]["breakers"]) == 2
