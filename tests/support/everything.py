"""A server full of whatever it can hold, and questions that show all of it.

On each of ``SPREAD`` shards there is a queue; jobs of every one of these depend on jobs of every other one,
so whatever the number of shards is, some of these pairs are on one shard and others are not.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from bunqueue.model.errors_alike import kind_of
from bunqueue.protocol.commands import COMMANDS, Route

from .naming import queue_on
from .waiting import PATIENCE_S
from .wire import Wire

SPREAD = 8
QUEUES = [queue_on(number, "main", SPREAD) for number in range(SPREAD)]
SIDE = [queue_on(number, "side", SPREAD) for number in range(SPREAD)]  # with limits, pauses and groups
ORDER = [queue_on(number, "order", SPREAD) for number in range(SPREAD)]  # of which nothing is pulled
FLOWS = [queue_on(number, "flows", SPREAD) for number in range(SPREAD)]  # workflows that wait
CHILDREN = [queue_on(number, "children", SPREAD) for number in range(SPREAD)]  # for jobs that nobody takes
NODES = [queue_on(number, "nodes", SPREAD) for number in range(SPREAD)]  # jobs of flows with names
ALL = [*QUEUES, *SIDE, *ORDER, *FLOWS, *CHILDREN, *NODES]
GRAPHS = (0, 3, 6)  # flows with names begin in these queues, and go on in those that follow
SOON = {  # nodes that end before anything is asked
    "diamond": ("fetch", "left"),
    "dead": ("bad",),
    "open": ("one",),
    "closed": ("one", "two"),
}
HOUR_MS = 3_600_000
LONG = {"delay": 24 * HOUR_MS}

# Queries that tell of this moment, or of what happened since the start.
OF_THE_MOMENT = {
    "WaitJob", "SubscribeEvents", "GetGroupRateLimitTtl", "DashboardQueue", "Metrics", "Prometheus", "Stats",
    "StorageStatus", "DashboardOverview", "DashboardQueues", "CompactMemory", "GetDlqStats", "GetEvents",
    "ListShards", "WhyWaiting",
}  # fmt: skip
MOVING = {"rateLimitTtl", "lastHeartbeat", "cursor", "scanned"}  # fields of others that do, too


@dataclass
class Made:
    """What was put there."""

    ids: list[str] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)  # of active jobs
    order: dict[str, list[str]] = field(default_factory=dict)  # in which jobs of a queue have to come
    needs: dict[str, list[str]] = field(default_factory=dict)  # job -> what has to be done before
    delayed: list[str] = field(default_factory=list)
    once: dict[str, str] = field(default_factory=dict)  # idempotency key -> the job that it pushed
    flows: list[str] = field(default_factory=list)  # flows with names


async def fill(wire: Wire) -> Made:
    """Put everything there, with a connection of version 3."""
    made = Made()
    for number in range(SPREAD):
        await _finished(wire, made, number)
        await _waiting(wire, made, number)
        await _settings(wire, made, number)
        await _ordered(wire, made, number)
    for number in range(SPREAD):
        await _dependent(wire, made, number)
    await _families(wire, made)
    for number in range(SPREAD):
        await _workflows(wire, made, number)
    for number in GRAPHS:
        await _graphs(wire, made, number)
    await wire.ok("Broadcast", name="paid", key="k", data={"eur": 5}, keep=24 * HOUR_MS)
    await wire.ok("AddWebhook", url="https://example.com/a", events=["job.completed"], queue=QUEUES[3])
    hook = await wire.ok("AddWebhook", url="https://example.com/b", events=["job.failed"], secret="s")
    await wire.ok("SetWebhookEnabled", id=hook["data"]["webhookId"], enabled=False)
    return made


async def push(wire: Wire, made: Made, queue: str, **options: Any) -> str:
    job_id = str((await wire.ok("PUSH", queue=queue, **{"data": {"n": len(made.ids)}, **options}))["id"])
    made.ids.append(job_id)
    return job_id


async def _finished(wire: Wire, made: Made, number: int) -> None:
    """Jobs that are done, dead, at work, or to be tried again."""
    queue = QUEUES[number]
    for result in ({"small": 1}, "x" * 5000, None):
        await push(wire, made, queue)
        done = await wire.ok("PULL", queue=queue, owner="w")
        await wire.ok("AddLog", id=done["job"]["id"], message=f"result {result!r:.10}")
        await wire.ok("Progress", id=done["job"]["id"], progress=70, message="soon")
        await wire.ok("ACK", id=done["job"]["id"], token=done["token"], result=result)
    for options in (
        {"jobId": f"own-done-{number}", "keepCompleted": 48 * HOUR_MS},
        {"removeOnComplete": True},
        {"uniqueKey": "ended", "dedup": {"ttl": 24 * HOUR_MS, "onConflict": "keep"}},
        {"uniqueKey": "kept", "dedup": {"states": ["completed"]}},
        {"jobId": f"own-dead-{number}", "keepFailed": 48 * HOUR_MS},
    ):
        job_id = await push(wire, made, queue, **options)
        token = (await wire.ok("PULL", queue=queue, owner="w"))["token"]
        if "keepFailed" in options:
            await wire.ok("FAIL", id=job_id, token=token, error="bad", stack=["a", "b"], unrecoverable=True)
        else:
            await wire.ok("ACK", id=job_id, token=token, result=[number])
    again = await push(wire, made, queue, backoff=10 * HOUR_MS, maxAttempts=4, name="again")
    token = (await wire.ok("PULL", queue=queue, owner="w"))["token"]
    await wire.ok("FAIL", id=again, token=token, error="not yet", stack="line 1\nline 2")
    made.delayed.append(again)
    for options in ({"jobId": f"own-held-{number}"}, {"timeout": 10 * HOUR_MS}, {"uniqueKey": "held"}):
        job_id = await push(wire, made, queue, **options)
        pulled = await wire.ok("PULL", queue=queue, owner="worker", lockTtl=HOUR_MS)
        made.tokens[job_id] = pulled["token"]
        await wire.ok("JobHeartbeat", id=job_id, token=pulled["token"])
    await wire.ok("Progress", id=job_id, progress=33.5, message="at work")


async def _waiting(wire: Wire, made: Made, number: int) -> None:
    queue = QUEUES[number]
    made.delayed.append(await push(wire, made, queue, **LONG, jobId=f"own-later-{number}"))
    made.delayed.append(await push(wire, made, queue, **LONG, name="later", tags=["t"]))
    logged = await push(wire, made, queue, jobId=f"own-waiting-{number}", keepLogs=2)
    for line in ("one", "two", "three"):
        await wire.ok("AddLog", id=logged, message=line, level="warn")
    await push(wire, made, queue, uniqueKey="waiting", dedup={"ttl": HOUR_MS, "extend": True}, durable=True)
    made.once[f"key of {queue}"] = await push(wire, made, queue, idempotencyKey=f"key of {queue}")
    await push(wire, made, queue, data=None, ttl=30 * HOUR_MS, customId=f"custom-{number}")


async def _settings(wire: Wire, made: Made, number: int) -> None:
    """What is set for queues, also for some that do not exist."""
    queue = SIDE[number]
    for group in ("a", "b", "b/c"):
        await push(wire, made, queue, groupId=group)
    await wire.ok("SetGroupConcurrency", queue=queue, groupId="b/c", concurrency=number + 1)
    await wire.ok("SetGroupRateLimit", queue=queue, groupId="a", max=5, duration=HOUR_MS)
    await wire.ok("SetGroupWeight", queue=queue, groupId="a", weight=3)
    await wire.ok("SetGroupDefaults", queue=queue, config={"concurrency": 60 + number})
    await wire.ok("PauseGroup", queue=queue, groupId="b")
    bounds = {"maxWaiting": 1_000_000, "maxWaitingBytes": 500_000_000, "keepAge": 0, "keepCount": 70 + number}
    await wire.ok("SetBounds", queue=queue, config=bounds)
    function = {"name": "f", "options": {"tags": ["f"]}, "schema": {"type": "object"}}
    await wire.ok("DeclareFunctions", queue=queue, functions=[function], app=f"app {number}")
    await wire.ok("SetConcurrency", queue=queue, limit=number + 2)
    await wire.ok("RateLimit", queue=queue, limit=100 + number, duration=HOUR_MS)
    await wire.ok("Pause", queue=queue)
    for name in (queue, f"nobody-{number}"):
        await wire.ok("SetDlqConfig", queue=name, config={"maxEntries": 50 + number})
        await wire.ok("SetStallConfig", queue=name, config={"maxStalls": 2 + number})
    await wire.ok("Cron", name=f"cron {number}", queue=queue, schedule="0 0 1 1 *", data={"n": number})
    await wire.ok(
        "Cron", name=f"every {number}", queue=queue, repeatEvery=HOUR_MS, jobOptions={"maxAttempts": 7}
    )
    await push(wire, made, f"gone-{number}", data=number)
    await wire.ok("Obliterate", queue=f"gone-{number}")
    made.ids.pop()


async def _ordered(wire: Wire, made: Made, number: int) -> None:
    queue = ORDER[number]
    jobs = [{"data": n, "priority": n % 3, "lifo": n % 5 == 0} for n in range(20)]
    ids = (await wire.ok("PUSHB", queue=queue, jobs=jobs))["ids"]
    made.ids += ids

    def place(n: int) -> tuple[int, bool, int]:
        return -jobs[n]["priority"], not jobs[n]["lifo"], -n if jobs[n]["lifo"] else n

    made.order[queue] = [ids[n] for n in sorted(range(20), key=place)]


async def _dependent(wire: Wire, made: Made, number: int) -> None:
    """A job that waits for one of each queue; one that waits for none; one that waits for a dead one."""
    queue = QUEUES[number]
    needs = [f"own-waiting-{other}" for other in range(SPREAD)] + [f"own-held-{(number + 1) % SPREAD}"]
    waiting = await push(wire, made, queue, dependsOn=needs, jobId=f"own-blocked-{number}")
    made.needs[waiting] = needs
    done = [f"own-done-{other}" for other in range(SPREAD)]
    made.needs[await push(wire, made, queue, dependsOn=done)] = []
    await push(
        wire, made, queue, dependsOn=[f"own-dead-{(number + 3) % SPREAD}"], jobId=f"own-stuck-{number}"
    )


async def _families(wire: Wire, made: Made) -> None:
    """Flows over all queues, some of whose children have failed, and a parent that waits for its children."""
    for number, policy in enumerate(("continueParentOnFailure", "ignoreDependencyOnFailure", "")):
        children = [f"flow-{number}-child-{other}" for other in range(SPREAD)]
        jobs = [
            {
                "id": child,
                "queue": QUEUES[other],
                "input": {"data": {}, "parentId": f"flow-{number}", "priority": 9},
            }
            for other, child in enumerate(children)
        ]
        parent = {"data": {}, "dependsOn": children, "childrenIds": children}
        jobs.append({"id": f"flow-{number}", "queue": QUEUES[number], "input": parent})
        if policy:
            jobs[5]["input"][policy] = True  # type: ignore[index]
        await wire.ok("PUSHF", jobs=jobs)
        made.ids += [*children, f"flow-{number}"]
        made.needs[f"flow-{number}"] = [] if number == 0 else [*children[:5], children[7]]
        for other in (5, 6):
            pulled = await wire.ok("PULL", queue=QUEUES[other], owner="w")
            assert pulled["job"]["id"] == children[other]
            if other == 5 and policy:
                await wire.ok("FAIL", id=children[5], token=pulled["token"], error="no", unrecoverable=True)
            else:
                await wire.ok("ACK", id=children[other], token=pulled["token"], result={"child": other})
    await wire.ok("UpdateParent", childId="own-waiting-2", parentId="own-later-6")
    made.needs["own-later-6"] = ["own-waiting-2"]


async def _workflows(wire: Wire, made: Made, number: int) -> None:
    """A workflow that sleeps, one that waits for a signal and one that waits for jobs of other queues; each
    with steps. What they wait for does not come while the rest is worked off."""
    queue = FLOWS[number]
    for kind in ("sleep", "signal", "child"):
        job_id = f"workflow-{kind}-{number}"
        await push(wire, made, queue, jobId=job_id, workflow=True)
        token = (await wire.ok("PULL", queue=queue, owner="w"))["token"]
        wait = {"name": "wait", "kind": kind, "status": "waiting", "signal": "go", "delay": 1000 * HOUR_MS}
        if kind == "child":
            child = f"own-started-{number}"
            order = {"queue": CHILDREN[(number + 3) % SPREAD], "input": {"data": number, "jobId": child}}
            made.ids.append(child)
            wait = {"name": "wait", "kind": kind, "status": "waiting", "child": order}
        steps = [{"name": "charge", "result": {"paid": 5}, "undo": True}, {"name": "", "kind": "state"}, wait]
        records = [{"id": job_id, "token": token, **step} for step in steps]
        answers = (await wire.ok("RecordSteps", queue=queue, steps=records))["results"]
        assert all(answer is None or "refused" not in answer for answer in answers), answers
        await wire.ok("SendSignal", id=job_id, name="kept", data=[1], signalId="once")
        await wire.ok("SuspendJob", queue=queue, id=job_id, token=token, groups=[{"steps": ["wait"]}])


async def _graphs(wire: Wire, made: Made, number: int) -> None:
    """Flows with names over all queues: a diamond that has half run, one that has failed and hears of it by
    each policy, one that was cancelled, and batches: an open one and a closed one."""
    diamond = {"fetch": [], "left": ["fetch"], "right": ["fetch"], "join": ["left", "right"]}
    await _graph(wire, made, f"diamond-{number}", diamond, left={"removeOnComplete": True})
    await _end_next(wire, number, f"diamond-{number}:fetch")
    await _end_next(wire, number + 1, f"diamond-{number}:left")
    policies = ("fail", "ignore", "continue", "remove", "wait")
    options = {policy: {"onDeadDependency": policy} for policy in policies}
    graph = {"bad": [], "later": [], **{policy: ["bad", "later"] for policy in policies}}
    await _graph(wire, made, f"dead-{number}", graph, **options)
    await _end_next(wire, number, f"dead-{number}:bad", error="it is down")
    await _graph(wire, made, f"cancelled-{number}", {"a": [], "b": ["a"]})
    await wire.ok("CancelFlow", flow=f"cancelled-{number}", reason="it was withdrawn")
    for kind in ("open", "closed"):
        await _graph(wire, made, f"{kind}-{number}", {"on-complete": [], "on-success": []})
        await _graph(wire, made, f"{kind}-{number}", {"one": [], "two": [], "three": []}, grow=True)
        await _end_next(wire, number, f"{kind}-{number}:one")
        if kind == "closed":
            await _end_next(wire, number + 1, f"{kind}-{number}:two", error="no such address")
            await wire.ok("CloseFlow", flow=f"{kind}-{number}")
    needs = {
        "diamond": {"join": ["right"]},
        "dead": {
            "fail": ["bad", "later"],
            "wait": ["bad", "later"],
            "ignore": ["later"],
            "remove": ["later"],
        },
        "cancelled": {"b": ["a"]},
        "open": {"on-complete": ["two", "three"], "on-success": ["two", "three"]},
        "closed": {"on-complete": ["three"], "on-success": ["two", "three"]},
    }
    for flow, nodes in needs.items():
        for name, before in nodes.items():
            made.needs[f"{flow}-{number}:{name}"] = [f"{flow}-{number}:{other}" for other in before]


async def _graph(
    wire: Wire, made: Made, flow: str, graph: dict[str, list[str]], *, grow: bool = False, **options: Any
) -> None:
    """A flow whose first job is of the queue with the number of the flow, its second of the next one, and so
    on.  Those that end before the questions go first."""
    kind, _, first = flow.partition("-")
    nodes = [
        {
            "name": name,
            "queue": NODES[(int(first) + place) % SPREAD],
            "after": after,
            "input": {
                "data": {"n": place},
                "maxAttempts": 1,
                "priority": 9 if name in SOON.get(kind, ()) else 0,
                **options.get(name, {}),
            },
        }
        | ({"gathers": name.removeprefix("on-")} if name.startswith("on-") else {})
        for place, (name, after) in enumerate(graph.items())
    ]
    made.ids += (await wire.ok("AddFlow", flow=flow, nodes=nodes, grow=grow))["data"]["ids"]
    made.flows += [] if grow else [flow]


async def _end_next(wire: Wire, number: int, job_id: str, error: str | None = None) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await wire.ok("GetState", id=job_id))["state"] == "waiting-children":
            pass  # what it waits for has ended on another shard
    pulled = await wire.ok("PULL", queue=NODES[number % SPREAD], owner="w")
    assert (pulled["job"] or {}).get("id") == job_id, (job_id, pulled["job"])
    if error is None:
        await wire.ok("ACK", id=job_id, token=pulled["token"], result={"of": job_id})
    else:
        await wire.ok("FAIL", id=job_id, token=pulled["token"], error=error)


# Questions


async def shown(wire: Wire, made: Made) -> dict[str, Any]:
    """What the server says of all of it: every query of the protocol about every queue and job."""
    questions: list[dict[str, Any]] = []
    for name, spec in COMMANDS.items():
        if spec.writes or spec.internal or name in OF_THE_MOMENT or spec.route is Route.ROUTER:
            continue
        if spec.route is Route.QUEUE:
            questions += [
                {"cmd": name, "queue": queue, **extra} for queue in _queues() for extra in _extra(name)
            ]
        elif spec.route is Route.ID:
            key = "customId" if name == "GetJobByCustomId" else "id"
            questions += [{"cmd": name, key: job_id} for job_id in made.ids]
        else:
            questions += [{"cmd": name, **extra} for extra in _rest(name, made)]
    found = {}
    for start in range(0, len(questions), 40):  # as many as a connection may have under way
        some = questions[start : start + 40]
        for question, reply in zip(some, wire.send_many(some), strict=True):
            found[str(question)] = _still(await reply)
            if question["cmd"] == "FindJobs":  # in the order of numbers, which are others on other shards
                found[str(question)]["jobs"].sort(key=itemgetter("id"))
            if question["cmd"] in ("ListErrors", "GetErrorGroup"):
                _without_time(found[str(question)].get("data", {}))
    return found


def _without_time(data: dict[str, Any]) -> None:
    """Groups of errors without what time alone changes, in an order that no shard has chosen."""
    groups = data.get("groups", [data])
    for group in groups:
        group.pop("minutes", None)
        group.pop("perMinute", None)
    groups.sort(key=lambda group: (group.get("queue", ""), group.get("id", "")))


def _queues() -> list[str]:
    return [*ALL, *(f"{name}-{number}" for name in ("nobody", "gone") for number in range(SPREAD))]


def _extra(name: str) -> list[dict[str, Any]]:
    """The other fields of queries about queues."""
    if name == "GetJobs":
        states = ["waiting", "active", "completed", "failed", "delayed", "waiting-children"]
        return [{}, {"asc": False, "limit": 3, "offset": 2}, *({"state": state} for state in states)]
    if name == "GetDeduplicationJobId":
        return [{"deduplicationId": key} for key in ("held", "waiting", "ended", "kept", "nobody")]
    if name == "GetFunction":
        return [{"name": "f"}]
    if name == "GetErrorGroup":
        return [{"group": kind_of(None, text)} for text in ("bad", "no such address")]
    if "Group" in name and name not in ("GetGroupsJobsCount", "GetGroupDefaults"):
        return [{"groupId": group} for group in ("a", "b", "b/c")]
    return [{}]


def _rest(name: str, made: Made) -> list[dict[str, Any]]:
    """The fields of queries about something else."""
    if name == "CronGet":
        return [{"name": f"cron {number}"} for number in range(SPREAD)]
    if name == "GetFlow":
        return [{"flow": flow} for flow in made.flows]
    return [{"limit": 1000}] if name == "FindJobs" else [{}]


def _still(value: Any) -> Any:
    """A reply without what changes by itself, and with lists of all shards in one order."""
    if isinstance(value, dict):
        return {
            key: sorted(_still(part), key=str) if key in ("queues", "crons") else _still(part)
            for key, part in value.items()
            if key not in MOVING and key != "reqId"
        }
    return [_still(part) for part in value] if isinstance(value, list) else value


# Work


async def work_off(wire: Wire, made: Made) -> list[str]:
    """Complete all that can be; the ids in that order."""
    done: list[str] = []
    for queue, order in made.order.items():
        await _work(wire, queue, done)
        assert done[-len(order) :] == order
    for job_id, token in made.tokens.items():
        assert "lock token" in await wire.error("ACK", id=job_id, token=f"{token[:-1]}x")
        await wire.ok("ACK", id=job_id, token=token, result="held")
        done.append(job_id)
    for queue in SIDE:
        for command in ("Resume", "ClearConcurrency", "RateLimitClear"):
            await wire.ok(command, queue=queue)
        await wire.ok("ResumeGroup", queue=queue, groupId="b")
    for number in range(SPREAD):
        signal = {"id": f"workflow-signal-{number}", "name": "go", "data": number}
        assert (await wire.ok("SendSignal", **signal))["data"]["delivered"]
        await wire.ok("PromoteJobs", queue=FLOWS[number])
    await _all_rounds(wire, done)
    for number in GRAPHS:
        await _go_on(wire, made, number)
    await _all_rounds(wire, done)
    for flow in made.flows:
        view = (await wire.ok("GetFlow", flow=flow))["data"]
        assert view["state"] == "completed", view
    for number in range(SPREAD):
        steps = (await wire.ok("GetWorkflow", id=f"workflow-child-{number}"))["data"]["steps"]
        assert [step["status"] for step in steps] == ["completed"] * 2
    return done


async def _all_rounds(wire: Wire, done: list[str]) -> None:
    before = -1
    while before < len(done):  # what was done may have let others go on
        before = len(done)
        for queue in (*QUEUES, *SIDE, *CHILDREN, *FLOWS, *NODES):
            if queue not in FLOWS:
                await wire.ok("PromoteJobs", queue=queue)
            await _work(wire, queue, done)


async def _go_on(wire: Wire, made: Made, number: int) -> None:
    """Flows are retried, grow and are closed."""
    more = {"name": "more", "queue": NODES[number], "after": ["one"], "input": {"data": {}}}
    for flow in ("diamond", "dead", "cancelled", "open"):
        again = await wire.error("AddFlow", flow=f"{flow}-{number}", nodes=[{**more, "after": []}])
        assert "is there already" in again, again
    assert "was closed" in await wire.error("AddFlow", flow=f"closed-{number}", nodes=[more], grow=True)
    made.ids += (await wire.ok("AddFlow", flow=f"open-{number}", nodes=[more], grow=True))["data"]["ids"]
    closed = (await wire.ok("CloseFlow", flow=f"open-{number}"))["data"]["ids"]
    assert {job_id.partition(":")[2] for job_id in closed} == {"one", "two", "three", "more"}
    found = (await wire.ok("RetryFlow", flow=f"dead-{number}"))["data"]["names"]
    assert set(found) == {"bad", "fail"}
    assert set((await wire.ok("RetryFlow", flow=f"cancelled-{number}"))["data"]["names"]) == {"a", "b"}
    assert set((await wire.ok("RetryFlow", flow=f"closed-{number}"))["data"]["names"]) == {
        "two",
        "on-success",
    }


async def _work(wire: Wire, queue: str, done: list[str]) -> None:
    """Take what is ready, and complete it."""
    while (pulled := await wire.ok("PULLB", queue=queue, count=100, owner="w"))["jobs"]:
        ids = [job["id"] for job in pulled["jobs"]]
        await wire.ok("ACKB", ids=ids, tokens=pulled["tokens"])
        done += ids
