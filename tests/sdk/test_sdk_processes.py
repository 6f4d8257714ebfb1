"""Handlers in processes of their own: what they can do, what kills them, and when they are replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from sdk.conftest import options_for
from support import app_in_process, in_process, slow_to_import
from support.procfs import children
from support.server import ROOT, Server
from support.waiting import eventually, until, wait_until

from bunqueue import ActiveJob, AsyncQueue, CallNext, Middleware, OptionError, Queue, Recycle, Route, Worker
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.protocol.commands import jobs

MakeWorker = Callable[..., Worker]


@pytest.fixture(params=["server", pytest.param("embedded", marks=pytest.mark.nightly)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> EndpointOptions:
    """As elsewhere; but to a process it is all the same, and each costs as much as ten other tests."""
    return options_for(request, tmp_path)


@pytest.fixture
async def queue(where: EndpointOptions, name: str) -> AsyncIterator[AsyncQueue]:
    defaults: dict[str, Any] = {"backoff": 1, "max_attempts": 1}
    async with AsyncQueue(name, default_job_options=defaults, **where) as queue:  # type: ignore[arg-type]
        yield queue


@pytest.fixture
async def make_worker(queue: AsyncQueue, where: EndpointOptions) -> AsyncIterator[MakeWorker]:
    made: list[Worker] = []

    def make(handler: Any, **options: Any) -> Worker:
        made.append(Worker(queue.name, handler, **{"run_in": "process", **where, **options}))
        return made[-1]

    yield make
    for worker in made:
        await worker.stop(grace=0)


async def log_of(queue: AsyncQueue, job_id: str) -> list[tuple[str, str]]:
    reply = await queue._caller.call(jobs.GetLogs(id=job_id), jobs.GetLogsReply)
    return [(line.level, line.message) for line in reply.data.logs]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# -- what they do ------------------------------------------------------------------------------------------


async def test_results_come_from_other_processes(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    handles = await queue.add_bulk([("n", None)] * 20)
    async with make_worker(in_process.whoami, concurrency=2) as worker:
        await until(worker, completed=20)
        results = [await handle.result() for handle in handles]
        pids = {result["pid"] for result in results}
        assert os.getpid() not in pids
        assert len(pids) <= 2
        assert {result["name"] for result in results} == {"support.in_process"}
        assert [result["current"] for result in results] == [handle.id for handle in handles]
    assert all(map(is_gone, pids))


async def test_what_they_say_reaches_the_server(
    queue: AsyncQueue, make_worker: MakeWorker, capfd: pytest.CaptureFixture[str]
) -> None:
    handle = await queue.add("n")
    async with make_worker(in_process.talk, forward_logs="info") as worker:
        await until(worker, completed=1)
    job = await handle.job()
    assert (job.result, job.progress, job.progress_message) == ("said", 100, "well on")
    lines = [("warn", "a line"), ("info", "another"), ("warn", "from logging")]
    assert await log_of(queue, handle.id) == lines
    assert capfd.readouterr().out == "and to the terminal\n"


async def test_what_they_raise_is_told_with_its_traceback(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    errors: list[BaseException] = []
    handle, left, final, interrupted = await queue.add_bulk(
        [("n", None), ("n", "system exit"), ("n", "unrecoverable"), ("n", "interrupt")]
    )
    async with make_worker(in_process.fail, on_failed=lambda job, error: errors.append(error)) as worker:
        await until(worker, failed=4)
        assert worker._current is not None
        assert len(worker._current._runner._processes._all) == 1  # none of these cost a process
    assert (await handle.job()).error == "LookupError: down here"
    assert (await left.job()).error == "SystemExit: 3"
    assert (await final.job()).error == "Unrecoverable: no use"
    assert (await interrupted.job()).error == "KeyboardInterrupt"
    assert "in deep" in "".join(getattr(errors[0], "stack", []))


async def test_they_may_ask_for_another_attempt_or_be_put_back(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    again = await queue.add("n", "retry", max_attempts=2, backoff=3_600_000)
    later = await queue.add("n", "postpone")
    async with make_worker(in_process.fail) as worker:
        await until(worker, failed=3)
    assert ((await again.job()).error, (await again.job()).attempts) == ("Retry: busy", 2)
    assert str((await later.job()).error).startswith("PostponeLimit: ")
    assert (await later.job()).postponed == 2


async def test_a_middleware_is_around_them(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    class Plus(Middleware):
        async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
            job.data += 1
            return await call_next(job) + 1

    handle = await queue.add("n", 4)
    async with make_worker(in_process.square, middleware=[Plus()]) as worker:
        await until(worker, completed=1)
    assert await handle.result() == 26


async def test_kinds_of_handlers_side_by_side(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    async def here(job: ActiveJob) -> int:
        return os.getpid()

    def thread(job: ActiveJob) -> int:
        return os.getpid()

    routes = {
        "here": here,
        "thread": Route(thread, run_in="thread"),
        "process": in_process.whoami,
        "made": in_process.made.run,
    }
    handles = await queue.add_bulk([(name, None) for name in routes])
    async with make_worker(routes, concurrency=4) as worker:
        await until(worker, completed=4)
    results = [await handle.result() for handle in handles]
    assert results[:2] == [os.getpid()] * 2
    assert results[2]["pid"] != os.getpid()
    assert results[3].startswith("made in ")
    assert results[3] != f"made in {os.getpid()}"


async def test_typed_jobs_of_an_app(queue: AsyncQueue, where: EndpointOptions) -> None:
    (handlers,) = app_in_process.app.handlers.values()
    halved, bad, here = await queue.add_bulk([("halve", {"number": 5}), ("halve", {}), ("here", {})])
    async with Worker(queue.name, handlers, concurrency=2, **where) as worker:
        await until(worker, completed=2, failed=1)
    pid, half, name = await halved.result()
    assert (half, name) == (2.5, "halve")
    assert pid != os.getpid() == await here.result()
    assert "number" in str((await bad.job()).error)


# -- what kills them ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("kill", "was killed by SIGKILL (is memory short?)"),
        ("segfault", "was killed by SIGSEGV"),
        ("exit", "has ended with status 3"),
    ],
)
async def test_a_process_that_dies_fails_the_attempt_and_is_replaced(
    queue: AsyncQueue, make_worker: MakeWorker, how: str, text: str
) -> None:
    bad, good = await queue.add_bulk([("n", how), ("n", None)])
    async with make_worker(in_process.die) as worker:
        await until(worker, completed=1, failed=1)
    assert await good.result() == "lived"
    assert (await bad.job()).error == f"ProcessDied: the process that ran the job {text}"


async def test_a_job_that_kills_its_process_each_time_is_a_dead_letter(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    handle = await queue.add("n", "kill", max_attempts=3)
    async with make_worker(in_process.die) as worker:
        await until(worker, failed=3)
    (letter,) = await queue.dlq()
    assert (letter.id, letter.attempts) == (handle.id, 3)
    assert "was killed by SIGKILL" in str(letter.error)


@pytest.mark.parametrize("handler", [in_process.wait, in_process.stubborn])
async def test_a_cancelled_job_ends_with_its_process_if_need_be(
    queue: AsyncQueue, make_worker: MakeWorker, tmp_path: Path, handler: Any
) -> None:
    path = tmp_path / "pid"
    async with make_worker(handler) as worker:
        handle = await queue.add("n", str(path))
        await eventually(lambda: path.exists() and path.read_text(), "it runs")
        pid = int(path.read_text())
        stubborn = handler is in_process.stubborn
        grace = 300 if stubborn else 20_000
        await queue._caller.call(
            jobs.Cancel(id=handle.id, running=True, reason="enough", grace=grace), jobs.CancelReply
        )
        await until(worker, cancelled=1)
        assert await handle.state() == "cancelled"
        if stubborn:
            await eventually(lambda: is_gone(pid), "it is killed")
        else:
            text = f"JobCancelled: job {handle.id} (n) was cancelled: enough"
            assert path.with_suffix(".ended").read_text() == text
            assert not is_gone(pid)  # it goes on with other jobs


async def test_a_job_is_cancelled_while_its_process_is_being_started(
    queue: AsyncQueue, make_worker: MakeWorker, tmp_path: Path
) -> None:
    async with make_worker(in_process.wait) as worker:
        handle = await queue.add("n", str(tmp_path / "pid"))
        await until(worker, active=1)
        assert not await handle.cancel(grace=60_000)
        await until(worker, cancelled=1)  # long before the grace is over
        assert await handle.state() == "cancelled"


async def test_a_job_that_is_out_of_time_is_told(
    queue: AsyncQueue, make_worker: MakeWorker, tmp_path: Path
) -> None:
    path, before = tmp_path / "pid", tmp_path / "before"
    async with make_worker(in_process.wait) as worker:
        first = await queue.add("n", str(before))  # its time is not that which a process takes to start
        await eventually(before.exists, "a process runs jobs")
        await first.cancel(grace=60_000)
        await until(worker, cancelled=1)
        failed = 0
        while not path.with_suffix(".ended").exists():  # a busy machine may not have begun in time
            handle = await queue.add("n", str(path), timeout=1500)
            failed += 1
            await until(worker, failed=failed)
            assert (await handle.job()).error == "Job timeout exceeded"
    assert path.with_suffix(".ended").read_text().startswith("JobTimeout: ")


async def test_a_stop_interrupts_them_after_the_grace(
    queue: AsyncQueue, make_worker: MakeWorker, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    worker = make_worker(in_process.wait)
    await worker.start()
    handle = await queue.add("n", str(path))
    await eventually(path.exists, "it runs")
    await worker.stop(grace=0)
    assert path.with_suffix(".ended").read_text().startswith("JobInterrupted: ")
    assert is_gone(int(path.read_text()))
    job = await handle.job()
    assert (job.state, job.attempts, worker.stats.interrupted) == ("waiting", 0, 1)


async def test_they_are_told_of_the_stop(queue: AsyncQueue, make_worker: MakeWorker, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    worker = make_worker(in_process.until_stopping)
    await worker.start()
    handle = await queue.add("n", str(path))
    await eventually(path.exists, "it runs")
    await worker.stop()
    assert await handle.result() == "up to here"


async def test_one_that_is_still_being_started_ends_with_the_worker(
    queue: AsyncQueue, make_worker: MakeWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pid"
    monkeypatch.setenv("SLOW_TO_IMPORT", str(path))
    worker = make_worker(slow_to_import.handler)
    handle = await queue.add("n")
    await worker.start()
    await eventually(lambda: path.exists() and path.read_text(), "its process imports")
    await worker.stop(grace=0)
    assert is_gone(int(path.read_text()))
    assert worker._current is not None
    assert worker._current.fatal is None
    job = await handle.job()
    assert (job.state, job.attempts) == ("waiting", 0)


async def test_one_that_died_between_two_jobs_costs_no_attempt(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    async with make_worker(in_process.whoami) as worker:
        first = await (await queue.add("n")).result()
        os.kill(first["pid"], signal.SIGKILL)
        assert worker._current is not None
        (idle,) = worker._current._runner._processes._idle
        await asyncio.to_thread(idle._popen.wait)
        second = await (await queue.add("n")).result(60_000)
    assert second["pid"] != first["pid"]


async def test_what_middleware_carries_is_around_the_handler_there(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    class Tenant(Middleware):
        async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
            job.carry("support.in_process:around", tenant=job.data)
            return await call_next(job)

    handles = [await queue.add("n", tenant) for tenant in ("acme", "ajax")]
    async with make_worker(in_process.see_around, middleware=[Tenant()]):
        results = [await handle.result(60_000) for handle in handles]
    (acme,), (ajax,) = results
    assert acme.startswith("{'tenant': 'acme'} in ")
    assert ajax.startswith("{'tenant': 'ajax'} in ")
    assert not acme.endswith(f" in {os.getpid()}")


# -- when they are replaced --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recycle", "processes"),
    [(Recycle(), 1), (Recycle(jobs=2), 3), (Recycle(age=0), 6), (Recycle(memory=1), 6)],
    ids=["never", "jobs", "age", "memory"],
)
async def test_they_are_replaced_between_jobs(
    queue: AsyncQueue, make_worker: MakeWorker, recycle: Recycle, processes: int
) -> None:
    handles = await queue.add_bulk([("n", None)] * 6)
    async with make_worker(in_process.whoami, recycle=recycle) as worker:
        await until(worker, completed=6)
    assert len({(await handle.result())["pid"] for handle in handles}) == processes


async def test_only_what_holds_too_much_is_replaced(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    small, large, after = await queue.add_bulk([("n", 1), ("n", 200 << 20), ("n", 1)])
    async with make_worker(in_process.hoard, recycle=Recycle(memory=150 << 20)) as worker:
        await until(worker, completed=3)
    assert await small.result() == await large.result() != await after.result()


# -- what cannot be --------------------------------------------------------------------------------------


def nowhere() -> Any:
    return lambda job: None


@pytest.mark.parametrize("handler", [lambda job: None, nowhere()])
def test_what_another_process_cannot_find_is_refused(handler: Any) -> None:
    with pytest.raises(TypeError, match="cannot be found by another process"):
        Worker("q", handler, run_in="process")


def test_what_stands_for_another_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    square = in_process.square
    monkeypatch.setattr(in_process, "square", in_process.whoami)
    with pytest.raises(TypeError, match=r"support\.in_process:square is not .*would run something else"):
        Worker("q", square, run_in="process")


def test_coroutines_do_not_run_in_processes() -> None:
    async def handler(job: ActiveJob) -> None:
        pass

    with pytest.raises(TypeError, match="is a coroutine function: it runs in the event loop"):
        Worker("q", Route(handler, run_in="process"))
    with pytest.raises(OptionError, match="run_in: 'fork' is not allowed; give 'thread' or 'process'"):
        Worker("q", print, run_in="fork")  # type: ignore[arg-type]


PROGRAM = """
import os, sys
from bunqueue import Worker

def work(job):
    return __name__

worker = Worker("sdk-process-main", work, run_in="process", port=int(sys.argv[1]) if len(sys.argv) > 1 else 1)
{guard}worker.run_forever()
"""


def program(tmp_path: Path, guard: str, port: int) -> subprocess.Popen[str]:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.replace("{guard}", guard))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, script, str(port)], env=environment, stderr=subprocess.PIPE, text=True
    )


def test_handlers_of_the_program_itself(shared_server: Server, tmp_path: Path) -> None:
    running = program(tmp_path, 'if __name__ == "__main__": ', shared_server.port)
    with running, Queue("sdk-process-main", port=shared_server.port) as queue:
        handle = queue.add("n")
        assert wait_until(handle.result, "it is done") == "__mp_main__"
        assert len(children(running.pid)) == 1
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0


def test_a_program_that_starts_its_worker_when_imported_is_told(
    shared_server: Server, tmp_path: Path
) -> None:
    running = program(tmp_path, "", shared_server.port)
    with Queue("sdk-process-main", port=shared_server.port) as queue:
        handle = queue.add("n", max_attempts=1)
        _, errors = running.communicate(timeout=60)
        assert running.returncode == 1
        assert "ProcessBroken: no process can be started to run handlers in: it cannot import" in errors
        assert 'put what starts it under if __name__ == "__main__":' in errors
        assert (handle.state(), handle.job().attempts) == ("waiting", 0)


async def test_they_do_not_outlive_their_worker(shared_server: Server, tmp_path: Path) -> None:
    """Whatever they do: whoever gets their job must not meet them."""
    path = tmp_path / "pid"
    source = (
        "import sys; from support.in_process import stubborn; from bunqueue import Worker;"
        "Worker('sdk-process-orphan', stubborn, run_in='process', port=int(sys.argv[1])).run_forever()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    command = [sys.executable, "-c", source, str(shared_server.port)]
    running = await asyncio.create_subprocess_exec(*command, env=environment)
    async with AsyncQueue("sdk-process-orphan", port=shared_server.port) as queue:
        await queue.add("n", str(path))
        await eventually(lambda: path.exists() and path.read_text(), "it runs")
        running.kill()
        await running.wait()
        await eventually(lambda: is_gone(int(path.read_text())), "its child has ended, too")
