"""Identities that are for some queues only, and those that see jobs without what they hold: each command of
the table with each role, inside and outside of the queues.  What is expected follows from the declarations.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import httpx2
import msgspec
import pytest
from support.server import Server, dispose, quiet_port
from support.waiting import eventually
from support.web import client, events
from support.websocket import socket
from support.wire import Wire, at_router

from bunqueue.client.connection.transport import Endpoint
from bunqueue.gateway.http.resources import OFFERED
from bunqueue.mcp.calls import Calls
from bunqueue.model.marks import Mark
from bunqueue.model.rights import ROLES, Verb
from bunqueue.protocol import marked
from bunqueue.protocol.commands import COMMANDS, Spec
from bunqueue.protocol.commands.base import Reach
from bunqueue.protocol.hidden import HIDDEN, content_of
from bunqueue.protocol.job_view import JobView
from bunqueue.server.identities import edit
from bunqueue.server.identities.identity_file import IdentityRow

MINE, THEIRS = "in.q", "out.q"
HUSH = "hush"  # in everything of the other queue that could be told
NOBODY = "no-such-thing"
REPLACED = frozenset({"Auth", "Hello", "ActFor"})  # about the connection itself
ROLES_HERE = {**ROLES, "adder": Verb.ADD | Verb.SEE | Verb.SCRAPE}  # the last one is the file's own


class Scoped:
    """A server with an identity for each role, for the queues ``in.*`` only, and others for all queues."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "identities.toml")
        Path(self.path).write_text('[roles]\nadder = ["add", "see"]\npurger = ["destroy"]\n')
        self.tokens: dict[str, str] = {}
        for role in ROLES_HERE:
            self.add(role, role, ["in.*"])
        self.add("root", "admin")
        self.add("looker", "viewer")
        self.add("purger", "purger")
        self.server = Server(
            folder / "data",
            "--identities",
            self.path,
            "--shards",
            "2",
            "--routers",
            "2",
            http_port=quiet_port(),
        )
        self.theirs: dict[str, str] = {}

    def add(self, name: str, role: str, queues: list[str] | None = None) -> None:
        made = edit.make_token()
        edit.change(self.path, name, lambda _: IdentityRow(role, tokens=[made.row], queues=queues))
        self.tokens[name] = made.text

    async def wire(self, name: str, router: int = 0) -> Wire:
        wire = await at_router(self.server.address, router, self.tokens[name])
        await wire.ok("Hello", protocolVersion=3)
        return wire

    def web(self, name: str) -> httpx2.AsyncClient:
        return client(self.server, self.tokens[name])

    @asynccontextmanager
    async def filled(self, queue: str, word: str) -> AsyncIterator[dict[str, str]]:
        """Everything in a queue that could be told: a job of each kind, and settings.  The ids."""
        root = await self.wire("root")
        data, ids = {"word": word}, dict[str, str]()
        for name in ("done", "dead", "active", "waiting"):
            fields = {"maxAttempts": 1, "headers": {"x": word}, "name": name}
            ids[name] = (await root.ok("PUSH", queue=queue, data=data, **fields))["id"]
            if name == "waiting":
                break
            token = (await root.ok("PULL", queue=queue, owner="w", lockTtl=10**7))["token"]
            await root.ok("Progress", id=ids[name], progress=5, message=word)
            await root.ok("AddLog", id=ids[name], message=word)
            if name == "done":
                await root.ok("ACK", id=ids[name], token=token, result=data)
            if name == "dead":
                report = {"error": f"{word} 7", "stack": word, "errorTypes": ["Broken"]}
                await root.ok("FAIL", id=ids[name], token=token, **report)
        own = f"own-{word}"
        await root.ok("PUSH", queue=queue, data=data, jobId=own)
        ids["own"] = own
        await root.ok("Cron", name=f"cron-{word}", queue=queue, repeatEvery=10**9, data=data)
        functions = [{"name": f"function-{word}", "options": {"onDead": {"data": data}}}]
        await root.ok("DeclareFunctions", queue=queue, functions=functions)
        await root.ok("SetBreaker", queue=queue)
        await root.ok("TripBreaker", queue=queue, reason=word, pause=10**7)
        nodes = [{"name": f"node-{word}", "queue": queue, "input": {"data": data}}]
        await root.ok("AddFlow", flow=f"flow-{word}", nodes=nodes)
        await root.ok("PauseGroup", queue=queue, groupId=f"group-{word}")
        await root.ok("RegisterWorker", name=f"worker-{word}", queues=[queue], workerId=f"id-{word}")
        await root.ok("AddWebhook", url=f"https://{word}.example/", events=["job.completed"], queue=queue)
        yield ids  # the registration of the worker ends with its connection
        await root.close()


@pytest.fixture(scope="module")
def scoped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scoped]:
    made = Scoped(tmp_path_factory.mktemp("scopes"))
    try:
        made.server.start()
        yield made
    finally:
        dispose(made.server)


@asynccontextmanager
async def connected(scoped: Scoped, *names: str, router: int = 0) -> AsyncIterator[list[Wire]]:
    wires = [await scoped.wire(name, router) for name in names]
    try:
        yield wires
    finally:
        for wire in wires:
            await wire.close()


def request_of(spec: Spec, queue: str, job_id: str) -> dict[str, Any]:
    """A request with all required fields, and all that name a queue or a job.  Nothing waits."""
    request = _struct(spec.request, queue, job_id)
    return {**request, "timeout": 0} if spec.parks else request


def _struct(struct: type[msgspec.Struct], queue: str, job_id: str) -> dict[str, Any]:
    hints = get_type_hints(struct, include_extras=True)
    named = {name for mark in (Mark.QUEUE, Mark.JOB) for name, _ in marked.paths(struct, mark)}
    fields = [field for field in msgspec.structs.fields(struct) if field.required or field.name in named]
    return {field.encode_name: _value(hints[field.name], queue, job_id) for field in fields}


def _value(hint: Any, queue: str, job_id: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        marks = {Mark.QUEUE: queue, Mark.JOB: job_id}
        found = next((marks[mark] for mark in args[1:] if mark in marks), None)
        metas = [part for part in args[1:] if isinstance(part, msgspec.Meta)]
        least = next((meta.ge for meta in metas if meta.ge), 1)
        if found is None and any(meta.pattern for meta in metas):
            return "0" * 12 if args[0] is str else least
        return found if found is not None else _value(args[0], queue, job_id)
    if origin is Literal:
        return args[0]
    if origin is list:
        return [_value(args[0], queue, job_id)]
    if origin is dict:
        return {_value(args[0], queue, job_id): _value(args[1], queue, job_id)}
    if args:  # a union
        return _value(args[0], queue, job_id)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _struct(hint, queue, job_id)
    return {str: NOBODY, int: 1, float: 1.0, bool: False, bytes: b""}.get(hint, 1)


def refusal_of(spec: Spec, queue: str) -> str:
    """What the refusal of a command says that the role has a verb for; "" if there is none."""
    if spec.reach is Reach.SERVER and spec.verbs:
        return "is about the whole server"
    names_queues = any(marked.paths(each, Mark.QUEUE) for each in (spec.request, spec.plain) if each)
    return f"on queue {THEIRS!r}" if names_queues and queue == THEIRS else ""


def told(reply: object, *own: str) -> str:
    """A reply as text, without what the request said itself."""
    text = json.dumps(reply, default=repr, sort_keys=True)
    for each in own:
        text = text.replace(each, "?")
    return text


async def test_every_command_inside_and_outside_of_the_queues(scoped: Scoped) -> None:
    async with scoped.filled(THEIRS, HUSH) as theirs, connected(scoped, "root") as (root,):
        failed = await every_command(scoped, theirs)
        assert not failed, "\n".join(failed[:20])
        states = [(await root.ok("GetState", id=job_id))["state"] for job_id in theirs.values()]
        assert states == ["completed", "failed", "active", "waiting", "waiting"]


async def every_command(scoped: Scoped, theirs: dict[str, str]) -> list[str]:
    """What is wrong with the answers to each command with each role."""
    failed: list[str] = []
    specs = [spec for spec in COMMANDS.values() if spec.name not in REPLACED]
    for number, (role, verbs) in enumerate(ROLES_HERE.items()):
        mine = [spec for spec in specs if spec.verbs & verbs]
        async with connected(scoped, role, router=number % 2) as (wire,):
            for queue in (MINE, THEIRS):
                calls = [wire.call(spec.name, **request_of(spec, queue, NOBODY)) for spec in mine]
                for spec, reply in zip(mine, await asyncio.gather(*calls), strict=True):
                    why = refusal_of(spec, queue)
                    refused = reply.get("code") == "FORBIDDEN"
                    if why not in reply.get("error", "") or refused is not bool(why) or HUSH in told(reply):
                        failed.append(f"{role}, {spec.name}, {queue}: expected {why!r}, got {reply}")
    about_jobs = [spec for spec in specs if marked.paths(spec.request, Mark.JOB)]
    async with connected(scoped, "admin", "admin", router=1) as wires:
        for name, job_id in theirs.items():
            unknown = "own-x" if name == "own" else f"{job_id[:-6]}ffffff"
            ids = (job_id, unknown)
            for spec in about_jobs:
                queue = MINE if marked.paths(spec.request, Mark.QUEUE) else THEIRS
                calls = [
                    wire.call(spec.name, **request_of(spec, queue, each))
                    for wire, each in zip(wires, ids, strict=True)
                ]
                replies = [told({**reply, "reqId": 0}, *ids) for reply in await asyncio.gather(*calls)]
                if replies[0] != replies[1]:
                    failed.append(f"{spec.name}, {name}: {replies}")
    return failed


async def test_who_may_not_read_sees_nothing_that_jobs_hold(scoped: Scoped) -> None:
    """In every view, and not by asking either."""
    failed = []
    async with (
        scoped.filled("out.held", "secretly") as ids,
        connected(scoped, "looker", "root") as (looker, root),
    ):
        for spec in COMMANDS.values():
            if not spec.verbs & ROLES["viewer"] or spec.writes:
                continue
            for job_id in ids.values() if marked.paths(spec.request, Mark.JOB) else ("",):
                fields = {"flow": "flow-secretly", "name": "function-secretly"}
                wanted = request_of(spec, "out.held", job_id)
                wanted |= {name: value for name, value in fields.items() if name in wanted}
                wanted |= (
                    {"name": "cron-secretly"} if spec.name.startswith("Cron") and "name" in wanted else {}
                )
                reply, whole = await looker.call(spec.name, **wanted), await root.call(spec.name, **wanted)
                named = ("-secretly", "secretly.example")  # names are no content
                if "secretly" in told(reply, *named) or reply["ok"] is not whole["ok"]:
                    failed.append(f"{spec.name}: {reply} or {whole}")
        assert not failed, "\n".join(failed[:20])
        job = (await looker.ok("GetJob", id=ids["dead"]))["job"]
        assert (job["data"], job["failedReason"], job["headers"]["x"]) == (HIDDEN, HIDDEN, HIDDEN)
        assert job["timeline"][-1]["error"] == HIDDEN
        assert [line["message"] for line in (await looker.ok("GetLogs", id=ids["dead"]))["data"]["logs"]] == [
            HIDDEN
        ]
        entry = (await looker.ok("Dlq", queue="out.held"))["entries"][0]
        assert (entry["error"], entry["job"]["data"], entry["attempts"][0]["error"]) == (HIDDEN,) * 3
        for conditions in (
            {"data": {"word": "secretly"}},
            {"error": "sec"},
            {"where": "data.word = secretly"},
        ):
            assert "needs the verb 'read'" in await looker.error("FindJobs", **conditions)
        assert "'read'" in await looker.error("CountDlq", queue="out.held", filter={"error": "sec"})
        assert (await looker.ok("FindJobs", queue="out.held", where="name = dead"))["jobs"]
    async with connected(scoped, "purger") as (purger,):
        assert "'read'" in await purger.error("PurgeDlq", queue="out.held", filter={"error": "sec"})


async def test_what_depends_on_jobs_of_other_queues(scoped: Scoped) -> None:
    """Jobs to wait for, parents, flows, own ids: as if they did not exist, and nothing happens to them."""
    async with connected(scoped, "root", "admin") as (root, mine):
        job = (await root.ok("PUSH", queue=THEIRS, data={"word": HUSH}))["id"]
        none = f"{job[:-6]}ffffff"
        done = {"queue": THEIRS, "data": 1, "jobId": "ended-own"}
        await root.ok("PUSH", **done)
        await root.ok("PUSH", queue="in.q2", data=1, jobId="in-own")
        for extra in (
            lambda each: {"dependsOn": [each]},
            lambda each: {"parentId": each, "data": {"__parentId": each}},
        ):
            replies = [
                await mine.call("PUSH", queue=MINE, **({"data": 1} | extra(each))) for each in (job, none)
            ]
            texts = {told({**reply, "reqId": 0}, job, none) for reply in replies}
            assert len(texts) == 1, texts
            assert replies[0]["code"] == "JOB_NOT_FOUND"
        for fields in ({"childId": job, "parentId": "in-own"}, {"childId": "in-own", "parentId": job}):
            hidden = await mine.error("UpdateParent", **fields)
            absent = {name: none if value == job else value for name, value in fields.items()}
            assert hidden.replace(job, "?") == (await mine.error("UpdateParent", **absent)).replace(none, "?")
        taken = await mine.call("PUSH", queue=MINE, data=1, jobId="ended-own")
        assert (taken["code"], taken["field"]) == ("FORBIDDEN", "jobId")
        assert "existing" not in taken
        assert (await mine.ok("PUSH", queue=MINE, data=1, jobId="in-own"))["existing"]
        flow = [{"id": "ended-own", "queue": MINE, "input": {"data": {}}}]
        assert (await mine.call("PUSHF", jobs=flow))["code"] == "FORBIDDEN"

        nodes = [
            {"name": "ours", "queue": MINE, "input": {"data": {}}},
            {"name": "theirs", "queue": THEIRS, "after": ["ours"], "input": {"data": {}}},
        ]
        await root.ok("AddFlow", flow="both", nodes=nodes)
        seen = (await mine.ok("GetFlow", flow="both"))["data"]
        assert ([node["name"] for node in seen["nodes"]], sum(seen["counts"].values())) == (["ours"], 1)
        assert (await mine.ok("CancelFlow", flow="both"))["data"]["stopped"] == 1
        assert (await root.ok("GetState", id="both:theirs"))["state"] == "waiting-children"
        parent = await mine.ok("PUSH", queue=MINE, data=1, childrenIds=[job])
        await mine.ok("RemoveUnprocessedChildren", id=parent["id"])
        assert (await root.ok("GetState", id=job))["state"] == "waiting"
        assert (await mine.ok("GetChildrenValues", id=parent["id"]))["data"]["values"] == {}


async def test_other_surfaces_know_the_queues_and_what_is_hidden(scoped: Scoped) -> None:
    """HTTP, Server-Sent Events, WebSocket and MCP; the shared connections of the gateway mix up nobody."""
    async with scoped.web("reader") as reader, scoped.web("looker") as looker, scoped.web("root") as root:
        job = (await root.post(f"/queues/{THEIRS}/jobs", json={"data": {"word": HUSH}})).json()["id"]
        mine = (await root.post(f"/queues/{MINE}/jobs", json={"data": {"word": HUSH}})).json()["id"]
        for _ in range(3):
            assert (await reader.get(f"/jobs/{job}")).status_code == 404
            assert (await looker.get(f"/jobs/{job}")).json()["job"]["data"] == HIDDEN
            assert (await root.get(f"/jobs/{job}")).json()["job"]["data"] == {"word": HUSH}
            assert (await reader.get(f"/jobs/{mine}")).json()["job"]["data"] == {"word": HUSH}
        assert (await reader.get(f"/queues/{THEIRS}")).status_code == 403
        assert {"in.q", "in.q2"} >= set((await reader.get("/queue-names")).json()["queues"])
        assert THEIRS not in (await reader.get("/prometheus")).text
        assert (await reader.get("/history")).json()["data"]["points"] == []
        assert (await reader.get("/events", params={"queue": THEIRS})).status_code == 403
        async with (
            events(reader) as stream,
            socket(
                scoped.server, additional_headers={"Authorization": f"Bearer {scoped.tokens['looker']}"}
            ) as ws,
        ):
            assert (await ws.call("Subscribe", types=["failed"]))["ok"]
            await root.post(f"/queues/{THEIRS}/jobs", json={"data": 1})
            await root.post("/queues/in.events/jobs", json={"data": 1, "maxAttempts": 1})
            pulled = (await root.post("/queues/in.events/jobs/pull", json={"owner": "w"})).json()
            fields = {"token": pulled["token"], "error": HUSH}
            await root.post(f"/jobs/{pulled['job']['id']}/fail", json=fields)
            heard = [await stream.next() for _ in range(3)]
            assert {event["queue"] for event in heard} == {"in.events"}
            assert heard[-1]["error"] == HUSH
            (found,) = await ws.until(1)
            assert (found["queue"], found["error"]) == ("in.events", HIDDEN)
    host, port = scoped.server.address
    calls = Calls(Endpoint(host, port, token=scoped.tokens["reader"]))
    assert (await calls.call(OFFERED["GetJob"], {"id": job}))["code"] == "JOB_NOT_FOUND"
    assert (await calls.call(OFFERED["GetJobCounts"], {"queue": THEIRS}))["code"] == "FORBIDDEN"
    await calls.close()


async def test_other_patterns_end_the_connections(scoped: Scoped) -> None:
    scoped.add("moves", "worker", ["in.*"])
    async with scoped.web("moves") as web:

        async def known() -> bool:
            return (await web.get("/health")).json().get("identity") == "moves"

        await eventually(known, "the gateway knows the identity")
    wires = [await eventually_wire(scoped, "moves", router) for router in (0, 1)]
    for wire in wires:
        assert "on queue" in await wire.error("PULL", queue=THEIRS)
    row = edit.load(scoped.path).rows["moves"]
    row.queues = ["out.*"]
    edit.change(scoped.path, "moves", lambda _: row)
    for wire in wires:
        await wire.until_ended()
    wires = [await eventually_wire(scoped, "moves", router) for router in (0, 1)]
    for wire in wires:
        assert "on queue" in await wire.error("PULL", queue=MINE)
        await wire.close()


async def eventually_wire(scoped: Scoped, name: str, router: int) -> Wire:
    """A connection of an identity that the routers may not know yet."""

    async def known(at: int) -> bool:
        async with connected(scoped, "root", router=at) as (wire,):
            return bool((await wire.call("Auth", token=scoped.tokens[name]))["ok"])

    for each in (0, 1):  # the way to one may lead to the other first, with the token
        await eventually(partial(known, each), "the router knows the identity")
    return await scoped.wire(name, router)


def test_each_encoded_value_that_answers_have_is_known() -> None:
    """An answer with jobs hides what they hold; one that a worker or a producer gets does not."""
    hidden = {spec.name for spec in COMMANDS.values() if content_of(spec.reply)}
    shown = {
        spec.name for spec in COMMANDS.values() if spec.verbs & (Verb.RUN | Verb.ADD) and spec.name in hidden
    }
    assert shown == {"GetSteps"}
    assert {"GetJob", "GetJobs", "Dlq", "FindJobs", "GetEvents", "GetFlow", "GetWorkflow"} <= hidden
    assert {"data", "returnvalue", "failedReason", "stacktrace", "timeline"} <= set(content_of(JobView))
