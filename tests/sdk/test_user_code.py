"""Whatever the code of a job does is the outcome of that job: no other job, and not its worker, notices."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import careless
from support.careless import RAISED
from support.server import ROOT, Server
from support.waiting import eventually, wait_until

from bunqueue import (
    ActiveJob,
    AsyncQueue,
    Backoff,
    Batch,
    Bunqueue,
    Middleware,
    NewJob,
    Queue,
    RetryRules,
    Worker,
    WorkerBroken,
    retry_after,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.client.conversion.tracebacks import trace_text
from bunqueue.worker.forks import uncopied

PATIENCE_MS = 60_000


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Hundreds of tracebacks say nothing here."""
    logger = logging.getLogger("bunqueue")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def first_word(error: str | None) -> str:
    return str(error).replace(":", " ").split(" ", 1)[0].rpartition(".")[2]


async def batch(jobs: list[ActiveJob]) -> list[Any]:
    """What a job of several raises is given back; alone it is raised."""
    if len(jobs) == 1:
        return [careless.misbehave(jobs[0])]
    return [RAISED[job.data]() if job.data in RAISED else careless.misbehave(job) for job in jobs]


class Looks(Middleware):
    """Asks a user's exception for what it is."""

    async def running(self, job: ActiveJob, call_next: Any) -> Any:
        try:
            return await call_next(job)
        except Exception as error:
            raise error from None


RULES = RetryRules(never=[ValueError], delay=retry_after)
HANDLERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "coroutine": (careless.misbehave_async, {}),
    "thread": (careless.misbehave, {}),
    "process": (careless.misbehave, {"run_in": "process"}),
    "batch": (Batch(batch, size=4, max_wait=1), {}),
    "rules": (careless.misbehave_async, {"retry": RULES}),
    "rules in a thread": (careless.misbehave, {"retry": RULES}),
    "middleware": (careless.misbehave, {"middleware": [Looks()]}),
    "at most once": (careless.misbehave_async, {"at_most_once": True}),
}


@pytest.mark.parametrize("kind", HANDLERS)
async def test_whatever_is_raised_fails_its_job(queue: AsyncQueue, where: EndpointOptions, kind: str) -> None:
    handler, options = HANDLERS[kind]
    once = kind == "at most once"
    settings: Any = {"max_attempts": 2, "backoff": Backoff(1, retry_after=True)}
    what = [*RAISED, "unsendable", "fine"]
    async with Worker(queue.name, handler, concurrency=4, **where, **options) as worker:
        handles = await queue.add_bulk([NewJob("n", each, **settings) for each in what])
        outcomes = [await handle.wait(timeout=PATIENCE_MS) for handle in handles]
        assert worker.health().ok
        await eventually(lambda: worker.stats.active == 0, "all are done")
        assert (worker.stats.lost, worker.stats.interrupted) == (0, 0)
    found = dict(zip(what, outcomes, strict=True))
    assert {each.state for each in outcomes[:-1]} == {"completed" if once else "failed"}
    assert found["fine"].state == "completed"
    if once:
        return
    for name in RAISED:
        if name in ("StopIteration", "StopAsyncIteration") and kind != "process":
            continue  # Python makes of them what it wants
        assert first_word(found[name].error) == name, found[name].error
    assert first_word(found["unsendable"].error) == "ResultError"
    assert "its text cannot be had" in str(found["Textless"].error)


@pytest.mark.parametrize("run_in", ["loop", "thread"])
async def test_the_same_of_the_functions_of_an_app(where: EndpointOptions, run_in: str, name: str) -> None:
    app = careless_app(name, run_in, **where)
    async with app:
        handles = {each: await app.async_queue.add("work", {"what": each}, max_attempts=1) for each in RAISED}
        outcomes = {each: await handle.wait(timeout=PATIENCE_MS) for each, handle in handles.items()}
    assert {each.state for each in outcomes.values()} == {"failed"}
    await app.close_async()


def careless_app(name: str, run_in: str, **where: Any) -> Bunqueue:
    app = Bunqueue(name, **where)

    def work(what: str) -> None:
        raise RAISED[what]()

    async def work_async(what: str) -> None:
        raise RAISED[what]()

    for event in ("completed", "failed", "exhausted", "stopped", "error"):
        app.on(event)(_exits)  # type: ignore[arg-type]
    app.job(name="work")(work_async if run_in == "loop" else work)
    return app


def _exits(*arguments: object) -> None:
    raise SystemExit(3)


async def test_hooks_may_do_anything_and_coroutines_are_awaited(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    heard: list[str] = []

    async def later(job: ActiveJob, what: object) -> None:
        await asyncio.sleep(0)
        heard.append(job.data)
        raise SystemExit(3)

    hooks: dict[str, Any] = {
        "on_completed": later,
        "on_failed": later,
        "on_stopped": _exits,
        "on_error": _exits,
    }
    async with Worker(queue.name, careless.misbehave_async, **where, **hooks) as worker:
        for each in ("fine", "Own", "fine"):
            await (await queue.add("n", each, max_attempts=1)).wait(timeout=PATIENCE_MS)
        assert worker.health().ok
    assert heard == ["fine", "Own", "fine"]  # the last one, too, when the worker has stopped


@pytest.mark.parametrize("leak", ["cancel", "later", "future", "all of its own"])
async def test_a_task_that_is_cancelled_by_its_own_code_has_failed(
    queue: AsyncQueue, where: EndpointOptions, leak: str
) -> None:
    runs: list[str] = []

    async def handler(job: ActiveJob) -> str:
        runs.append(job.id)
        task = asyncio.current_task()
        assert task is not None
        if job.data == "fine":
            return "fine"
        if leak == "cancel":
            task.cancel()
            await asyncio.sleep(0)
        elif leak == "later":
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.Event().wait()
        elif leak == "future":
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        else:
            task.cancel()  # and no more waiting: the request is left behind
            raise ValueError("its own")
        return "never"

    async with Worker(queue.name, handler, concurrency=2, **where) as worker:
        bad = await queue.add_bulk([NewJob("n", number, max_attempts=2, backoff=1) for number in range(4)])
        good = await queue.add("n", "fine")
        outcomes = [await handle.wait(timeout=PATIENCE_MS) for handle in bad]
        assert await good.result(timeout=PATIENCE_MS) == "fine"
        assert worker.stats.interrupted == 0
    assert {outcome.state for outcome in outcomes} == {"failed"}
    assert len(runs) == 4 * 2 + 1
    assert "its own" in str(outcomes[0].error) or "the code of the job has cancelled it" in str(
        outcomes[0].error
    )


async def test_a_worker_whose_tasks_somebody_has_cancelled_says_so(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    begun = asyncio.Event()

    async def handler(job: ActiveJob) -> str:
        begun.set()
        if job.data == "waits":
            await asyncio.Event().wait()
        return "fine"

    waiting = await queue.add("n", "waits", max_attempts=1)
    worker = Worker(queue.name, handler, **where)
    keep = {asyncio.current_task()}
    before = asyncio.all_tasks()
    running = asyncio.create_task(worker.run())
    await begun.wait()
    for task in asyncio.all_tasks() - before - keep - {running}:
        task.cancel()
    with pytest.raises(WorkerBroken, match="somebody else has cancelled its tasks"):
        await running
    health = worker.health()
    assert (health.ok, health.state) == (False, "stopped")
    assert await waiting.state() == "waiting"  # it went back, and no attempt counts
    assert (await waiting.job()).attempts == 0
    await waiting.remove()
    async with worker:
        assert await (await queue.add("n")).result(timeout=PATIENCE_MS) == "fine"


async def test_the_same_where_nobody_waits_for_its_end(queue: AsyncQueue, where: EndpointOptions) -> None:
    async def handler(job: ActiveJob) -> str:
        return "fine"

    before = asyncio.all_tasks()
    worker = Worker(queue.name, handler, **where)
    await worker.start()
    assert await (await queue.add("n")).result(timeout=PATIENCE_MS) == "fine"
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await eventually(lambda: worker.health().state == "stopped", "it has stopped by itself")
    assert not worker.health().ok


# -- timeouts


PLACES = {"thread": {}, "process": {"run_in": "process"}}


@pytest.mark.parametrize("place", PLACES)
async def test_a_timeout_does_not_start_a_second_copy(
    queue: AsyncQueue, where: EndpointOptions, tmp_path: Path, place: str
) -> None:
    path = tmp_path / "runs"
    options: Any = PLACES[place]
    async with Worker(queue.name, careless.mark, concurrency=3, **where, **options) as worker:
        job = NewJob("n", str(path), timeout=100, max_attempts=3, backoff=1)
        (handle,) = await queue.add_bulk([job])
        outcome = await handle.wait(timeout=PATIENCE_MS)
        await eventually(lambda: worker.stats.failed == 3, "the worker knows")
    assert (outcome.state, outcome.error) == ("failed", "Job timeout exceeded")
    lines = path.read_text().split()
    running = 0
    for line in lines:
        running += 1 if line == "begin" else -1
        assert running <= 1 or place == "process", lines
    attempts = (await handle.attempts())[-3:]
    assert [attempt.outcome for attempt in attempts] == ["timeout"] * 3


async def test_a_batch_in_a_thread_comes_to_its_end_before_its_jobs_run_again(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    running: list[str] = []
    twice: list[str] = []

    def together(jobs: list[ActiveJob]) -> None:
        twice.extend(job.id for job in jobs if job.id in running)
        running.extend(job.id for job in jobs)
        ended.wait(60)  # until the timeouts of its jobs have passed
        for job in jobs:
            running.remove(job.id)

    ended = threading.Event()
    async with Worker(queue.name, Batch(together, size=2, max_wait=1), concurrency=4, **where) as worker:
        jobs = [NewJob("n", number, timeout=1_000, max_attempts=100, backoff=1) for number in range(2)]
        handles = await queue.add_bulk(jobs)
        held = worker._current._renewer  # type: ignore[union-attr]
        await eventually(
            lambda: sum(job.ending is not None for job in held.held.values()) == 2, "their time is over"
        )
        ended.set()
        for handle in handles:
            assert (await handle.wait(timeout=PATIENCE_MS)).state == "completed"
            assert (await handle.job()).attempts == 1
    assert twice == []


# -- processes that jobs fork


@pytest.fixture
async def process_worker(queue: AsyncQueue, where: EndpointOptions) -> AsyncIterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(handlers: Any, run_in: Any = "process") -> Worker:
        made.append(Worker(queue.name, handlers, run_in=run_in, **where))
        return made[-1]

    yield make
    for worker in made:
        await worker.stop(grace=0)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("run_in", ["process", "thread"])
async def test_what_a_job_forks_is_no_second_worker(
    queue: AsyncQueue, process_worker: Callable[..., Worker], run_in: str
) -> None:
    async with process_worker({"fork": careless.fork, "name": careless.name_of}, run_in):
        for ending in ("exit", "raise", "speak", "return"):
            forked = await queue.add("fork", ending, max_attempts=1)
            helper = int(await forked.result(timeout=PATIENCE_MS))
            other = await queue.add("name", max_attempts=1)
            assert await other.result(timeout=PATIENCE_MS) == f"job {other.id}"
            await eventually(lambda helper=helper: is_gone(helper), "the copy has ended")  # type: ignore[misc]
            assert [line.message for line in await forked.logs()] == []


async def test_helpers_of_a_job_have_the_usual_signals(
    queue: AsyncQueue, process_worker: Callable[..., Worker]
) -> None:
    async with process_worker({"helper": careless.end_helper, "pool": careless.leave_pool}):
        assert await (await queue.add("helper", max_attempts=1)).result(timeout=PATIENCE_MS) is True
        assert await (await queue.add("pool", max_attempts=1)).result(timeout=PATIENCE_MS) == [1, 2]


SCRIPT = """
import multiprocessing, pickle, sys
from dataclasses import dataclass
from bunqueue import Worker

@dataclass
class Point:
    x: int

def twice(point):
    return Point(2 * point.x)

def work(job):
    again = pickle.loads(pickle.dumps(Point(job.data)))
    with multiprocessing.get_context(job.name).Pool(1) as pool:
        (point,) = pool.map(twice, [again])
    return point.x

if __name__ == "__main__":
    Worker(sys.argv[2], work, run_in="process", port=int(sys.argv[1])).run_forever()
"""


def test_what_a_script_defines_can_be_pickled_in_its_jobs(shared_server: Server, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, str(script), str(shared_server.port), "user-code-script"]
    with (
        subprocess.Popen(arguments, env=environment) as running,
        Queue("user-code-script", port=shared_server.port) as queue,
    ):
        for method in ("fork", "spawn"):
            assert queue.add(method, 21, max_attempts=1).result(timeout=PATIENCE_MS) == 42
        running.send_signal(signal.SIGTERM)
        wait_until(lambda: running.poll() is not None, "it ends")
        assert running.returncode == 0


FORKS = """
import os, sys, time
from bunqueue import Route, Worker

def leave_copy(job):
    copy = os.fork()
    if not copy:
        time.sleep(600)  # a helper that outlives its job
        os._exit(0)
    return copy

def pid(job):
    return os.getpid()

def rest(job):
    job.progress(1)
    time.sleep(600)  # until its process is killed

if __name__ == "__main__":
    handlers = {"leave_copy": Route(leave_copy, "thread"), "pid": pid, "rest": rest}
    Worker(sys.argv[2], handlers, run_in="process", port=int(sys.argv[1])).run_forever()
"""


def test_processes_end_with_their_worker_although_a_job_has_left_a_copy_of_it(
    shared_server: Server, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(FORKS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-W", "ignore", str(script), str(shared_server.port), "user-code-forks"]
    with (
        subprocess.Popen(arguments, env=environment) as running,
        Queue("user-code-forks", port=shared_server.port) as queue,
    ):
        process = queue.add("pid").result(timeout=PATIENCE_MS)  # the copy is made when it is there
        copy = queue.add("leave_copy").result(timeout=PATIENCE_MS)
        try:
            resting = queue.add("rest")
            wait_until(lambda: resting.job().progress == 1, "it runs")
            running.kill()
            wait_until(lambda: is_gone(process), "the process that runs it has ended, too")
            assert not is_gone(copy)
        finally:
            os.kill(copy, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_nobody_forks_while_a_process_is_started() -> None:
    """A copy would keep open the pipe on which the start is reported: the worker would wait for its end."""
    ready, order = threading.Event(), []

    def fork() -> None:
        ready.set()
        copy = os.fork()
        if not copy:
            os._exit(0)
        order.append("copied")
        os.waitpid(copy, 0)

    for _ in range(20):
        with uncopied:
            forking = threading.Thread(target=fork)
            forking.start()
            ready.wait()
            for _ in range(50):
                os.sched_yield()
            order.append("started")
        forking.join()
        ready.clear()
    assert order == ["started", "copied"] * 20


# -- what is known of an exception


def test_a_traceback_is_the_one_that_python_writes() -> None:
    import traceback

    def deep(number: int) -> None:
        if number:
            deep(number - 1)
        raise ValueError("on\ntwo lines")

    def caused() -> None:
        try:
            deep(0)
        except ValueError as error:
            raise TypeError from error

    def noted() -> None:
        error = LookupError("x")
        error.add_note("a note")
        raise error

    cases: list[Callable[[], object]] = [
        lambda: deep(0),
        lambda: deep(3),
        lambda: deep(200),
        caused,
        noted,
        lambda: 1 // 0,
        lambda: {}["x"],
        lambda: undefined,  # type: ignore[name-defined]  # noqa: F821
        lambda: ().nothing,  # type: ignore[attr-defined]
        lambda: compile("1 +", "x.py", "eval"),
        lambda: (_ for _ in ()).throw(ExceptionGroup("g", [ValueError("a"), KeyError("b")])),
        lambda: (_ for _ in ()).throw(ValueError()),
    ]
    for case in [*cases, *cases]:  # the second time from memory
        with pytest.raises(Exception) as raised:  # noqa: PT011  # each another one
            case()
        error = raised.value
        assert trace_text(error, error.__traceback__) == "".join(traceback.format_exception(error))
