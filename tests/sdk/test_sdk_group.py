"""Namespaces of queues: over a server and embedded."""

from __future__ import annotations

import pytest
from support.waiting import eventually

from bunqueue import ActiveJob, AsyncQueue, AsyncQueueGroup, OptionError, QueueGroup
from bunqueue.client.connection.endpoint_options import EndpointOptions


async def names(group: AsyncQueueGroup) -> list[str]:
    return [queue.name for queue in await group.list_queues()]


async def test_queues_carry_the_namespace(where: EndpointOptions, name: str) -> None:
    async with AsyncQueueGroup(name, default_job_options={"max_attempts": 7}, **where) as group:
        queue = group.queue("invoices")
        assert queue is group.queue("invoices")
        assert queue.name == group.full_name("invoices") == f"{name}:invoices"
        job = await (await queue.add("send", {"number": 17})).job()
        assert (job.queue, job.max_attempts) == (f"{name}:invoices", 7)
        assert await names(group) == [f"{name}:invoices"]


async def test_what_is_done_to_all_is_done_to_no_other(where: EndpointOptions, name: str) -> None:
    async with AsyncQueueGroup(name, **where) as group, AsyncQueue(f"{name}2:a", **where) as other:
        async with AsyncQueue(f"{name}:b", **where) as foreign:  # in the namespace, but not made by the group
            await foreign.add("n")
        await group.queue("a").add_bulk([("n", None), ("n", None)])
        await other.add("n")
        assert await names(group) == [f"{name}:a", f"{name}:b"]
        assert {queue: counts.waiting for queue, counts in (await group.counts()).items()} == {
            f"{name}:a": 2,
            f"{name}:b": 1,
        }
        await group.pause_all()
        assert [queue.paused for queue in await group.list_queues()] == [True, True]
        await group.resume_all()
        assert [queue.paused for queue in await group.list_queues()] == [False, False]
        assert await group.drain_all() == 3
        assert await group.drain_all() == 0
        await group.obliterate_all()
        assert await names(group) == []
        assert (await other.counts()).waiting == 1


async def test_workers_of_the_namespace(where: EndpointOptions, name: str) -> None:
    async def run(job: ActiveJob) -> object:
        return job.data

    async with AsyncQueueGroup(name, **where) as group:
        handle = await group.queue("a").add("n", 5)
        async with group.worker("a", run, concurrency=2) as worker:
            assert worker.queue == f"{name}:a"
            await eventually(handle.result, "the job has a result")
        assert await handle.result() == 5


async def test_queues_are_closed_with_the_group(where: EndpointOptions, name: str) -> None:
    async with AsyncQueueGroup(name, **where) as group:
        queue = group.queue("a")
        await queue.add("n")
    with pytest.raises(ConnectionError, match="closed"):
        await queue.add("n")


def test_the_blocking_twin(where: EndpointOptions, name: str) -> None:
    with QueueGroup(name, **where) as group:
        group.queue("a").add("n")
        assert [queue.name for queue in group.list_queues()] == [f"{name}:a"]
        group.pause_all()
        assert group.drain_all() == 1


@pytest.mark.parametrize("namespace", ["", "a b", "ä", "n" * 201, None])
def test_what_cannot_be_a_namespace_is_told(namespace: str) -> None:
    with pytest.raises(OptionError, match=r"namespace: .* is not allowed; give 1 to 200"):
        QueueGroup(namespace)
