"""Adding over lines that break before the reply comes: every job is there once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
from support.server import Server

from bunqueue import AsyncQueue, BunqueueError, CommandFailed, ConnectionOptions, Queue

FIRST = 4  # replies that each connection hands on: what is sent again is answered, and not given up


class Forgetful:
    """A proxy that now and then ends the connection in place of handing on what the server says."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._tasks: set[asyncio.Task[None]] = set()
        self.every = 0  # how many replies until one is lost; 0: none is
        self.lost = self._seen = 0
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream, downstream = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ask(reader, downstream))
                tasks.create_task(self._tell(upstream, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            downstream.transport.abort()
            self._tasks.discard(task)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        raise ConnectionResetError

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told = 0
        due = False
        while data := await reader.read(65536):
            self._seen += 1
            due = due or bool(self.every and self._seen % self.every == 0)
            if due and told >= FIRST:
                self.lost += 1
                raise ConnectionResetError
            writer.write(data)
            told += 1
        raise ConnectionResetError


@pytest.fixture
async def proxy(shared_server: Server) -> AsyncIterator[Forgetful]:
    proxy = Forgetful(shared_server.port)
    await proxy.start()
    yield proxy
    await proxy.stop()


async def contents(server: Server, name: str) -> Counter[int]:
    async with AsyncQueue(name, port=server.port) as queue:
        jobs = [job async for job in _all(queue)]
    return Counter(jobs)


async def _all(queue: AsyncQueue) -> AsyncIterator[int]:
    offset = 0
    while page := await queue.get_jobs(limit=1000, offset=offset):
        for job in page:
            yield job.data
        offset += len(page)


OPTIONS = ConnectionOptions(pool_size=2)


async def test_jobs_added_side_by_side_are_there_once(shared_server: Server, proxy: Forgetful) -> None:
    async with AsyncQueue("side-by-side", port=proxy.port, connection=OPTIONS) as queue:
        await queue.count()
        proxy.every, added = 5, 0
        while proxy.lost < 5:
            await asyncio.gather(*[queue.add("n", number) for number in range(added, added + 50)])
            added += 50
        proxy.every = 0
    assert await contents(shared_server, "side-by-side") == Counter(range(added))


@pytest.mark.parametrize("bulk", [False, True])
async def test_jobs_added_by_threads_are_there_once(
    shared_server: Server, proxy: Forgetful, bulk: bool
) -> None:
    name = f"threads-{bulk}"
    proxy.every = 11

    def add_some(queue: Queue, numbers: range) -> None:
        if bulk:
            for number in numbers[::5]:
                queue.add_bulk([("n", each) for each in range(number, number + 5)])
        else:
            for number in numbers:
                queue.add("n", number)

    added = 0
    with Queue(name, port=proxy.port, connection=OPTIONS) as queue:
        while proxy.lost < 5:
            parts = [range(start, start + 100) for start in range(added, added + 300, 100)]
            await asyncio.gather(*[asyncio.to_thread(add_some, queue, numbers) for numbers in parts])
            added += 300
        proxy.every = 0
    assert await contents(shared_server, name) == Counter(range(added))


async def test_a_key_of_ones_own_outlives_the_queue_and_the_shard(
    make_server: Callable[..., Server],
) -> None:
    server = make_server()
    server.start()
    async with AsyncQueue("own", port=server.port) as queue:
        first = await queue.add("n", 1, idempotency_key="order-17")
    server.kill_all()
    server.start()
    with Queue("own", port=server.port) as again:
        second = await asyncio.to_thread(again.add, "n", 1, idempotency_key="order-17")
        assert (first.id, first.created, second.created) == (second.id, True, False)
        for name, data in (("n", 2), ("other", 1)):
            with pytest.raises(
                CommandFailed, match="'order-17' was used a moment ago to push something else"
            ):
                await asyncio.to_thread(again.add, name, data, idempotency_key="order-17")
        assert await asyncio.to_thread(again.count) == 1


async def test_a_key_of_ones_own_is_for_the_same_batch(shared_server: Server) -> None:
    async with AsyncQueue("own-batch", port=shared_server.port) as queue:
        first = await queue.add_bulk([("a", 1), ("b", 2)], idempotency_key="k")
        second = await queue.add_bulk([("a", 1), ("b", 2)], idempotency_key="k")
        assert [job.id for job in first] == [job.id for job in second]
        assert [job.created for job in first + second] == [True, True, False, False]
        for other in ([("a", 1)], [("a", 1), ("b", 3)], [("b", 1), ("a", 2)]):
            with pytest.raises(CommandFailed, match="to push something else"):
                await queue.add_bulk(other, idempotency_key="k")
        assert await queue.count() == 2


async def test_pushes_under_way_when_the_server_is_killed_are_there_once_or_told(
    make_server: Callable[..., Server],
) -> None:
    server = make_server()
    server.start()
    told: set[int] = set()

    async def add(queue: AsyncQueue, number: int) -> None:
        try:
            await queue.add("n", number)
        except BunqueueError:
            told.add(number)

    async with AsyncQueue("killed", port=server.port) as queue:
        await queue.add("n", -1)
        adding = [asyncio.ensure_future(add(queue, number)) for number in range(2000)]
        await asyncio.sleep(0.02)  # into the middle of it
        server.kill_all()
        await asyncio.to_thread(server.start)
        await asyncio.gather(*adding)
    found = await contents(server, "killed")
    assert max(found.values()) == 1
    assert found.keys() | told == set(range(-1, 2000))
    assert not told  # the server was back in time
