"""Codes of refusals, the same on every surface."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import Cli
from support.naming import queue_on
from support.server import Server
from support.web import client
from support.wire import Wire

from bunqueue import AsyncQueue, Breaker, CommandFailed, JobNotFound, errors
from bunqueue.cli.framework import exits
from bunqueue.protocol.codes import TABLE, Code, Kind

ROOT = Path(__file__).resolve().parents[2]
REFUSING = {"CommandError", "NotAllowed", "ErrorReply"}


@pytest.fixture
async def wire(web_server: Server) -> AsyncIterator[Wire]:
    async with await Wire.open(web_server.address) as wire:
        yield wire


REFUSED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"cmd": "Nonsense"}, {"code": "UNKNOWN_COMMAND", "field": "cmd", "value": "Nonsense"}),
    ({"cmd": "PUSH", "data": 1}, {"code": "INVALID_QUEUE", "field": "queue"}),
    (
        {"cmd": "PUSH", "queue": "q", "priority": 5_000_000},
        {"code": "INVALID_PRIORITY", "field": "priority", "value": 5_000_000, "bound": 1_000_000},
    ),
    (
        {"cmd": "PUSH", "queue": "q", "delay": -1},
        {"code": "INVALID_DELAY", "field": "delay", "value": -1, "bound": 0},
    ),
    (
        {"cmd": "PUSHB", "queue": "q", "jobs": [{"data": 1}, {"data": 2, "maxAttempts": 0}]},
        {"code": "INVALID_ATTEMPTS", "field": "jobs[1].maxAttempts", "value": 0, "bound": 1},
    ),
    (
        {"cmd": "PUSHB", "queue": "q", "jobs": [{"data": 1}, {"dependsOn": ["none"]}]},
        {"code": "JOB_NOT_FOUND", "field": "jobs[1].dependsOn", "value": "none"},
    ),
    (
        {"cmd": "PUSHB", "queue": "q", "jobs": [{"data": 1}, {"data": [1], "workflow": True}]},
        {"code": "INVALID_FIELD", "field": "jobs[1].data", "value": "a list", "bound": "an object"},
    ),
    (
        {"cmd": "PUSH", "queue": "q", "data": 7, "workflow": True},
        {"code": "INVALID_FIELD", "field": "data", "value": 7, "bound": "an object"},
    ),
    ({"cmd": "PUSH", "queue": "q", "repeat": {}}, {"code": "INVALID_SCHEDULE", "field": "repeat"}),
    ({"cmd": "GetJob", "id": "none"}, {"code": "JOB_NOT_FOUND", "field": "id", "value": "none"}),
    ({"cmd": "GetWorkflow", "id": "none"}, {"code": "JOB_NOT_FOUND", "field": "id", "value": "none"}),
    ({"cmd": "SendSignal", "id": "none", "name": "s"}, {"code": "JOB_NOT_FOUND", "value": "none"}),
    ({"cmd": "ACK", "id": "none"}, {"code": "LOCK_LOST", "field": "id", "value": "none"}),
    (
        {"cmd": "Promote", "id": "none"},
        {"code": "JOB_STATE", "field": "id", "value": "none", "bound": "delayed"},
    ),
    ({"cmd": "CronGet", "name": "none"}, {"code": "SCHEDULE_NOT_FOUND", "field": "name", "value": "none"}),
    (
        {"cmd": "RemoveWebhook", "webhookId": "none"},
        {"code": "WEBHOOK_NOT_FOUND", "field": "webhookId", "value": "none"},
    ),
    ({"cmd": "UnregisterWorker", "workerId": "none"}, {"code": "WORKER_NOT_FOUND", "field": "workerId"}),
    ({"cmd": "AddWebhook", "url": "ftp://x", "events": []}, {"code": "INVALID_WEBHOOK", "field": "url"}),
    (
        {"cmd": "PUSHF", "jobs": [{"queue": "q", "id": "a", "input": {"queue": "q", "data": 1}}]},
        {"code": "INVALID_FLOW"},
    ),
    (
        {"cmd": "Cron", "name": "c", "queue": "q", "schedule": "x"},
        {"code": "INVALID_SCHEDULE", "field": "schedule", "value": "x"},
    ),
    (
        {"cmd": "Cron", "name": "c", "queue": "q", "schedule": "@daily", "timezone": "Mars"},
        {"code": "INVALID_SCHEDULE", "field": "timezone", "value": "Mars"},
    ),
    (
        {"cmd": "PUSH", "queue": "q", "repeat": {"pattern": "@daily", "tz": "Mars"}},
        {"code": "INVALID_SCHEDULE", "field": "repeat.tz", "value": "Mars"},
    ),
]


@pytest.mark.parametrize(("command", "told"), REFUSED, ids=lambda each: str(each.get("cmd", "")))
async def test_refusals_name_code_field_value_and_bound(
    wire: Wire, command: dict[str, Any], told: dict[str, Any]
) -> None:
    reply = await wire.call(command["cmd"], **{name: each for name, each in command.items() if name != "cmd"})
    assert not reply["ok"]
    assert {name: reply.get(name) for name in told} == told, reply


async def test_refusals_about_a_workflow_name_it_and_what_is_allowed(wire: Wire) -> None:
    plain = (await wire.ok("PUSH", queue="codes", data={}))["id"]
    refused = await wire.call("SendSignal", id=plain, name="s")
    assert (refused["code"], refused["field"], refused["value"]) == ("NOT_A_WORKFLOW", "id", plain)
    flow = (await wire.ok("PUSH", queue="codes", data={}, workflow=True))["id"]
    refused = await wire.call("UndoWorkflow", id=flow, action="start")
    assert (refused["code"], refused["field"], refused["value"]) == ("JOB_STATE", "id", flow)
    assert refused["bound"] == "completed, failed, cancelled"
    await asyncio.gather(*(wire.ok("SendSignal", id=flow, name="s", data=number) for number in range(1_000)))
    refused = await wire.call("SendSignal", id=flow, name="s")
    assert (refused["code"], refused["value"], refused["bound"]) == ("TOO_MANY_SIGNALS", flow, 1_000)


async def test_a_flow_is_refused_by_another_shard_as_by_the_first(wire: Wire) -> None:
    for shard in range(2):
        full = queue_on(shard, "full-flow")
        await wire.ok("SetBounds", queue=full, config={"maxWaiting": 1})
        await wire.ok("PUSH", queue=full, data={})
        refused = await wire.call(
            "PUSHF", jobs=[{"id": f"node-{shard}", "queue": full, "input": {"data": {}}}]
        )
        told = {name: refused.get(name) for name in ("code", "field", "value", "bound")}
        assert told == {"code": "QUEUE_FULL", "field": "maxWaiting", "value": 1, "bound": 1}


async def test_a_setting_that_is_too_much_on_every_surface(web_server: Server, wire: Wire) -> None:
    queue, most = "many-breakers", 1_000
    config = {"failures": 1, "pause": 1000}
    await asyncio.gather(
        *(wire.ok("SetBreaker", queue=queue, name=f"n{number}", config=config) for number in range(most))
    )
    told = {"code": "TOO_MANY_SETTINGS", "field": "name", "value": "more", "bound": most}
    refused = await wire.call("SetBreaker", queue=queue, name="more", config=config)
    assert {name: refused.get(name) for name in told} == told
    async with client(web_server) as web:
        answer = await web.put(f"/queues/{queue}/breaker", json={"name": "more", "config": config})
        assert answer.status_code == 409, answer.text
        assert {name: answer.json().get(name) for name in told} == told
    for where in ({"port": web_server.port}, {"embedded": True}):
        async with AsyncQueue(queue, **where) as each:
            if "embedded" in where:
                for number in range(most):
                    await each.set_breaker(Breaker(failures=1), job=f"n{number}")
            with pytest.raises(CommandFailed) as caught:
                await each.set_breaker(Breaker(failures=1), job="more")
            error = caught.value
            assert (error.server_code, error.field, error.value, error.bound) == tuple(told.values())
            await each.clear_breaker(job="n0")
            await each.set_breaker(Breaker(failures=1), job="more")
            await each.clear_breaker(job="more")
            await each.set_breaker(Breaker(failures=1), job="n0")
    done = Cli(web_server)("breaker", "set", queue, "--job", "more", "--json", status=exits.FAILED)
    said = json.loads(done.err)
    assert (said["serverCode"], said["field"], said["value"], said["bound"]) == tuple(told.values())


async def test_one_refusal_on_every_surface(web_server: Server) -> None:
    async with client(web_server) as web:
        answer = await web.get("/jobs/none")
        body = answer.json()
        assert (answer.status_code, body["code"]) == (404, "JOB_NOT_FOUND")
        assert (body["field"], body["value"]) == ("id", "none")
        answer = await web.post("/queues/q/jobs", json={"data": 1, "priority": 5_000_000})
        body = answer.json()
        assert (answer.status_code, body["code"], body["bound"]) == (422, "INVALID_PRIORITY", 1_000_000)
        answer = await web.get("/no/such/path")
        assert (answer.status_code, answer.json()["code"]) == (404, "UNKNOWN_PATH")
    async with AsyncQueue("q", port=web_server.port) as queue:
        with pytest.raises(JobNotFound) as missing:
            await queue.handle("none").job()
        assert missing.value.server_code == Code.JOB_NOT_FOUND
        assert (missing.value.field, missing.value.value) == ("id", "none")
    done = Cli(web_server)("job", "get", "none", "--json", status=exits.NOT_FOUND)
    said = json.loads(done.err)
    assert (said["serverCode"], said["field"], said["value"]) == ("JOB_NOT_FOUND", "id", "none")


def test_every_code_has_a_row_and_every_kind_an_exception() -> None:
    assert set(TABLE) == set(Code)
    for kind in Kind:
        assert issubclass(getattr(errors, kind), errors.BunqueueError)
    assert issubclass(JobNotFound, CommandFailed)


def test_the_documentation_has_the_table() -> None:
    text = (ROOT / "docs/errors.md").read_text()
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \| `(\w+)` \| (.+) \|$", text, re.MULTILINE)
    assert rows == [(code, str(row.status), str(row.kind), row.meaning) for code, row in TABLE.items()]


ABOUT_A_FIELD = re.compile(
    r"INVALID_QUEUE|INVALID_PRIORITY|JOB_|NOT_A_WORKFLOW|TOO_MANY_S|\w+_NOT_FOUND|GROUP_FULL"
)


def test_refusals_about_a_field_have_its_value() -> None:
    """Also those that no test brings about."""
    bare = []
    for folder in ("bunqueue/protocol", "router", "shardproc"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or ast.unparse(node.func) != "CommandError":
                    continue
                code = ast.unparse(node.args[1]).removeprefix("Code.")
                given = {word.arg for word in node.keywords}
                if ABOUT_A_FIELD.match(code) and not {"field", "value"} <= given:
                    bare.append(f"{path.name}:{node.lineno} {code}")
    assert bare == []


def test_every_code_is_sent_by_somebody() -> None:
    """None is left over in the table: each stands somewhere else in the program, too."""
    sources = [
        path.read_text()
        for folder in ("bunqueue", "router", "shardproc")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "codes.py"
    ]
    table = (ROOT / "bunqueue/protocol/codes.py").read_text().partition("_FIELDS = ")[2]
    used = set(re.findall(r"\bCode\.([A-Z_]+)", "\n".join([*sources, table])))
    assert {str(code) for code in Code} - used == set()


def test_nobody_decides_by_the_text_of_a_refusal() -> None:
    """But for servers that send no code."""
    found = []
    for path in (ROOT / "bunqueue").rglob("*.py"):
        if path.name == "codeless.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                about = ast.unparse(node.func.value)
                if node.func.attr.endswith("swith") and about.endswith((".reason", "error", ".error")):
                    found.append(f"{path.name}: {ast.unparse(node)}")
    assert found == []
