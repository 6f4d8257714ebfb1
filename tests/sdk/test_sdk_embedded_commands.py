"""Every command of the protocol gives the same answer from an embedded engine as from a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.msgpack import Decoder, Encoder
from support.server import Server
from support.waiting import eventually

from bunqueue.client.connection.options import ConnectionOptions
from bunqueue.client.connection.transport import Endpoint, Transport
from bunqueue.protocol.commands import COMMANDS

encode = Encoder().encode
decode = Decoder().decode
Call = Callable[..., Awaitable[Any]]

Q = "commands"
FLOW = [
    {"id": "flow-child", "queue": "flow", "input": {"name": "child", "data": {}}},
    {
        "id": "flow-parent",
        "queue": "flow",
        "input": {"data": {}, "dependsOn": ["flow-child"], "childrenIds": ["flow-child"]},
    },
]
FAR = 3_600_000


class Conversation:
    """One session, and the shapes of all answers that it got."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.seen: list[tuple[str, object]] = []

    async def __call__(self, cmd: str, **fields: Any) -> Any:
        command = Decoder(COMMANDS[cmd].request).decode(encode({"cmd": cmd, **fields}))
        answer = decode(await self.transport.call(command))
        answer.pop("reqId", None)
        self.seen.append((cmd, shape(answer)))
        return answer

    async def push(self, **fields: Any) -> str:
        answer = await self("PUSH", **{"queue": Q, "data": 1, **fields})
        return str(answer["id"])

    async def pull(self, **fields: Any) -> dict[str, Any]:
        answer = await self("PULL", **{"queue": Q, "timeout": 5000, "owner": "me", **fields})
        return {"id": answer["job"]["id"], "token": answer["token"]}


def shape(value: object, name: str = "") -> object:
    """What kind of value it is; of errors the text, of lists the first entry."""
    if isinstance(value, dict):
        return {key: shape(entry, key) for key, entry in value.items()}
    if name == "rooms":  # how much disk a shard process has; embedded mode keeps no account of that
        return "list"
    if isinstance(value, list):
        return [shape(entry) for entry in value[:1]]
    if name == "error" or isinstance(value, bool) or value is None:
        return value
    return "number" if isinstance(value, int | float) else type(value).__name__


async def life_of_jobs(say: Conversation) -> None:
    await say("Hello", protocolVersion=2)
    await say("Auth", token="any")
    await say("Ping")
    await say.push(jobId="own", priority=3, uniqueKey="k", delay=FAR)
    await say("PUSHB", queue=Q, jobs=[{"data": 1}, {"data": 2}])
    first, second = await say.pull(), await say.pull()
    await say("JobHeartbeat", **first)
    await say("JobHeartbeatB", ids=[first["id"]], tokens=[first["token"]])
    await say("ExtendLock", **first, duration=60_000)
    await say("ExtendLocks", ids=[first["id"]], tokens=[first["token"]], durations=[60_000])
    await say("Progress", id=first["id"], progress=50, message="half")
    await say("GetProgress", id=first["id"])
    await say("AddLog", id=first["id"], message="line")
    await say("GetLogs", id=first["id"])
    await say("ClearLogs", id=first["id"])
    await say("ACK", **first, result={"x": 1})
    await say("FAIL", **second, error="broken", unrecoverable=True)
    for cmd in ("GetJob", "GetState", "GetResult", "WaitJob"):
        await say(cmd, id=first["id"])
    await say("GetJobByCustomId", customId="own")
    await say("WaitJob", id="own", timeout=1)
    await say("WaitJobs", queue=Q, ids=[first["id"], "own"], timeout=1)
    await say("GetJob", id="nobody")
    await say("PULLB", queue=Q, count=5)
    await say("ACKB", ids=["nobody"], results=[None])
    await say("FAILB", ids=["nobody"], failures=[{"error": "x"}])


async def queue_control(say: Conversation) -> None:
    await say("GetJobs", queue=Q)
    for cmd in ("GetJobCounts", "Count", "GetCountsPerPriority", "GetQueueLimits"):
        await say(cmd, queue=Q)
    await say("GetDeduplicationJobId", queue=Q, deduplicationId="k")
    await say("RemoveJobDeduplicationKey", id="own")
    await say("RemoveDeduplicationKey", queue=Q, deduplicationId="k")
    await say("ChangePriority", id="own", priority=1)
    await say("ChangeDelay", id="own", delay=FAR)
    await say("Update", id="own", data=2)
    await say("Promote", id="own")
    held = await say.pull()
    await say("MoveToDelayed", **held, delay=FAR)
    await say("PromoteJobs", queue=Q, count=10)
    held = await say.pull()
    await say("MoveToWait", **held)
    held = await say.pull()
    await say("Discard", **held)
    await say("Cancel", id=await say.push())
    await say("RemoveJob", id=await say.push())
    for cmd in ("Pause", "IsPaused", "Resume"):
        await say(cmd, queue=Q)
    await say("RateLimit", queue=Q, limit=5)
    await say("RateLimitClear", queue=Q)
    await say("SetConcurrency", queue=Q, limit=5)
    await say("ClearConcurrency", queue=Q)


async def dead_letters(say: Conversation) -> None:
    await say("Dlq", queue=Q)
    await say("GetDlqStats", queue=Q)
    await say("ListErrors", queue=Q)
    for cmd in ("GetErrorGroup", "SetErrorGroup"):
        await say(cmd, queue=Q, group="0" * 12)
    function = {"name": "send", "schema": {"type": "object"}, "options": {"priority": 1}}
    await say("DeclareFunctions", queue=Q, functions=[function], app="one", invalidJobs="warn")
    await say("PUSH", queue=Q, name="send", data=1)
    await say("ListFunctions", queue=Q)
    await say("GetFunction", queue=Q, name="send")
    await say("RemoveFunction", queue=Q, name="send")
    await say("DeclareFunctions", queue=Q, functions=[], app="one")
    await say("SetDlqConfig", queue=Q, config={"maxEntries": 100})
    await say("GetDlqConfig", queue=Q)
    await say("SetStallConfig", queue=Q, config={"maxStalls": 2})
    await say("GetStallConfig", queue=Q)
    await say("RemoveDlqJob", queue=Q, jobId="nobody")
    await say("RetryDlq", queue=Q)
    await say("PurgeDlq", queue=Q)
    await say("RetryCompleted", queue=Q)


async def flows_and_groups(say: Conversation) -> None:
    await say("PUSHF", jobs=FLOW)
    child = await say.pull(queue="flow")
    await say("ACK", **child, result=1)
    for cmd in ("GetChildrenValues", "GetFailedChildrenValues", "GetIgnoredChildrenFailures"):
        await say(cmd, id="flow-parent")
    parent = await say.pull(queue="flow")
    await say("MoveToWaitingChildren", **parent)
    await say("UpdateParent", childId=await say.push(queue="flow"), parentId="flow-parent")
    await say("RemoveUnprocessedChildren", id="flow-parent")
    await say("RemoveChildDependency", id=await say.push(queue="flow", jobId="an orphan"))
    node = {"queue": "graph", "input": {"data": {}}}
    await say("AddFlow", flow="graph", nodes=[{"name": "a", **node}, {"name": "b", "after": ["a"], **node}])
    await say("AddFlow", flow="graph", nodes=[{"name": "c", "after": ["b"], **node}], grow=True)
    for cmd in ("GetFlow", "CancelFlow", "RetryFlow"):
        await say(cmd, flow="graph")
    gatherer = {"name": "on-success", "gathers": "success", **node}
    await say("AddFlow", flow="batch", nodes=[gatherer])
    await say("GetFlow", flow="batch")
    await say("CloseFlow", flow="batch")
    await say("ListFlows")
    await say.push(queue="groups", groupId="g")
    group = {"queue": "groups", "groupId": "g"}
    await say("GetGroupsJobsCount", queue="groups")
    await say("SetGroupRateLimit", **group, max=5, duration=1000)
    await say("SetGroupConcurrency", **group, concurrency=2)
    await say("RateLimitGroup", **group, duration=1000)
    await say("SetGroupWeight", **group, weight=3)
    await say("SetGroupDefaults", queue="groups", config={"concurrency": 2})
    for cmd in sorted(name for name in COMMANDS if "Group" in name and "Set" not in name):
        if cmd not in ("GetGroupsJobsCount", "RateLimitGroup", "GetErrorGroup"):
            await say(cmd, **group)


async def workflows(say: Conversation) -> None:
    flow: dict[str, Any] = {"queue": "workflows"}
    run = {**flow, "id": await say.push(**flow, jobId="run", workflow=True, data={"n": 1})}
    for held in (await say.pull(**flow), {"id": "run", "token": "another"}):
        await say("RecordSteps", **flow, steps=[{**held, "name": "charge", "result": 1}])
        await say("Reencode", **held, data={"n": 3})
        await say("RecordSteps", **flow, steps=[{**held, "name": "paid", "kind": "signal", "signal": "paid"}])
        await say("SuspendJob", **flow, **held, groups=[{"steps": ["paid"]}])
        await say("ContinueAsNew", **flow, **held, data={"n": 2})
    await say("GetSteps", **run)
    await say("GetWorkflow", id="run")
    await say("SendSignal", id="run", name="paid", data=1)
    await say("DropSignal", id="run", number=1)
    await say("Broadcast", name="paid", key="k", data=1)
    await say("SetSignalTypes", **flow, workflows={"order": {"paid": {"type": "number"}}})
    await say("ListKeys")
    await say("RetryWorkflow", id="run")
    await say("UndoWorkflow", id="run")
    await say("GetWorkflow", id="nobody")


async def whole_server(say: Conversation) -> None:
    await say("Cron", name="nightly", queue=Q, schedule="0 3 * * *")
    await say("CronGet", name="nightly")
    await say("CronNext", name="nightly", count=2)
    await say("CronPause", name="nightly")
    await say("CronResume", name="nightly")
    await say("CronList")
    await say("CronTrigger", name="nightly")
    await say("CronDelete", name="nightly")
    worker = (await say("RegisterWorker", name="w", queues=[Q]))["data"]["workerId"]
    await say("Heartbeat", id=worker, processed=3)
    await say("ControlWorker", workerId=worker, paused=True, concurrency=2)
    await say("Heartbeat", id=worker, paused=True)
    await say("ListWorkers")
    for cmd in ("DashboardOverview", "DashboardQueues", "Metrics", "StorageStatus", "ListQueues", "Stats"):
        await say(cmd)
    await say("Metrics", queue=Q, type="completed")
    text = (await say("Prometheus"))["data"]["metrics"]
    assert "bunqueue_workers_registered 1.0" in text
    assert "bunqueue_shard_up" in text
    await say("UnregisterWorker", workerId=worker)
    await say("UnregisterWorker", workerId=worker)
    await say("DashboardQueue", queue=Q)
    await say("CompactMemory")
    hook = (await say("AddWebhook", url="https://example.com/x", events=["job.completed"]))["data"][
        "webhookId"
    ]
    await say("ListWebhooks")
    await say("SetWebhookEnabled", id=hook, enabled=False)
    await say("TestWebhook", webhookId=hook)  # nobody is there to try it
    await say("RemoveWebhook", webhookId=hook)


async def the_end(say: Conversation) -> None:
    await say("SubscribeEvents", queue=Q)
    await say("UnsubscribeEvents")
    await say("GetEvents", limit=0)
    await say("ListShards")
    await say("ListGroups", queue="groups")
    await say("CountDlq", queue=Q)
    for wanted in ({"queue": "groups"}, {"queue": Q, "limit": 0}, {"where": "no query"}):
        await say("FindJobs", **wanted)
    for dry in (True, False):
        await say("ChangeJobs", queue="nobody", action="remove", dryRun=dry)
    last = await say.push()
    await say("WhyWaiting", id=last)
    await say("GetAttempts", id=last)
    await say("TrimEvents", queue=Q, maxLength=1)
    await say("Clean", queue=Q, grace=0)
    await say("Drain", queue=Q)
    await say("Obliterate", queue=Q)
    await say("PUSH", queue="not a name", data=1)


async def bounds(say: Conversation) -> None:
    await say("SetBounds", queue="bounded", config={"maxWaiting": 1})
    await say("SetBounds", queue="bounded", config={"whenFull": "drop-oldest"})
    await say("GetBounds", queue="bounded")
    await say("PUSHB", queue="bounded", jobs=[{"data": 1}, {"data": 2}])


async def breakers(say: Conversation) -> None:
    for cmd in ("ClearBreaker", "TripBreaker", "ResetBreaker"):
        await say(cmd, queue=Q)
    await say("SetBreaker", queue=Q, config={"failures": 2})
    await say("SetBreaker", queue=Q, config={"failures": 0})
    for cmd in ("TripBreaker", "ResetBreaker", "ListBreakers", "ClearBreaker"):
        await say(cmd, queue=Q)


async def no_cluster(say: Conversation) -> None:
    for cmd in ("ClusterStatus", "ClusterRebalance", "BackupStatus", "PromoteStandby"):
        await say(cmd)
    for cmd in ("ClusterDrain", "ClusterForget"):
        await say(cmd, host="one")
    await say("ClusterMove", host="one", shard=0)


PARTS = (
    life_of_jobs, queue_control, dead_letters, flows_and_groups, workflows, bounds, breakers,
    whole_server,
    no_cluster, the_end,
)  # fmt: skip


@asynccontextmanager
async def session(endpoint: Endpoint) -> AsyncIterator[Transport]:
    transport = await endpoint.open(private=True)
    try:
        yield transport
    finally:
        await transport.close()


async def test_every_command_answers_as_a_server_does(tmp_path: Path, server: Server) -> None:
    one = ConnectionOptions(pool_size=1)
    endpoints = [
        Endpoint(server.host, server.port, options=one),
        Endpoint(embedded=True, data_path=str(tmp_path / "jobs.db")),
        Endpoint(embedded=True),
    ]
    told = []
    for endpoint in endpoints:
        async with session(endpoint) as transport:
            say = Conversation(transport)
            for part in PARTS:
                await part(say)
            told.append(say.seen)
    public = {name for name, spec in COMMANDS.items() if not spec.internal}
    assert {cmd for cmd, _ in told[0]} == public, "have each new command said in one of PARTS"
    for answers in told[1:]:
        for ours, theirs in zip(answers, told[0], strict=True):
            assert ours == theirs


async def test_events_reach_the_session_that_asked(tmp_path: Path) -> None:
    heard: asyncio.Queue[bytes | None] = asyncio.Queue()
    endpoint = Endpoint(embedded=True, data_path=str(tmp_path / "jobs.db"))
    async with session(endpoint) as ear, session(endpoint) as other:
        ear.listen(heard.put_nowait)
        await Conversation(ear)("SubscribeEvents", queue=Q)
        say = Conversation(other)
        await say.push()
        await say.push(queue="another")
        held = await say.pull()
        await asyncio.to_thread(lambda: asyncio.run(complete_elsewhere(endpoint, held)))
        kinds = [decode(await heard.get() or b"")["event"]["eventType"] for _ in range(3)]
        assert kinds == ["pushed", "pulled", "completed"]
        await Conversation(ear)("UnsubscribeEvents")
        await say.push()
        await say("Ping")
        assert heard.empty()


async def complete_elsewhere(endpoint: Endpoint, held: dict[str, Any]) -> None:
    async with session(endpoint) as transport:
        await Conversation(transport)("ACK", **held)


async def test_an_ear_that_does_not_listen_is_told_how_much_it_missed(tmp_path: Path) -> None:
    """The event loop of the listener stands still, while another thread adds more than is kept for it."""
    heard: list[dict[str, Any]] = []
    endpoint = Endpoint(embedded=True, data_path=str(tmp_path / "jobs.db"))

    async def add() -> None:
        async with session(endpoint) as transport:
            for _ in range(12):
                await Conversation(transport)("PUSHB", queue=Q, jobs=[{}] * 10_000)

    async with session(endpoint) as ear:
        ear.listen(lambda payload: heard.append(decode(payload or b"")["event"]))
        await Conversation(ear)("SubscribeEvents", queue=Q)
        thread = threading.Thread(target=lambda: asyncio.run(add()))
        thread.start()
        thread.join()  # the loop is to stand still
        await eventually(lambda: sum(map(weight, heard)) == 120_000, "all are heard of")
        assert sum(event["eventType"] == "lost" for event in heard) == 1


def weight(event: dict[str, Any]) -> int:
    """How many events this one stands for."""
    return int(event.get("count", 1))
