"""Apps: typed jobs, routes, batches, schedules and hooks, over a server and embedded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from support.server import Server
from support.waiting import eventually

from bunqueue import (
    ActiveJob,
    ArgumentsError,
    AsyncJobHandle,
    Bunqueue,
    CallNext,
    FlowJob,
    OptionError,
    Postpone,
    RateLimit,
    Retry,
    ScheduleConflict,
    Unrecoverable,
    current_job,
)
from bunqueue.app import service
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.protocol.commands.jobs import Cancel, CancelReply

FAR = 3_600_000  # ms


class Receipt(msgspec.Struct):
    to: str
    pages: int = 1


@pytest.fixture
async def app(where: EndpointOptions, name: str) -> AsyncIterator[Bunqueue]:
    app = Bunqueue(name, **where)
    yield app
    await app.close_async()


async def outcome(handle: AsyncJobHandle[Any], state: str = "completed") -> Any:
    async def is_so() -> bool:
        return await handle.state() == state

    await eventually(is_so, f"{handle} is {state}")
    return await handle.result() if state == "completed" else None


async def test_typed_jobs_run_with_checked_arguments_and_results(app: Bunqueue) -> None:
    threads: set[str] = set()

    @app.job
    async def send(to: str, receipt: Receipt | None = None) -> Receipt:
        threads.add(threading.current_thread().name)
        return receipt or Receipt(to)

    @app.job(name="count", max_attempts=7, priority=2)
    def counted(numbers: list[int], *, scale: float = 1.0) -> float:
        threads.add(threading.current_thread().name)
        return sum(numbers) * scale

    assert (await send("ada"), counted([1, 2], scale=2.0)) == (Receipt("ada"), 6.0)  # no queue, no worker
    threads.clear()
    async with app:
        first = await send.add_async("ada", receipt=Receipt("bob", 3))
        second = await counted.add_async([1, 2, 3], scale=0.5)
        third = await asyncio.to_thread(send.add, to="eve")
        assert await outcome(first) == Receipt("bob", 3)
        assert await outcome(second) == 3.0
        await outcome(send.handle_async(third.id))
        assert await asyncio.to_thread(third.result) == Receipt("eve")
        job = await second.job()
        assert (job.name, job.data, job.max_attempts) == ("count", {"numbers": [1, 2, 3], "scale": 0.5}, 7)
        assert (job.priority, job.queue) == (2, app.name)
    assert len(threads) == 2
    assert threading.main_thread().name in threads


async def test_calls_that_could_not_be_made_are_refused_when_added(app: Bunqueue) -> None:
    @app.job
    async def send(to: str, copies: int = 1) -> None: ...

    with pytest.raises(ArgumentsError, match="job 'send': argument to: 5 is not allowed: Expected `str`"):
        await send.add_async(5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentsError, match="missing a required argument: 'to'"):
        send.add()  # type: ignore[call-arg]
    assert await app.async_queue.count() == 0
    await app.close_async()


async def test_data_from_elsewhere_runs_typed_jobs_or_is_a_dead_letter_at_once(app: Bunqueue) -> None:
    @app.job(aliases=["send_email"])
    async def send(to: str) -> str:
        return f"sent to {to}"

    async with app:
        plain = await app.add_async("send", {"to": "ada", "colour": "blue"})
        old = await app.add_async("send_email", {"to": "bob"})
        wrong = await app.add_async("send", {"to": ["ada"]}, max_attempts=5)
        assert (await outcome(plain), await outcome(old)) == ("sent to ada", "sent to bob")
        await outcome(wrong, "failed")
        job = await wrong.job()
        assert job.attempts == 1
        assert job.error is not None
        assert "ArgumentsError: job 'send': argument to: ['ada'] is not allowed: Expected `str`" in job.error


async def test_results_that_are_not_what_was_said_are_dead_letters_at_once(app: Bunqueue) -> None:
    @app.job(max_attempts=5)
    async def count() -> int:
        return "three"  # type: ignore[return-value]

    async with app:
        handle = await count.add_async()
        await outcome(handle, "failed")
        job = await handle.job()
    assert job.attempts == 1
    assert "its result is 'three', its annotation says otherwise: Expected `int`" in (job.error or "")


async def test_options_can_differ_from_job_to_job(app: Bunqueue) -> None:
    @app.job(max_attempts=5, tags=["mail"])
    async def send(to: str) -> None: ...

    later = send.options(delay=60_000, max_attempts=2)
    job = await (await later.add_async("ada")).job()
    assert (job.state, job.max_attempts, job.tags) == ("delayed", 2, ["mail"])
    job = await (await send.add_async("ada")).job()
    assert (job.state, job.max_attempts) == ("waiting", 5)
    with pytest.raises(OptionError, match="max_attempts"):
        send.options(max_attempts=0)
    await app.close_async()


async def test_some_errors_are_final(app: Bunqueue) -> None:
    @app.job(unrecoverable=[LookupError], max_attempts=5)
    async def find(kind: str) -> None:
        raise {"key": KeyError("k"), "final": Unrecoverable("no use"), "value": ValueError("v")}[kind]

    async with app:
        key, final, value = [await find.add_async(kind) for kind in ("key", "final", "value")]
        await outcome(key, "failed")
        await outcome(final, "failed")
        await outcome(value, "delayed")
        assert ((await key.job()).error, (await key.job()).attempts) == ("KeyError: 'k'", 1)
        assert (await final.job()).error == "Unrecoverable: no use"


async def test_routes_and_other_queues(app: Bunqueue) -> None:
    other = f"{app.name}-reports"
    app.add_queue(other, concurrency=1)

    @app.route("legacy")
    async def legacy(job: ActiveJob) -> Any:
        return [job.name, job.data]

    @app.route()
    def rest(job: ActiveJob) -> str:
        return f"rest: {job.name}"

    @app.job(queue=other)
    async def report(month: str) -> str:
        return f"report of {month}"

    async with app:
        handles = [
            await app.add_async("legacy", [1]),
            await app.add_async("unheard"),
            await report.add_async("May"),
        ]
        assert handles[2].queue == other
        assert [await outcome(handle) for handle in handles] == [
            ["legacy", [1]],
            "rest: unheard",
            "report of May",
        ]


async def test_jobs_that_nothing_runs_wait_seen_and_told(
    app: Bunqueue, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    async def known() -> None: ...

    async with app:
        unknown = [await app.add_async("unheard-of", max_attempts=1) for _ in range(2)]
        await outcome(await known.add_async())
        for handle in unknown:
            await outcome(handle, "delayed")
        job = await unknown[0].job()
        assert (job.attempts, job.error) == (0, None)
    words = [record.message for record in caplog.records if "nothing here runs" in record.message]
    assert words == [
        f"queue {app.name!r}: nothing here runs jobs called 'unheard-of'; they wait for a worker that does"
    ]


async def test_jobs_can_be_put_off_without_using_an_attempt(app: Bunqueue) -> None:
    runs: list[int] = []

    @app.job(max_attempts=1)
    async def poll() -> str:
        runs.append(current_job().attempts)
        if len(runs) < 4:
            raise Postpone(timedelta(milliseconds=1), "not yet")
        return "there"

    async with app:
        assert await outcome(await poll.add_async()) == "there"
    assert runs == [0, 0, 0, 0]


async def test_a_handler_that_asks_for_another_attempt_uses_one(app: Bunqueue) -> None:
    runs: list[int] = []

    @app.job(max_attempts=3, backoff=3_600_000)
    async def fetch() -> None:
        runs.append(current_job().attempts)
        raise Retry(timedelta(milliseconds=1), "busy")

    async with app:
        handle = await fetch.add_async()
        await outcome(handle, "failed")
        assert (await handle.job()).error == "Retry: busy"
    assert runs == [0, 1, 2]


async def test_how_often_a_job_is_put_back_may_be_bounded(app: Bunqueue) -> None:
    runs: list[int] = []

    @app.job(max_attempts=1)
    async def poll() -> None:
        runs.append(current_job().postponed)
        raise Postpone(1, max=2)

    async with app:
        handle = await poll.add_async()
        await outcome(handle, "failed")
        assert "was put back 2 times, its max is 2" in str((await handle.job()).error)
    assert runs == [0, 1, 2]


async def test_a_run_can_be_cancelled_wherever_it_runs(app: Bunqueue) -> None:
    started: list[str] = []

    @app.job
    async def coroutine() -> None:
        started.append("coroutine")
        await asyncio.sleep(60)  # until it is cancelled

    @app.job
    def function() -> None:
        started.append("function")
        while True:
            current_job().raise_if_cancelled()
            time.sleep(0.01)  # a piece of work

    async with app:
        handles = [await coroutine.add_async(), await function.add_async()]
        await eventually(lambda: len(started) == 2, "both run")
        for handle in handles:
            await handle._caller.call(Cancel(id=handle.id, running=True, grace=5_000), CancelReply)
            await outcome(handle, "cancelled")


async def test_batches(app: Bunqueue) -> None:
    sizes: list[int] = []

    @app.batch("index", size=5, max_wait=60_000)  # no batch of fewer, however slowly they come
    async def index(jobs: list[ActiveJob]) -> list[Any]:
        sizes.append(len(jobs))
        return [ValueError("odd") if job.data % 2 else job.data * 10 for job in jobs]

    @app.batch("plain", size=2, max_wait=10)
    def plain(jobs: list[ActiveJob]) -> None:
        assert threading.current_thread() is not threading.main_thread()

    @app.batch("wrong", size=1)
    async def wrong(jobs: list[ActiveJob]) -> Any:
        return [1, 2]

    jobs = [FlowJob("index", queue=app.name, max_attempts=1) for _ in range(15)]
    for number, job in enumerate(jobs):
        job.data = number
    handles = await app.add_bulk_async(jobs)
    async with app:
        for number, handle in enumerate(handles):
            await outcome(handle, "failed" if number % 2 else "completed")
        assert await handles[4].result() == 40
        assert "ValueError: odd" in ((await handles[3].job()).error or "")
        assert sizes == [5, 5, 5]
        assert await outcome(await app.add_async("plain")) is None
        bad = await app.add_async("wrong", max_attempts=1)
        await outcome(bad, "failed")
        assert "batch 'wrong' got 1 jobs and gave [1, 2]" in ((await bad.job()).error or "")


async def test_a_batch_ends_with_the_last_of_its_jobs(app: Bunqueue) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @app.batch("index", size=2, max_wait=60_000)
    async def index(jobs: list[ActiveJob]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    handles = [await app.add_async("index") for _ in range(2)]
    async with app:
        await begun.wait()
        await handles[0].cancel()
        await outcome(handles[0], "cancelled")
        assert not ended.is_set()  # the other one goes on
        await app.stop(grace=0)
        assert ended.is_set()
        assert await handles[1].state() == "waiting"


async def test_a_handle_tells_whether_there_was_such_a_job_already(app: Bunqueue) -> None:
    @app.job(unique_key="once")
    async def work() -> int:
        return 1

    first, second = await work.add_async(), await work.add_async()
    assert (first.created, second.created, second.id) == (True, False, first.id)
    (third,) = await app.add_bulk_async([work.job()])
    assert third.created is False
    other = await asyncio.to_thread(work.options(unique_key="other").add)
    again, *_ = await asyncio.to_thread(app.add_bulk, [work.options(unique_key="other").job()])
    assert (other.created, again.created) == (True, False)
    assert other.result_type is int


async def test_bulks_of_typed_jobs(app: Bunqueue) -> None:
    other = f"{app.name}-b"

    @app.job
    async def double(number: int) -> int:
        return number * 2

    @app.job(queue=other)
    async def negate(number: int) -> int:
        return -number

    async with app:
        handles = await app.add_bulk_async([double.job(1), negate.job(2), double.job(3)])
        assert [handle.queue for handle in handles] == [app.name, other, app.name]
        assert [await outcome(handle) for handle in handles] == [2, -2, 6]
        blocking = await asyncio.to_thread(app.add_bulk, [negate.job(5)])
        assert await outcome(negate.handle_async(blocking[0].id)) == -5
    with pytest.raises(OptionError, match=r"jobs that wait for others are added with app.flows"):
        app.add_bulk([double.job(1).after(double.job(2))])


async def test_flows_of_typed_jobs(app: Bunqueue) -> None:
    @app.job
    async def part(number: int) -> int:
        return number

    @app.job(queue=f"{app.name}-b")
    async def total(factor: int) -> Receipt:
        return Receipt("total", factor)

    async with app:
        node = await app.async_flows.add(total.job(3).after(part.job(1), part.job(2)))
        assert await outcome(node.job) == Receipt("total", 3)
        assert await app.async_flows.children_values(node.job.id) == {
            f"{app.name}:{child.job.id}": number for number, child in enumerate(node.children, 1)
        }


async def test_schedules(app: Bunqueue) -> None:
    ran: list[Any] = []

    @app.cron(every=3_600_000, immediately=True, data={"days": 30})
    @app.job
    async def sweep(days: int) -> None:
        ran.append(days)

    @app.cron("0 9 * * mon-fri", tz="Europe/Rome")
    def digest() -> None: ...

    app.add_schedule(sweep.job(7), "@daily", name=f"{app.name}-weekly", limit=3)
    async with app:
        await eventually(lambda: ran, "the schedule has run")
    assert ran == [30]
    assert digest() is None
    assert digest.name == "digest"


@pytest.mark.parametrize(
    ("declare", "problem"),
    [
        (lambda app, job: app.cron("61 * * * *")(job), "schedule '.*:job': '61 ."),
        (lambda app, job: app.cron("0 9 * * *", tz="Mars/Base")(job), "unknown time zone 'Mars/Base'"),
        (lambda app, job: app.cron()(job), "give either a cron expression or every="),
        (
            lambda app, job: app.cron("@daily", data={"days": 3})(job),
            "job 'job': got an unexpected .* 'days'",
        ),
        (
            lambda app, job: app.cron("@daily")(app.job(name="needs")(lambda days: None)),
            "job 'needs': missing a required argument: 'days'; it takes",
        ),
        (lambda app, job: app.cron(every=0)(job), "schedule '.*:job': every must be a positive"),
        (lambda app, job: app.cron(every=1000, tz="UTC")(job), "tz goes with a cron expression"),
        (
            lambda app, job: app.cron("@daily")(app.cron("@hourly")(job)),
            "there is a schedule '.*:job' already",
        ),
        (lambda app, job: app.add_queue("q", concurrency=0), "concurrency: 0 is not allowed"),
        (lambda app, job: app.on("breakfast"), "on: there is no 'breakfast'; there are startup"),
        (lambda app, job: app.job(priority="high")(lambda: None), "priority"),
        (lambda app, job: app.batch("b", size=0)(print), "size: 0 is not allowed"),
        (lambda app, job: app.route("job")(print), "jobs called 'job' are run by <job 'job' of queue"),
    ],
)
def test_what_cannot_be_declared_is_told_where_it_stands(declare: Any, problem: str) -> None:
    app = Bunqueue("declaring")

    @app.job
    def job() -> None: ...

    with pytest.raises((OptionError, ArgumentsError), match=problem):
        declare(app, job)


async def test_the_name_of_a_schedule_belongs_to_one_app_and_queue(
    app: Bunqueue, where: EndpointOptions
) -> None:
    name = f"{app.name}-cleanup"
    others = [Bunqueue(f"{app.name}-other", **where), Bunqueue(f"{app.name}-third", **where)]
    for each, queue in ((app, None), (others[0], None), (others[1], app.name)):
        each.cron("@yearly", name=name)(each.job(name="cleanup", queue=queue)(lambda: None))
    async with app:
        for other in others:
            with pytest.raises(ScheduleConflict, match=f"belongs to queue '{app.name}', declared by") as told:
                await other.start()
            assert "give this schedule another name, or delete that one first" in str(told.value)
        cron = await app.async_queue.get_cron(name)
        assert cron is not None
        assert (cron.queue, cron.app) == (app.name, app.name)
        with pytest.raises(ScheduleConflict):
            await others[0].async_queue.upsert_cron(name, every=FAR)
        assert (await others[0].async_queue.upsert_cron(name, every=FAR, move=True)).queue == others[0].name
    for other in others:
        await other.close_async()


async def test_an_app_takes_over_a_schedule_that_it_declared_before_apps_were_known(app: Bunqueue) -> None:
    name = f"{app.name}-cleanup"
    app.cron(every=FAR, name=name)(app.job(name="cleanup")(lambda: None))
    before = await app.async_queue.upsert_cron(name, {}, every=FAR, job_name="cleanup")
    async with app:
        (cron,) = await app.async_queue.list_crons()
        assert (cron.name, cron.app, cron.next_run) == (name, app.name, before.next_run)


async def test_schedules_that_are_no_longer_declared_can_be_pruned(
    app: Bunqueue, where: EndpointOptions
) -> None:
    def version(*names: str, queue: str | None = None) -> Bunqueue:
        made = Bunqueue(app.name, **where)
        job = made.job(name="job", queue=queue)(lambda: None)
        for each in names:
            made.cron("@yearly", name=f"{app.name}-{each}")(job)
        return made

    async def there() -> set[str]:
        crons = await app.async_admin.list_crons()
        return {
            each.name.removeprefix(f"{app.name}-") for each in crons if each.name.startswith(f"{app.name}-")
        }

    await app.async_queue.upsert_cron(f"{app.name}-by-hand", every=FAR)
    async with version("kept", "dropped", "moved"):
        assert await there() == {"by-hand", "kept", "dropped", "moved"}
    new, moved = version("kept"), version("moved", queue=f"{app.name}-second")
    assert [each.name for each in await new.stale_schedules_async()] == [
        f"{app.name}-dropped",
        f"{app.name}-moved",
    ]
    assert [each.name for each in await asyncio.to_thread(new.prune_schedules)] == [
        f"{app.name}-dropped",
        f"{app.name}-moved",
    ]
    assert await there() == {"by-hand", "kept"}
    assert await asyncio.to_thread(new.stale_schedules) == []
    assert [each.name for each in await moved.prune_schedules_async()] == [f"{app.name}-kept"]
    for each in (new, moved):
        await each.close_async()


async def test_a_schedule_runs_now_and_says_how_that_went(app: Bunqueue) -> None:
    @app.cron("@yearly")
    @app.job
    async def report() -> str:
        return "done"

    name = f"{app.name}:report"
    async with app:
        handle = await app.run_schedule_async(name)
        assert (handle.created, await handle.result(timeout=60_000)) == (True, "done")
        second = await asyncio.to_thread(app.run_schedule, name)
        assert second.id != handle.id
        await outcome(app.async_queue.handle(second.id))
        (cron,) = await app.async_queue.list_crons()
    assert cron.last_run is not None
    assert (cron.last_run.job_id, cron.last_run.outcome) == (second.id, "completed")
    assert cron.last_run.ended_at is not None
    assert cron.last_run.at <= cron.last_run.ended_at


async def test_hooks(app: Bunqueue) -> None:
    told: list[Any] = []

    for occasion in ("startup", "shutdown"):

        @app.on(occasion)  # type: ignore[arg-type]
        async def note(occasion: str = occasion) -> None:
            told.append(occasion)

    @app.on("completed")
    def completed(job: ActiveJob, result: Any) -> None:
        told.append(("completed", job.name, result))

    @app.on("failed")
    async def failed(job: ActiveJob, error: BaseException) -> None:
        told.append(("failed", job.attempts, str(error)))

    @app.on("exhausted")
    def exhausted(job: ActiveJob, error: BaseException) -> None:
        told.append(("exhausted", str(error)))
        raise RuntimeError("a hook that fails harms nobody")

    @app.job(backoff=1, max_attempts=2)
    async def work(fails: bool) -> str:
        if fails:
            raise ValueError("no")
        return "done"

    async with app:
        assert told == ["startup"]
        await outcome(await work.add_async(False))
        await eventually(lambda: len(told) == 2, "the hook was told")
        await outcome(await work.add_async(True), "failed")
        await eventually(lambda: len(told) == 5, "the hooks were told")
    assert told[1] == ("completed", "work", "done")
    assert sorted(told[2:5]) == [("exhausted", "no"), ("failed", 0, "no"), ("failed", 1, "no")]
    assert told[5:] == ["shutdown"]


async def test_hooks_that_hang_do_not_keep_an_app_from_stopping(
    app: Bunqueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "HOOKS_PATIENCE", 0.05)
    told: list[str] = []

    @app.job
    async def work() -> None: ...

    @app.on("completed")
    async def hang(job: ActiveJob, result: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append("cancelled")

    @app.on("shutdown")
    async def shutdown() -> None:
        told.append("shutdown")
        raise RuntimeError("no database")

    await app.start()
    await outcome(await work.add_async())
    with pytest.raises(RuntimeError, match="no database"):
        await app.stop()
    assert told == ["cancelled", "shutdown"]
    assert "takes too long, and is cancelled: its worker stops" in caplog.text
    await app.close_async()


async def test_middleware_of_an_app(app: Bunqueue) -> None:
    @app.use
    async def twice(job: ActiveJob, call_next: CallNext) -> Any:
        return [await call_next(job), await call_next(job)]

    @app.route("n")
    async def number(job: ActiveJob) -> int:
        return 4

    async with app:
        assert await outcome(await app.add_async("n")) == [4, 4]
        with pytest.raises(OptionError, match="use: jobs were added already"):
            app.use(twice)


async def test_limits_are_set_at_the_server(where: EndpointOptions, name: str) -> None:
    app = Bunqueue(name, rate_limit=RateLimit(1000, per=60_000), global_concurrency=3, **where)

    @app.job
    async def work() -> None: ...

    async with app:
        from bunqueue.protocol.commands import limits

        reply = await app.async_queue._caller.call(limits.GetQueueLimits(queue=name))
        assert reply.data.limits.rate_limit == limits.Rate(1000, 60_000)
        assert reply.data.limits.concurrency_limit == 3


async def test_an_app_in_memory_keeps_what_it_was_told(name: str) -> None:
    app = Bunqueue(name, global_concurrency=1, embedded=True)
    ran = asyncio.Event()

    @app.cron(every=3_600_000, immediately=True)
    async def tick() -> None:
        ran.set()

    async with app:
        await asyncio.wait_for(ran.wait(), 60)


async def test_an_app_that_cannot_start_cleans_up_and_can_try_again(app: Bunqueue) -> None:
    told: list[str] = []

    @app.job
    async def work() -> int:
        return 1

    @app.on("startup")
    def startup() -> None:
        told.append("startup")
        if len(told) == 1:
            raise RuntimeError("no database")

    @app.on("shutdown")
    def shutdown() -> None:
        told.append("shutdown")

    with pytest.raises(RuntimeError, match="no database"):
        await app.start()
    assert told == ["startup", "shutdown"]
    async with app:
        assert await outcome(await work.add_async()) == 1
    assert told == ["startup", "shutdown"] * 2


async def test_a_stop_that_comes_just_before_its_workers_start_is_heard(app: Bunqueue) -> None:
    @app.job
    async def work() -> int:
        return 1

    @app.on("startup")
    def startup() -> None:  # it is called before the workers' tasks have had a turn
        asyncio.get_running_loop().call_soon(run.stop_soon)

    run = service.Service(app)
    assert await asyncio.wait_for(run.serve(), 60) is None


async def test_an_app_can_work_again(app: Bunqueue) -> None:
    @app.job
    async def work() -> int:
        return 1

    for _ in range(2):
        async with app:
            assert await outcome(await work.add_async()) == 1
    await app.stop()


def test_nothing_to_do_is_told(shared_server: Server) -> None:
    app = Bunqueue("idle", host=shared_server.host, port=shared_server.port)
    with pytest.raises(OptionError, match=r"has no jobs to run; declare some with @app.job or @app.route"):
        app.run()


def test_the_same_function_may_be_declared_again() -> None:
    """As in a notebook, where a cell is run again; another function under the same name is a mistake."""
    app = Bunqueue("again")

    for _ in range(2):

        @app.job
        def work() -> None: ...

    def other() -> None: ...

    with pytest.raises(OptionError, match="jobs called 'work' are run by <job 'work' of queue 'again'>"):
        app.job(name="work")(other)
