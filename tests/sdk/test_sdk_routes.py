"""Which handler a job goes to: by its name, and by its queue, with one worker for several of both."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.waiting import eventually

from bunqueue import ActiveJob, AsyncAdmin, AsyncQueue, Bunqueue, Middleware, OptionError, Worker
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.worker import routes


@pytest.fixture
async def queues(where: EndpointOptions, name: str) -> AsyncIterator[list[AsyncQueue]]:
    made = [AsyncQueue(f"{name}-{place}", **where) for place in range(3)]
    yield made
    for queue in made:
        await queue.close()


async def test_jobs_go_to_the_handler_of_their_name(queues: list[AsyncQueue], where: EndpointOptions) -> None:
    async def greet(job: ActiveJob) -> str:
        return f"hello {job.data}"

    def rest(job: ActiveJob) -> str:
        return f"{job.name}?"

    queue = queues[0]
    one, two, three = await queue.add_bulk([("greet", "Ada"), ("other", None), ("*", None)])
    async with Worker(queue.name, {"greet": greet, "*": rest}, concurrency=2, **where) as worker:
        await eventually(lambda: worker.stats.completed == 3, "all are done")
    assert [await each.result() for each in (one, two, three)] == ["hello Ada", "other?", "*?"]


async def test_a_job_whose_name_nobody_knows_waits(
    queues: list[AsyncQueue],
    where: EndpointOptions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(routes, "UNKNOWN_MS", 300)
    queue = queues[0]
    handles = await queue.add_bulk(
        [("new", 1), ("new", 2), ("old", 3)],
    )
    async with Worker(queue.name, {"old": lambda job: "done"}, **where) as worker:
        await eventually(lambda: worker.stats.completed == 1, "what is known is done")

        async def all_wait() -> bool:
            return [await handle.state() for handle in handles[:2]] == ["delayed"] * 2

        await eventually(all_wait, "the others wait")

        async def is_said() -> bool:  # a worker makes itself known from a thread of its own
            return "unknown-name" in [reason.kind for reason in await handles[0].why_waiting()]

        await eventually(is_said, "it says that nobody runs it")
        job = await handles[0].job()
        assert (job.attempts, job.error) == (0, None)
        async with Worker(queue.name, {"new": lambda job: "found"}, **where) as newer:
            await eventually(lambda: newer.stats.completed == 2, "a worker that knows them takes them")
    async with Worker(queue.name, {"old": print}, **where), Worker(queue.name, {"*": print}, **where):
        late = await queue.add("new", delay=60_000)

        async def are_both_known() -> bool:
            async with AsyncAdmin(**where) as admin:
                return len(await admin.list_workers(queue.name)) == 2

        await eventually(are_both_known, "both workers are known")
        assert [reason.kind for reason in await late.why_waiting()] == ["delay"], "one of them runs all names"
    words = f"queue {queue.name!r}: nothing here runs jobs called 'new'; they wait"
    assert caplog.text.count(words) == 1
    assert (worker.stats.failed, worker.stats.lost) == (0, 0)


async def test_names_are_known_of_each_queue_of_an_app(
    queues: list[AsyncQueue], where: EndpointOptions
) -> None:
    """Its functions are of one queue each: what one queue runs says nothing of the others."""
    one, other, every = queues
    app = Bunqueue(one.name, order="strict", **where)
    app.route("mail")(print)
    app.route("call", queue=other.name)(print)
    app.route("*", queue=every.name)(print)
    async with app:
        known = [await queue.add(name, delay=60_000) for queue, name in ((one, "mail"), (every, "call"))]
        unknown = [await queue.add(name, delay=60_000) for queue, name in ((one, "call"), (other, "mail"))]

        async def are_said() -> bool:
            said = [[reason.kind for reason in await handle.why_waiting()] for handle in unknown]
            return said == [["delay", "unknown-name"]] * 2

        await eventually(are_said, "nobody runs them in their queue")
        assert [[reason.kind for reason in await each.why_waiting()] for each in known] == [["delay"]] * 2


@pytest.mark.parametrize("concurrency", [3, 10])
async def test_one_worker_for_several_queues(
    queues: list[AsyncQueue], where: EndpointOptions, concurrency: int
) -> None:
    seen: Counter[str] = Counter()
    running = most = 0

    async def handler(job: ActiveJob) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        seen[job.queue] += 1
        running -= 1

    for number, queue in enumerate(queues[:2]):
        await queue.add_bulk([("n", None)] * 150 * (number + 1))
    names = [queue.name for queue in queues]
    async with Worker(names, handler, concurrency=concurrency, poll_timeout=60_000, **where) as worker:
        await eventually(lambda: sum(seen.values()) == 450, "all are done")
        await queues[2].add("n")  # idle until now, with a poll of its own
        await eventually(lambda: seen[names[2]] == 1, "the third queue is looked at, too")
        await queues[0].add_bulk([("n", None)] * 100)
        await eventually(lambda: seen[names[0]] == 250, "and the first one again")
        await eventually(lambda: worker.stats.completed == 551, "all is reported")
    assert most <= concurrency
    assert seen == {names[0]: 250, names[1]: 300, names[2]: 1}


async def test_a_queue_full_of_slow_jobs_does_not_keep_others_out(
    queues: list[AsyncQueue], where: EndpointOptions
) -> None:
    slow, quick, _ = queues
    gate = asyncio.Event()

    async def handler(job: ActiveJob) -> None:
        if job.queue == slow.name:
            await gate.wait()

    await slow.add_bulk([("n", None)] * 20)
    async with Worker([slow.name, quick.name], handler, concurrency=4, **where) as worker:
        await eventually(lambda: worker.stats.active == 3, "all but one place are taken")
        handle = await quick.add("n")
        await eventually(lambda: worker.stats.completed == 1, "the other queue has its place")
        assert await handle.state() == "completed"
        gate.set()
        await eventually(lambda: worker.stats.completed == 21, "all are done")


@pytest.mark.parametrize(
    ("queue", "handler", "options", "error", "text"),
    [
        ("q", {}, {}, OptionError, "an empty map runs no jobs"),
        ("q", {"": print}, {}, OptionError, "a job cannot be called ''"),
        ("q", {"n": 5}, {}, TypeError, "5 cannot be called"),
        ([], print, {}, OptionError, "queue: .. is not allowed"),
        (["a", "a"], print, {}, OptionError, "several different ones"),
        (["a", "b c"], print, {"concurrency": 2}, OptionError, "'b c'"),
        (["a", "b"], print, {}, OptionError, "concurrency: 1 is too little for 2 queues"),
        ("q", print, {"threads": 0}, OptionError, "threads: 0 is not allowed"),
        ("q", print, {"concurency": 5}, OptionError, "no option 'concurency'; did you mean concurrency"),
        ("q", print, {"xyz": 5}, TypeError, "a worker has no option 'xyz'; there are ack_batch"),
        ("q", print, {"grace": -1}, OptionError, "grace: -1 is not allowed; give a time from 0 on"),
        ("q", print, {"ack_delay": -1}, OptionError, "ack_delay: -1 is not allowed"),
        ("q", print, {"poll_timeout": 10**9}, OptionError, "give a time from 0 to 60000 ms"),
        ("q", print, {"on_failed": 5}, OptionError, "on_failed: 5 cannot be called; give a function"),
        ("q", print, {"recycle": 5}, OptionError, r"recycle: 5 is not allowed; give a bunqueue\.Recycle"),
        ("q", print, {"middleware": Middleware()}, OptionError, "middleware: .* is no list; give one"),
        ("q", print, {"forward_logs": "loud"}, OptionError, "forward_logs: 'loud' is not a level"),
        ("q", print, {"name": "x" * 300}, OptionError, "give a text of 1 to 200 characters"),
    ],
)
def test_what_does_not_go_together(
    queue: Any, handler: Any, options: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Worker(queue, handler, **options)


def test_kinds_limit_what_is_taken() -> None:
    async def coroutine(job: ActiveJob) -> None:
        pass

    def limit(handler: Any, **options: Any) -> int:
        return Worker("q", handler, concurrency=20, **options)._config.concurrency

    assert limit(coroutine, threads=2) == 20
    assert limit(print, threads=2) == 2
    assert limit({"a": print, "b": coroutine}, threads=2) == 20
    assert limit(print) == 20
