"""The bounds of a namespace on the shards: how many queues, jobs, schedules and webhooks it may have.

Each test has a namespace of its own, named after its bound; ``beta`` has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from server.test_namespaces import Tenants
from support.naming import queue_on, queues_on
from support.server import dispose
from support.waiting import eventually
from support.wire import Wire

BOUNDS = {
    "one-by-one": "jobs = 2",
    "batches": "jobs = 3",
    "flows": "jobs = 2",
    "others": "jobs = 2",
    "replacing": "jobs = 1",
    "dropping": "jobs = 2",
    "restarted": "jobs = 4",
    "queues": "queues = 2",
    "crons": "schedules = 1",
    "hooks": "webhooks = 1",
}
Fields = dict[str, Any]


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    made = Tenants(tmp_path_factory.mktemp("room"), routers=1)
    for name in BOUNDS:
        made.add(name, "admin", name)
    made.write(made.text + "".join(f"\n[namespaces.{name}]\n{bound}\n" for name, bound in BOUNDS.items()))
    try:
        made.server.start()
        yield made
    finally:
        dispose(made.server)


def at_bound(reply: Fields, field: str, bound: int, value: int | None = None) -> bool:
    """Whether a reply refuses something for this bound of the namespace."""
    seen = reply.get("code"), reply.get("field"), reply.get("bound"), reply.get("value")
    return seen == ("QUOTA", field, bound, bound if value is None else value)


def on(namespace: str, shard: int) -> str:
    """A queue of a namespace on that shard, as those who live there call it."""
    return queue_on(shard, f"{namespace}/q").partition("/")[2]


async def ended(wire: Wire, queue: str) -> None:
    """Take a job of a queue, and complete it."""
    pulled = await wire.ok("PULL", queue=queue)
    await wire.ok("ACK", id=pulled["job"]["id"])


@pytest.mark.parametrize("options", [{}, {"maxAttempts": 2}], ids=["plain", "with options"])
async def test_a_job_beyond_the_bound_is_refused_until_another_one_has_ended(
    bounded: Tenants, options: Fields
) -> None:
    async with bounded.wires("one-by-one", "beta") as (wire, beta), bounded.web("one-by-one") as web:
        await wire.ok("PUSH", queue="q", data=1, **options)
        await wire.ok("PUSH", queue="q", data=2, delay=10**9, **options)
        refused = await wire.call("PUSH", queue="q", data=3, **options)
        assert at_bound(refused, "jobs", 2)
        assert refused["error"].startswith("the namespace one-by-one has 2 jobs on this shard")
        answer = await web.post("/queues/q/jobs", json={"data": 3, **options})
        assert (answer.status_code, at_bound(answer.json(), "jobs", 2)) == (429, True)
        for number in range(4):
            await beta.ok("PUSH", queue="q", data=number, **options)
        active = (await wire.ok("PULL", queue="q"))["job"]["id"]
        assert at_bound(await wire.call("PUSH", queue="q", data=3, **options), "jobs", 2)
        await wire.ok("ACK", id=active)
        last = (await wire.ok("PUSH", queue="q", data=3, **options))["id"]
        assert at_bound(await wire.call("PUSH", queue="q", data=4, **options), "jobs", 2)
        await wire.ok("Cancel", id=last)
        await wire.ok("PUSH", queue="q", data=4, **options)
        await wire.ok("Obliterate", queue="q")


async def test_a_refused_job_leaves_no_queue(bounded: Tenants) -> None:
    async with bounded.wires("one-by-one") as (wire,):
        first, second = list(zip(range(2), queues_on(0, "one-by-one/new"), strict=False))
        for _ in range(2):
            await wire.ok("PUSH", queue=first[1].partition("/")[2], data=1)
        assert at_bound(await wire.call("PUSH", queue=second[1].partition("/")[2], data=1), "jobs", 2)
        assert (await wire.ok("ListQueues"))["queues"] == [first[1].partition("/")[2]]
        await wire.ok("Obliterate", queue=first[1].partition("/")[2])


@pytest.mark.parametrize("options", [{}, {"priority": 3, "maxAttempts": 2}], ids=["plain", "with options"])
async def test_a_batch_is_added_or_refused_as_a_whole(bounded: Tenants, options: Fields) -> None:
    async with bounded.wires("batches") as (wire,):
        jobs = [{"data": number, **options} for number in range(3)]
        await wire.ok("PUSH", queue="q", data=0)
        assert at_bound(await wire.call("PUSHB", queue="q", jobs=jobs), "jobs", 3, 1)
        assert (await wire.ok("GetJobCounts", queue="q"))["counts"]["waiting"] == 1
        await wire.ok("PUSHB", queue="q", jobs=jobs[:2])
        assert at_bound(await wire.call("PUSHB", queue="q", jobs=jobs[:1]), "jobs", 3)
        await wire.ok("Drain", queue="q")
        await wire.ok("PUSHB", queue="q", jobs=jobs)
        await wire.ok("Obliterate", queue="q")


async def test_a_flow_over_two_shards_is_refused_as_a_whole(bounded: Tenants) -> None:
    async with bounded.wires("flows") as (wire,):
        here, there = on("flows", 0), on("flows", 1)
        jobs = [
            {"id": "top", "queue": here, "input": {"data": {}, "dependsOn": ["leaf"]}},
            {"id": "leaf", "queue": there, "input": {"data": {}, "parentId": "top"}},
        ]
        nodes = [
            {"name": "a", "queue": there, "input": {"data": {}}},
            {"name": "b", "queue": here, "after": ["a"], "input": {"data": {}}},
        ]
        for _ in range(2):
            await wire.ok("PUSH", queue=there, data=1)
        assert at_bound(await wire.call("PUSHF", jobs=jobs), "jobs", 2)
        assert at_bound(await wire.call("AddFlow", flow="f", nodes=nodes), "jobs", 2)
        assert (await wire.ok("ListQueues"))["queues"] == [there]
        await ended(wire, there)
        await wire.ok("PUSHF", jobs=jobs)
        assert at_bound(await wire.call("AddFlow", flow="f", nodes=nodes), "jobs", 2)
        await wire.ok("PUSH", queue=here, data=1)  # the second one there: the first waits for its child
        assert at_bound(await wire.call("PUSH", queue=here, data=1), "jobs", 2)


async def test_a_job_counts_whoever_adds_it(bounded: Tenants) -> None:
    """What the server adds itself is accepted, and counts."""
    async with bounded.wires("others", "root") as (wire, root):
        queue = "others/q"
        await root.ok("PUSH", queue=queue, data=1)
        await wire.ok("Cron", name="s", queue="q", repeatEvery=10**9, data=1, overlap="allow")
        await wire.ok("CronTrigger", name="s")
        assert at_bound(await root.call("PUSH", queue=queue, data=1), "jobs", 2)
        assert at_bound(await wire.call("PUSH", queue="q", data=1), "jobs", 2)
        await wire.ok("CronTrigger", name="s")
        assert at_bound(await wire.call("PUSH", queue="q", data=1), "jobs", 2, 3)


async def test_a_job_that_replaces_another_one_is_not_one_more(bounded: Tenants) -> None:
    async with bounded.wires("replacing") as (wire,):
        fields: Fields = {"queue": "q", "uniqueKey": "k", "delay": 10**9}
        first = await wire.ok("PUSH", data=1, **fields)
        assert (await wire.ok("PUSH", data=2, **fields))["id"] == first["id"]
        second = await wire.ok("PUSH", data=2, dedup={"replace": True}, **fields)
        assert second["id"] != first["id"]
        assert at_bound(await wire.call("PUSH", queue="q", data=3), "jobs", 1)


async def test_a_queue_that_drops_its_oldest_job_makes_room(bounded: Tenants) -> None:
    async with bounded.wires("dropping") as (wire,):
        await wire.ok("SetBounds", queue="q", config={"maxWaiting": 1, "whenFull": "drop-oldest"})
        await wire.ok("PUSH", queue="q", data=1)
        await wire.ok("PULL", queue="q")
        await wire.ok("PUSH", queue="q", data=2)
        await wire.ok("PUSH", queue="q", data=3)
        waiting = (await wire.ok("GetJobs", queue="q", state="waiting"))["jobs"]
        assert [job["data"] for job in waiting] == [3]


async def test_after_a_restart_the_count_is_right(bounded: Tenants) -> None:
    async with bounded.wires("restarted") as (wire,):
        await wire.ok("PUSH", queue="q", data="dead", maxAttempts=1)
        dead = await wire.ok("PULL", queue="q")
        await wire.ok("FAIL", id=dead["job"]["id"], error="no")
        await wire.ok("PUSH", queue="q", data="ended")
        await ended(wire, "q")
        active = (await wire.ok("PUSH", queue="q", data="active"))["id"]
        await wire.ok("PULL", queue="q", owner="worker", lockTtl=10**7)
        await wire.ok("PUSH", queue="q", data="delayed", delay=10**9)
        await wire.ok("PUSH", queue="q", data="blocked", dependsOn=[active])
    bounded.server.stop()
    bounded.server.start()
    async with bounded.wires("restarted") as (wire,):
        await wire.ok("PUSH", queue="q", data=1)
        assert at_bound(await wire.call("PUSH", queue="q", data=2), "jobs", 4)
        await wire.ok("RetryDlq", queue="q")
        assert at_bound(await wire.call("PUSH", queue="q", data=2), "jobs", 4, 5)
        await wire.ok("Obliterate", queue="q", force=True)
        await wire.ok("PUSHB", queue="q", jobs=[{"data": number} for number in range(4)])
        assert at_bound(await wire.call("PUSH", queue="q", data=2), "jobs", 4)


async def test_a_queue_beyond_the_bound_is_refused(bounded: Tenants) -> None:
    async with bounded.wires("queues", "beta") as (wire, beta):
        names = [name.partition("/")[2] for _, name in zip(range(4), queues_on(0, "queues/q"), strict=False)]
        await wire.ok("PUSH", queue=names[0], data=1)
        await wire.ok("Pause", queue=names[1])
        refused = await wire.call("PUSH", queue=names[2], data=1)
        assert at_bound(refused, "queues", 2)
        jobs = [{"id": "f", "queue": names[2], "input": {"data": {}}}]
        for command, fields in (
            ("Pause", {"queue": names[2]}),
            ("PUSHB", {"queue": names[2], "jobs": [{"data": 1}]}),
            ("PUSHF", {"jobs": jobs}),
        ):
            assert at_bound(await wire.call(command, **fields), "queues", 2), command
        await wire.ok("PUSH", queue=names[0], data=2)
        await wire.ok("PUSH", queue=on("queues", 1), data=1)  # another shard counts for itself
        for name in names:
            await beta.ok("PUSH", queue=name, data=1)
        await wire.ok("Obliterate", queue=names[0])

        async def has_room() -> bool:
            return bool((await wire.call("PUSH", queue=names[2], data=1))["ok"])

        await eventually(has_room, "the queue is gone")
        assert at_bound(await wire.call("PUSH", queue=names[3], data=1), "queues", 2)


async def test_a_schedule_beyond_the_bound_is_refused(bounded: Tenants) -> None:
    async with bounded.wires("crons", "beta") as (wire, beta), bounded.web("crons") as web:
        fields: Fields = {"queue": "q", "repeatEvery": 10**9, "data": 1}
        await wire.ok("Cron", name="a", **fields)
        await wire.ok("Cron", name="a", **fields)
        assert at_bound(await wire.call("Cron", name="b", **fields), "schedules", 1)
        answer = await web.post("/crons", json={"name": "b", **fields})
        assert (answer.status_code, at_bound(answer.json(), "schedules", 1)) == (429, True)
        for name in ("a", "b"):
            await beta.ok("Cron", name=name, **fields)
        await wire.ok("CronDelete", name="a")
        await wire.ok("Cron", name="b", **fields)


async def test_a_webhook_beyond_the_bound_is_refused(bounded: Tenants) -> None:
    async with bounded.wires("hooks", "beta", "root") as (wire, beta, root):
        fields: Fields = {"url": "https://example.com/", "events": ["job.completed"]}
        made = await wire.ok("AddWebhook", queue="q", **fields)
        assert at_bound(await wire.call("AddWebhook", queue="other", **fields), "webhooks", 1)
        assert at_bound(await root.call("AddWebhook", queue="hooks/other", **fields), "webhooks", 1)
        await root.ok("AddWebhook", **fields)
        for _ in range(2):
            await beta.ok("AddWebhook", queue="q", **fields)
        await wire.ok("RemoveWebhook", webhookId=made["data"]["webhookId"])
        await wire.ok("AddWebhook", queue="other", **fields)


async def test_a_change_of_the_file_applies_to_running_shards(bounded: Tenants) -> None:
    async with bounded.wires("crons") as (wire,):
        text = bounded.text
        bounded.write(text.replace("schedules = 1", "jobs = 1"))

        async def takes_one_only() -> bool:
            replies = [await wire.call("PUSH", queue="changed", data=number) for number in range(2)]
            for reply in replies:
                if reply["ok"]:
                    await ended(wire, "changed")
            return [reply["ok"] for reply in replies] == [True, False]

        await eventually(takes_one_only, "the shard knows the new bound")
        for name in ("c", "d"):
            await wire.ok("Cron", name=name, queue="q", repeatEvery=10**9, data=1)
        bounded.write(text)

        async def takes_two() -> bool:
            replies = [await wire.call("PUSH", queue="changed", data=number) for number in range(2)]
            return all(reply["ok"] for reply in replies)

        await eventually(takes_two, "the shard knows the old bounds again")
