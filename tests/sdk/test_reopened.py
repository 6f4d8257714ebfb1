"""Clients that were closed are open again for those who enter them again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bunqueue import (
    Admin,
    AsyncAdmin,
    AsyncFlowProducer,
    AsyncQueue,
    AsyncQueueEvents,
    AsyncQueueGroup,
    ConnectionLost,
    FlowJob,
    FlowProducer,
    Queue,
    QueueEvents,
    QueueGroup,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions


def use(client: Any) -> Any:
    """Something that needs the connection."""
    if isinstance(client, Queue | AsyncQueue):
        return client.count()
    if isinstance(client, FlowProducer | AsyncFlowProducer):
        return client.add(FlowJob("n", queue="reopened"))
    if isinstance(client, QueueGroup | AsyncQueueGroup):
        return client.list_queues()
    return client.ping()


@pytest.mark.parametrize("kind", [Queue, FlowProducer, Admin, QueueGroup])
def test_blocking_clients(where: EndpointOptions, kind: Any) -> None:
    named = kind in (Queue, QueueGroup)
    client = kind("reopened", **where) if named else kind(**where)
    for _ in range(3):
        with client:
            use(client)
            with client:  # within, as two parts of a program may share it
                use(client)
            use(client)
        with pytest.raises(ConnectionLost, match="is closed"):
            use(client)
    with client:
        client.close()
        client.close()
        with pytest.raises(ConnectionLost, match="is closed"):
            use(client)
    with client:
        use(client)


@pytest.mark.parametrize("kind", [AsyncQueue, AsyncFlowProducer, AsyncAdmin, AsyncQueueGroup])
def test_asynchronous_clients_also_in_another_loop(where: EndpointOptions, kind: Any) -> None:
    named = kind in (AsyncQueue, AsyncQueueGroup)
    client = kind("reopened", **where) if named else kind(**where)

    async def once() -> None:
        async with client:
            await use(client)
            async with client:
                await use(client)
            await use(client)
        with pytest.raises(ConnectionLost, match="is closed"):
            await use(client)

    async def main() -> None:
        await once()
        await once()

    for _ in range(2):
        asyncio.run(main())


def test_a_handle_of_before_works_again(where: EndpointOptions) -> None:
    client = Queue("reopened-handles", **where)
    with client:
        handle = client.add("n", {"x": 1})
    with client:
        assert handle.state() == "waiting"


async def test_events(where: EndpointOptions) -> None:
    async with AsyncQueue("reopened-events", **where) as queue:
        events = AsyncQueueEvents("reopened-events", **where)
        for number in range(2):
            async with events:
                await queue.add("n", number)
                assert (await events.next(60_000)) is not None
            assert await events.next() is None


def test_blocking_events(where: EndpointOptions) -> None:
    with Queue("reopened-blocking-events", **where) as queue:
        events = QueueEvents("reopened-blocking-events", **where)
        for number in range(2):
            with events:
                queue.add("n", number)
                assert events.next(60_000) is not None
