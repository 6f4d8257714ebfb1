"""What cannot be is refused before it is sent, in the words of who wrote it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from bunqueue import (
    AsyncFlowProducer,
    AsyncQueue,
    AsyncQueueEvents,
    Bunqueue,
    FlowJob,
    Middleware,
    NewJob,
    OptionError,
    PayloadError,
    RateLimit,
    Unrecoverable,
    Worker,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.testing import plugin

Call = Callable[[AsyncQueue], Awaitable[object]]


@pytest.fixture
async def queue() -> AsyncIterator[AsyncQueue]:
    """Nothing is there to send to: what is not refused here fails in another way."""
    async with AsyncQueue("bad-input", embedded=True, data_path="/nowhere/at/all.db") as queue:
        yield queue


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda q: q.clean(-1), "older_than must be at least 0, not -1"),
        (lambda q: q.clean(state="foo"), "state: 'foo' is unknown; there are waiting, delayed,"),
        (lambda q: q.clean(limit="all"), "limit must be a number, not 'all'"),
        (lambda q: q.trim_events(-1), "keep must be a non-negative safe integer, not -1"),
        (lambda q: q.promote_jobs(-1), "count must be at least 0, not -1"),
        (lambda q: q.retry_completed(5), "job_id must be a string, not 5"),
        (lambda q: q.retry_dlq(reason="foo"), "reason: 'foo' is unknown; there are max_attempts"),
        (
            lambda q: q.retry_dlq(raeson="foo"),
            "a choice of dead letters has no option 'raeson'; did you mean reason",
        ),
        (lambda q: q.dlq_entries(reason="foo"), "reason: 'foo' is unknown"),
        (lambda q: q.dlq_entries(limit=-1), "limit must be at least 0, not -1"),
        (lambda q: q.dlq(10**6), "count must be at most 10000, not 1000000"),
        (lambda q: q.remove_dlq_job(5), "job_id must be a string, not 5"),
        (
            lambda q: q.set_dlq_config(auto_retry_interval=-1),
            "auto_retry_interval must be at least 0, not -1",
        ),
        (
            lambda q: q.set_dlq_config(max_auto_retries=2000),
            "max_auto_retries must be at most 1000, not 2000",
        ),
        (lambda q: q.set_stall_config(max_stalls=0), "max_stalls must be at least 1, not 0"),
        (lambda q: q.set_stall_config(stall_interval=0), "stall_interval must be at least 1, not 0"),
        (lambda q: q.set_rate_limit("10/m"), "limit: '10/m' is not allowed; give a whole number"),
        (lambda q: q.set_rate_limit(1, per=0), "per must be at least 1, not 0"),
        (lambda q: q.set_rate_limit(1, per=float("inf")), "per: inf is not allowed"),
        (lambda q: q.set_rate_limit(1, ttl=-1), "ttl must be at least 0, not -1"),
        (lambda q: q.set_concurrency("x"), "limit: 'x' is not allowed; give a whole number"),
        (lambda q: q.get_jobs(limit=-1), "limit must be at least 0, not -1"),
        (lambda q: q.get_job(5), "job_id must be a string, not 5"),
        (lambda q: q.get_unique_job_id("x" * 2000), "unique_key must be at most 1024 characters, not 'xxx"),
        (lambda q: q.add_webhook("http://a.b", ["job.done"]), "events: 'job.done' is unknown"),
        (lambda q: q.history("all"), "kind: 'all' is unknown; there are completed, failed"),
        (lambda q: q.get_cron(""), "name must be a non-empty string, not ''"),
        (lambda q: q.upsert_cron("", every=5), "name must be a non-empty string, not ''"),
        (lambda q: q.group("acme").set_rate_limit(0, per=5), "limit must be a positive safe integer, not 0"),
        (lambda q: q.group("acme").set_rate_limit(1, per=0), "per must be a positive safe integer, not 0"),
        (lambda q: q.group("acme").hold(0), "duration must be a positive safe integer, not 0"),
        (lambda q: q.handle("1").cancel(grace=-1), "grace must be at least 0, not -1"),
        (lambda q: q.handle("1").change_priority("high"), "priority must be a number, not 'high'"),
        (lambda q: q.handle("1").change_delay(-1), "delay must be at least 0, not -1"),
        (lambda q: q.handle("1").update_progress("half"), "progress must be a number, not 'half'"),
        (lambda q: q.handle("1").clear_logs(keep=-1), "keep must be at least 0, not -1"),
        (lambda q: q.handle("1").logs(-1), "start must be at least 0, not -1"),
        (lambda q: q.handle("1").log("x", "y" * 300), "level must be at most 256 characters"),
        (lambda q: q.add("x" * 257), "a job cannot be called 'xxx.*; give a text of 1 to 256 characters"),
        (lambda q: q.add_bulk([("a",)]), r"job 0: \('a',\) is not allowed; give \(name, data\)"),
        (lambda q: q.add_bulk([NewJob("a"), "b"]), "job 1: 'b' is not allowed"),
        (lambda q: q.add("n", unique_kye="k"), "a job has no option 'unique_kye'; did you mean unique_key"),
    ],
)
async def test_a_call_that_cannot_be(queue: AsyncQueue, call: Call, problem: str) -> None:
    with pytest.raises(OptionError, match=f"^(.*: )?{problem}"):
        await call(queue)


@pytest.mark.parametrize(
    "call",
    [
        lambda q, data: q.add("n", data),
        lambda q, data: q.add_bulk([("n", 1), ("n", data)]),
        lambda q, data: q.handle("1").update_data(data),
        lambda q, data: q.upsert_cron("c", data, every=1000),
    ],
)
async def test_data_that_is_too_large(queue: AsyncQueue, call: Any) -> None:
    with pytest.raises(
        PayloadError, match=r"the data of .* has 11000005 bytes, and as JSON it may have 10485760"
    ):
        await call(queue, "x" * 11_000_000)


def test_a_group_without_a_name() -> None:
    with pytest.raises(OptionError, match="group must be a non-empty string, not ''"):
        AsyncQueue("q").group("")


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (
            lambda: Bunqueue("a", worker={"thread": 5}),
            "a worker has no option 'thread'; did you mean threads?",
        ),  # type: ignore[typeddict-unknown-key]
        (lambda: Bunqueue("a", concurency=5), "an app has no option 'concurency'; did you mean concurrency?"),
        (lambda: Bunqueue("a", rate_limit=5), r"rate_limit: 5 is no rate; give a bunqueue\.RateLimit"),
        (lambda: Bunqueue("a", middleware=Middleware()), "middleware: .* is no list; give one, such as"),
        (lambda: Bunqueue("a", default_job_options=[1]), r"default_job_options: \[1\] is not allowed"),
        (lambda: Bunqueue("a").on("completed")(5), "on: 5 cannot be called; give a function"),
        (
            lambda: Bunqueue("a").batch("n", max_wait=-1)(print),
            "max_wait: -1 is not allowed; give a time from 0 on",
        ),
        (lambda: RateLimit(0), "rate_limit: max: 0 is not allowed; give a whole number from 1 on"),
        (lambda: RateLimit("5"), "rate_limit: max: '5' is not allowed"),
        (lambda: RateLimit(5, per=0), "per must be at least 1, not 0"),
        (lambda: AsyncQueue("a", embedded=True, data_path="a\0b"), "data_path: .* is not allowed"),
        (lambda: Worker("a", print, prot=1), "a worker has no option 'prot'; did you mean port?"),
        (lambda: AsyncQueueEvents("a", prot=1), "no option 'prot'; did you mean port?"),
        (lambda: FlowJob("a", queue="q").after(5), r"flow: 5 is not allowed; give a bunqueue\.FlowJob"),  # type: ignore[arg-type]
        (lambda: FlowJob("a", queue="q", children=["b"]), "flow: 'b' is not allowed"),
    ],
)
def test_what_cannot_be_made(call: Callable[[], object], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        call()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"run_in": "moon"}, "run_in: 'moon' is not allowed; give 'thread' or 'process'"),
        ({"aliases": 5}, "aliases: 5 is not allowed; give a list of texts"),
        ({"aliases": ["a", 5]}, "aliases: .* is not allowed; give a list of texts"),
        ({"unrecoverable": "KeyError"}, "unrecoverable: 'KeyError' is not allowed; give a list of classes"),
        ({"name": ""}, "name: a job cannot be called ''"),
        ({"at_most_once": "no"}, "at_most_once: 'no' is not allowed; give True or False"),
        ({"retry_on": []}, r"retry_on: \[\] says nothing"),
        ({"retri_delay": 5}, "a job has no option 'retri_delay'; did you mean retry_delay?"),
        ({"alias": "a"}, "a job has no option 'alias'; did you mean aliases?"),
    ],
)
def test_a_function_that_cannot_be_a_job_so(options: Any, problem: str) -> None:
    def job() -> None: ...

    with pytest.raises(OptionError, match=problem):
        Bunqueue("a").job(**options)(job)
    with pytest.raises(OptionError, match="schedule 'a:job': max_backlog: it goes with"):
        Bunqueue("a").cron(every=1000, max_backlog=5)(job)


def test_a_coroutine_in_a_process() -> None:
    async def job() -> None: ...

    with pytest.raises(OptionError, match=r"run_in: .* is a coroutine function, which runs in"):
        Bunqueue("a").job(run_in="process")(job)


@pytest.mark.parametrize("start", ["yesterday", 5])
def test_a_sandbox_that_begins_at_no_moment(start: object) -> None:
    with pytest.raises(pytest.UsageError, match=f"start: {start!r} is no moment; there is only bunqueue"):
        plugin._start(pytest.mark.bunqueue(start=start).mark)


async def test_what_is_no_flow() -> None:
    flows = AsyncFlowProducer(embedded=True)
    many: list[Any] = ["x"]
    for call in (flows.add("x"), flows.add_chain(many), flows.add_bulk_then(many, FlowJob("a", queue="q"))):  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="flow: 'x' is not allowed"):
            await call


async def test_no_event_in_time(where: EndpointOptions) -> None:
    async with AsyncQueueEvents("nothing-happens", **where) as events:
        with pytest.raises(TimeoutError, match=r"queue 'nothing-happens': nothing has .* within 0\.01 s"):
            await events.next(10)


async def test_a_program_within_an_event_loop() -> None:
    app = Bunqueue("a", embedded=True)
    app.route()(lambda job: None)
    with pytest.raises(RuntimeError, match="an event loop, and here one runs; write `async with"):
        app.run()


async def test_unrecoverable_without_a_word(where: EndpointOptions) -> None:
    def handler(job: object) -> None:
        raise Unrecoverable

    async with AsyncQueue("unrecoverable", **where) as queue, Worker(queue.name, handler, **where):
        outcome = await asyncio.wait_for((await queue.add("n", max_attempts=3)).wait(), 30)
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    assert outcome.error == "Unrecoverable: trying again would not help"
