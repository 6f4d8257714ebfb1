"""Bounded queues for users of this package: refuse, wait for space, drop the oldest; and what is kept."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from support.waiting import wait_until

from bunqueue import AsyncQueue, Bunqueue, CommandFailed, NewJob, OptionError, Queue, QueueFull
from bunqueue.client.connection.endpoint_options import EndpointOptions


async def test_a_full_queue_refuses(queue: AsyncQueue) -> None:
    await queue.set_bounds(max_waiting=2)
    await queue.add_bulk([("a", 1), ("b", 2)])
    with pytest.raises(QueueFull, match="2 of at most 2 jobs wait") as caught:
        await queue.add("c", 3)
    error = caught.value
    assert isinstance(error, CommandFailed)
    assert (error.code, error.field, error.value, error.bound) == ("queue_full", "maxWaiting", 2, 2)
    with pytest.raises(QueueFull):
        await queue.add_bulk([("c", 3)])
    found = await queue.bounds()
    assert (found.config.max_waiting, found.space.waiting, found.space.refused) == (2, 2, 2)
    await queue.set_bounds(max_waiting=None)
    await queue.add("c", 3)


async def test_the_oldest_make_room(queue: AsyncQueue) -> None:
    await queue.set_bounds(max_waiting_bytes=40, when_full="drop-oldest")
    for number in range(6):
        await queue.add("n", "x" * 9 + str(number))
    assert [job.data[-1] for job in await queue.get_jobs("waiting")] == ["3", "4", "5"]
    space = (await queue.bounds()).space
    assert (space.waiting_bytes, space.dropped) == (33, 3)


async def test_adding_waits_for_space(queue: AsyncQueue, where: EndpointOptions) -> None:
    await queue.set_bounds(max_waiting=1)
    await queue.add("first")
    async with AsyncQueue(queue.name, wait_if_full=timedelta(seconds=30), **where) as patient:
        one, many = asyncio.ensure_future(patient.add("second")), None
        done, _ = await asyncio.wait([one], timeout=0.2)  # it would have been refused by then
        assert not done
        assert await queue.pull() is not None
        assert (await one).created
        many = asyncio.ensure_future(patient.add_bulk([NewJob("third")]))
        assert await queue.pull() is not None
        assert [handle.created for handle in await many] == [True]


async def test_waiting_for_space_ends(queue: AsyncQueue, where: EndpointOptions) -> None:
    await queue.set_bounds(max_waiting=1)
    await queue.add("first")
    begun = time.monotonic()
    async with AsyncQueue(queue.name, wait_if_full=100, **where) as patient:
        with pytest.raises(QueueFull):
            await patient.add("second")
    assert 0.1 <= time.monotonic() - begun < 60
    with pytest.raises(OptionError, match="wait_if_full"):
        AsyncQueue(queue.name, wait_if_full=-1, **where)


def test_threads_wait_for_space_too(where: EndpointOptions, name: str) -> None:
    with Queue(name, wait_if_full=timedelta(hours=1), **where) as queue, ThreadPoolExecutor(1) as threads:
        queue.set_bounds(max_waiting=1)
        queue.add("first")
        adding = threads.submit(queue.add, "second")
        wait_until(lambda: queue.bounds().space.refused >= 2, "it has tried again")
        assert not adding.done()
        assert queue.pull() is not None
        assert adding.result().created
    with Queue(name, wait_if_full=100, **where) as queue:
        begun = time.monotonic()
        with pytest.raises(QueueFull):
            queue.add("third")
        assert time.monotonic() - begun >= 0.1


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"max_waiting": 0}, "max_waiting"),
        ({"max_waiting_bytes": "many"}, "max_waiting_bytes"),
        ({"when_full": "drop"}, "when_full: 'drop' is unknown; there are refuse, drop-oldest"),
        ({"keep_age": -1}, "keep_age"),
        ({"keep_count": 1.5}, "keep_count"),
    ],
)
async def test_wrong_bounds_are_refused(
    queue: AsyncQueue, where: EndpointOptions, bounds: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        await queue.set_bounds(**bounds)
    with pytest.raises(OptionError, match=words):
        Bunqueue("any", **bounds, **where)


async def test_an_app_declares_them(where: EndpointOptions, name: str) -> None:
    app = Bunqueue(name, max_waiting=5, keep_age=timedelta(hours=1), wait_if_full=50, **where)
    app.add_queue(f"{name}-b", max_waiting_bytes=1000, when_full="drop-oldest", keep_count=3)

    @app.job
    async def work() -> None: ...

    async with app:
        found = (await app.async_queue.bounds()).config
        assert (found.max_waiting, found.keep_age) == (5, 3_600_000)
    async with AsyncQueue(f"{name}-b", **where) as other:
        config = (await other.bounds()).config
        assert (config.max_waiting_bytes, config.when_full, config.keep_count) == (1000, "drop-oldest", 3)
