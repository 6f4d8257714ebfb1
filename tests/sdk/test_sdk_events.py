"""Listening to a queue: over a server and embedded, and over a server that goes away."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.server import Server, StartServer, quiet_port
from support.waiting import eventually

from bunqueue import (
    ActiveJob,
    AsyncQueue,
    AsyncQueueEvents,
    ConnectionOptions,
    ConnectTimeout,
    OptionError,
    Queue,
    QueueEvent,
    QueueEvents,
    ResultError,
    Worker,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.protocol.commands import Ok, queues

PATIENCE = 60_000  # ms; far more than anything here takes


async def heard(events: AsyncQueueEvents, count: int) -> list[QueueEvent]:
    found = [await events.next(PATIENCE) for _ in range(count)]
    return [event for event in found if event is not None]


async def test_the_life_of_a_job_is_told(where: EndpointOptions, name: str) -> None:
    async def run(job: ActiveJob) -> Any:
        if job.attempts == 0:
            raise ValueError("out of paper")
        await job.progress(40, "printing")
        return {"pages": 3}

    async with AsyncQueue(name, **where) as queue, AsyncQueueEvents(name, **where) as events:
        handle = await queue.add("print", {"text": "x"}, backoff=1)
        async with Worker(name, run, **where):
            told = await heard(events, 7)
    assert {event.job_id for event in told} == {handle.id}
    assert {event.queue for event in told} == {name}
    types = [event.type for event in told]
    assert types == ["pushed", "pulled", "failed", "retried", "pulled", "progress", "completed"]
    failed, retried, progress, completed = told[2], told[3], told[5], told[6]
    assert (failed.error, failed.terminal, failed.data) == ("ValueError: out of paper", False, {"text": "x"})
    assert retried.prev is not None
    assert (progress.progress, progress.message) == (40, "printing")
    assert completed.data == {"pages": 3}
    assert type(completed.timestamp_ms) is int
    assert completed.timestamp.utcoffset() == timedelta(0)
    assert completed.timestamp >= told[0].timestamp


async def test_only_what_is_wanted_is_told(where: EndpointOptions, name: str) -> None:
    async with AsyncQueue(name, **where) as queue:
        first, second = await queue.add_bulk([("n", 1), ("n", 2)])
        only = AsyncQueueEvents(name, types=["completed"], job_ids=[second.id], **where)
        async with only as events, Worker(name, lambda job: job.data, **where):
            (event,) = await heard(events, 1)
            assert (event.type, event.job_id, event.data) == ("completed", second.id, 2)
            with pytest.raises(TimeoutError):
                await events.next(1)
        assert await first.result() == 1


async def test_data_that_was_left_out_is_not_taken_for_none(where: EndpointOptions, name: str) -> None:
    async with (
        AsyncQueue(name, **where) as queue,
        AsyncQueueEvents(name, types="completed", **where) as events,
    ):
        async with Worker(name, lambda job: "x" * job.data, **where):
            await queue.add_bulk([("small", 250_000), ("large", 300_000)])
            small, large = sorted(await heard(events, 2), key=lambda event: event.data_bytes or 0)
        assert (small.data, small.data_bytes) == ("x" * 250_000, None)
        assert (large.raw_data, large.data_bytes) == (None, 300_005)
        with pytest.raises(ResultError, match="has 300005 bytes, which is more than an event carries"):
            print(large.data)


async def test_iteration_ends_with_close_and_loses_nothing(where: EndpointOptions, name: str) -> None:
    told = []

    async def listen(events: AsyncQueueEvents) -> None:
        told.extend([event.type async for event in events])

    async with AsyncQueue(name, **where) as queue:
        async with AsyncQueueEvents(name, **where) as events:
            listening = asyncio.create_task(listen(events))
            await queue.add("n")
            await queue._caller.call(queues.Pause(queue=name), Ok)
            async with AsyncQueueEvents(name, **where) as last:  # what it hears was heard by the other, too
                await queue.add("n")
                await heard(last, 1)
        await asyncio.wait_for(listening, 60)
        assert told == ["pushed", "paused", "pushed"]
        assert await events.next() is None


async def test_a_cancelled_reader_loses_nothing(where: EndpointOptions, name: str) -> None:
    async with AsyncQueue(name, **where) as queue, AsyncQueueEvents(name, **where) as events:
        reader = asyncio.create_task(events.next())
        await asyncio.sleep(0)  # it begins to wait
        adding = asyncio.create_task(queue.add("n"))
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await adding
        assert [event.type for event in await heard(events, 1)] == ["pushed"]


async def test_a_slow_reader_is_told_how_much_it_missed(where: EndpointOptions, name: str) -> None:
    async with AsyncQueue(name, **where) as queue, AsyncQueueEvents(name, buffer=3, **where) as events:
        await queue.add_bulk([("n", number) for number in range(10)])
        last = AsyncQueueEvents(name, **where)
        async with last:  # what it hears was heard by the other, too
            await queue.add("n")
            await heard(last, 1)
        told = await heard(events, 4)
        assert [event.type for event in told] == ["pushed", "pushed", "pushed", "lost"]
        assert told[3].count == 8
        await queue.add("n")
        assert [event.type for event in await heard(events, 1)] == ["pushed"]


def test_the_blocking_twin(where: EndpointOptions, name: str) -> None:
    with Queue(name, **where) as queue, QueueEvents(name, types="pushed", **where) as events:
        handle = queue.add("n")
        event = events.next(PATIENCE)
        assert event is not None
        assert (event.type, event.job_id) == ("pushed", handle.id)
        with pytest.raises(TimeoutError):
            events.next(1)
        told = []
        thread = threading.Thread(target=lambda: told.extend(events))
        thread.start()
        queue.add_bulk([("n", None), ("n", None)])
    thread.join(60)
    assert not thread.is_alive()
    assert len(told) <= 2


async def test_a_lost_connection_is_made_anew_and_told(make_server: StartServer, name: str) -> None:
    server = make_server()
    server.start()
    place: EndpointOptions = {"host": server.host, "port": server.port}
    async with AsyncQueue(name, **place) as queue, AsyncQueueEvents(name, **place) as events:
        await queue.add("n")
        assert [event.type for event in await heard(events, 1)] == ["pushed"]
        for kill in (server.kill_shards, server.kill_all):
            await asyncio.to_thread(kill)
            if not server.running:
                await asyncio.to_thread(server.restart)
            (lost,) = await heard(events, 1)
            assert (lost.type, lost.count, lost.job_id) == ("lost", None, "")
            await queue.add("n")
            assert [event.type for event in await heard(events, 1)] == ["pushed"]


def sockets(server: Server) -> int:
    """How many connections the router has."""
    count = 0
    for handle in Path(f"/proc/{server.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += "socket:" in os.readlink(handle)
    return count


async def test_streams_of_a_queue_share_a_connection(make_server: StartServer, name: str) -> None:
    server = make_server()
    server.start()
    place: EndpointOptions = {"host": server.host, "port": server.port}
    before = sockets(server)
    async with AsyncExitStack() as stack:
        streams = [AsyncQueueEvents(name, **place) for _ in range(100)]
        slow = AsyncQueueEvents(name, buffer=2, **place)
        for stream in (*streams, slow):
            await stack.enter_async_context(stream)
        assert sockets(server) == before + 1
        queue = await stack.enter_async_context(AsyncQueue(name, **place))
        await queue.add_bulk([("n", {"number": number}) for number in range(10)])
        first = [await heard(stream, 10) for stream in streams]
        assert {tuple(event.job_id for event in told) for told in first} == {
            tuple(event.job_id for event in first[0])
        }
        assert [event.type for event in await heard(slow, 3)] == ["pushed", "pushed", "lost"]
        await streams[0].close()  # which the others do not notice
        await queue.add("n")
        assert [event.type for event in await heard(streams[1], 1)] == ["pushed"]
    await eventually(lambda: sockets(server) == before, "the connection is closed with the last stream")


async def test_all_streams_are_told_of_a_connection_that_was_lost(
    make_server: StartServer, name: str
) -> None:
    server = make_server()
    server.start()
    place: EndpointOptions = {"host": server.host, "port": server.port}
    async with (
        AsyncQueue(name, **place) as queue,
        AsyncQueueEvents(name, **place) as one,
        AsyncQueueEvents(name, **place) as other,
    ):
        await asyncio.to_thread(server.kill_all)
        await asyncio.to_thread(server.restart)
        async with AsyncQueueEvents(name, **place) as late:
            for events in (one, other):
                assert [event.type for event in await heard(events, 1)] == ["lost"]
            await queue.add("n")
            for events in (one, other, late):
                assert [event.type for event in await heard(events, 1)] == ["pushed"]


async def test_what_one_reader_does_with_data_is_its_own_business(where: EndpointOptions, name: str) -> None:
    async with (
        AsyncQueue(name, **where) as queue,
        AsyncQueueEvents(name, types="completed", **where) as one,
        AsyncQueueEvents(name, types="completed", **where) as other,
        Worker(name, lambda job: {"pages": 3}, **where),
    ):
        await queue.add("n")
        (first,) = await heard(one, 1)
        first.data.clear()
        assert [event.data for event in await heard(other, 1)] == [{"pages": 3}]


async def test_no_server_is_told_at_once(name: str) -> None:
    options = ConnectionOptions(refused_timeout=50)
    events = AsyncQueueEvents(name, port=quiet_port(), connection=options)
    with pytest.raises(ConnectTimeout, match="SubscribeEvents for queue 'sdk-"):
        await events.open()
    await events.close()
    assert [event async for event in events] == []


async def test_many_events(shared_server: Server, name: str) -> None:
    place: EndpointOptions = {"host": shared_server.host, "port": shared_server.port}
    async with AsyncQueue(name, **place) as queue, AsyncQueueEvents(name, buffer=50_000, **place) as events:
        handles = await queue.add_bulk([("n", number) for number in range(5000)])
        told = await heard(events, 5000)
        assert [event.job_id for event in told] == [handle.id for handle in handles]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"types": ["complete"]}, "types: 'complete' is unknown; there are pushed, .*completed"),
        ({"types": 3}, "types: 3 is not allowed; give a list of texts"),
        ({"job_ids": 3}, "job_ids: 3 is not allowed"),
        ({"buffer": 0}, "buffer: 0 is not allowed"),
    ],
)
def test_what_cannot_be_listened_to_is_told(options: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        QueueEvents("q", **options)
