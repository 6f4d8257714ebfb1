"""What a worker logs of itself and of its jobs: levels, texts and fields, however its handlers run."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sdk.conftest import told
from support.server import PROGRAM, ROOT, Server
from support.waiting import eventually, wait_until

from bunqueue import ActiveJob, AsyncQueue, Bunqueue, OptionError, Postpone, Queue, Retry, Worker
from bunqueue.client.connection.endpoint_options import EndpointOptions

SECRET = "correct horse battery staple"
NASTY = "n\r\n\x1b[31mERROR forged\u202e"


@pytest.fixture(params=["server", "embedded"])
def where(request: pytest.FixtureRequest) -> EndpointOptions:
    if request.param == "embedded":
        return {"embedded": True}
    server: Server = request.getfixturevalue("shared_server")
    return {"port": server.port}


@pytest.fixture
async def queue(where: EndpointOptions, request: pytest.FixtureRequest) -> AsyncIterator[AsyncQueue]:
    name = "log-" + "".join(c for c in request.node.name if c.isalnum())[:80]
    async with AsyncQueue(name, **where) as queue:
        await queue.obliterate()
        yield queue


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "bunqueue.worker")
    return caplog


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def of(log: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [record for record in log.records if fields(record).get("event") == event]


async def fine(job: ActiveJob) -> str:
    return "done"


def broken(job: ActiveJob) -> None:
    raise ValueError("boo")


async def broken_coroutine(job: ActiveJob) -> None:
    raise ValueError("boo")


async def test_a_worker_says_where_it_works_and_when_it_stops(
    queue: AsyncQueue, where: EndpointOptions, log: pytest.LogCaptureFixture
) -> None:
    async with Worker(queue.name, fine, concurrency=7, **where) as worker:
        await eventually(lambda: of(log, "connected"), "the server is known")
        owner = worker.owner
    (started,) = of(log, "worker_started")
    place = "embedded engine in memory" if "embedded" in where else f"127.0.0.1:{where['port']}"
    assert started.levelno == logging.INFO
    assert (
        started.message
        == f"queue {queue.name!r}: the worker takes jobs from {place}, 7 at a time, as {owner}"
    )
    (connected,) = of(log, "connected")
    assert fields(connected)["server"].startswith("bunqueue ")
    (stopping,), (stopped,) = of(log, "worker_stopping"), of(log, "worker_stopped")
    assert stopping.message.endswith("the worker stops; no job is running")
    assert (fields(stopped)["completed"], fields(stopped)["failed"]) == (0, 0)


async def test_each_job_begins_and_ends_in_the_log(
    queue: AsyncQueue, where: EndpointOptions, log: pytest.LogCaptureFixture
) -> None:
    handle = await queue.add("welcome", {"password": SECRET})
    async with Worker(queue.name, fine, **where):
        await handle.result(60_000)
        await eventually(lambda: of(log, "job_completed"), "it is logged")
    (begun,), (ended,) = of(log, "job_started"), of(log, "job_completed")
    assert (begun.levelno, ended.levelno) == (logging.DEBUG, logging.INFO)
    assert begun.message == f"queue {queue.name!r}: job {handle.id} (welcome) begins, attempt 1 of 3"
    known = {"queue": queue.name, "job_id": handle.id, "job_name": "welcome", "attempt": 1, "max_attempts": 3}
    assert fields(begun) == {"event": "job_started", **known}
    assert fields(ended) == {"event": "job_completed", **known, "duration_ms": fields(ended)["duration_ms"]}
    assert 0 <= fields(ended)["duration_ms"] < 60_000
    assert SECRET not in log.text


@pytest.mark.parametrize("how", ["coroutine", "thread", "process", "batch"])
async def test_failures_have_level_traceback_and_delay(
    queue: AsyncQueue, where: EndpointOptions, log: pytest.LogCaptureFixture, how: str
) -> None:
    options: dict[str, Any] = {"run_in": "process"} if how == "process" else {}
    handler = broken_coroutine if how == "coroutine" else broken
    app = Bunqueue(queue.name, **where)

    @app.batch("n", size=1)
    async def together(jobs: list[ActiveJob]) -> None:
        raise ValueError("boo")

    (batches,) = [worker for worker in app.__bunqueue_workers__()]
    worker = batches._make_workers()[0] if how == "batch" else Worker(queue.name, handler, **options, **where)
    handle = await queue.add("n", {"password": SECRET}, max_attempts=2, backoff=50)
    async with worker:
        assert (await handle.wait(60_000)).state == "failed"
        await eventually(lambda: of(log, "job_failed"), "it is logged")
    (again,), (final,) = of(log, "job_retried"), of(log, "job_failed")
    assert (again.levelno, final.levelno) == (logging.WARNING, logging.ERROR)
    assert (fields(again)["attempt"], fields(final)["attempt"]) == (1, 2)
    assert 45 <= fields(again)["delay_ms"] <= 55  # the backoff, and a tenth
    assert "has failed in attempt 1 of 2 after " in again.message
    assert (
        again.message.endswith(" s, and is tried again in 0.1 s: ValueError: boo")
        or "in 0.0 s" in again.message
    )
    for record in (again, final):
        assert record.exc_info
        text = logging.Formatter().formatException(record.exc_info)
        assert 'raise ValueError("boo")' in text
        assert "/bunqueue/client/" not in text
    assert SECRET not in log.text


async def test_retry_and_postpone_say_their_delay(
    queue: AsyncQueue, where: EndpointOptions, log: pytest.LogCaptureFixture
) -> None:
    async def handler(job: ActiveJob) -> None:
        raise Retry(90_000, "not yet") if job.data == "retry" else Postpone(60_000, "later")

    await queue.add_bulk([("n", "retry"), ("n", "postpone")])
    async with Worker(queue.name, handler, **where):
        await eventually(lambda: of(log, "job_retried") and of(log, "job_postponed"), "both are logged")
    (retried,), (postponed,) = of(log, "job_retried"), of(log, "job_postponed")
    assert "and is tried again in 90.0 s: Retry: not yet" in retried.message
    assert postponed.levelno == logging.INFO
    assert postponed.message.endswith("(n) begins again in 60.0 s: later")
    assert fields(postponed)["delay_ms"] == 60_000


async def test_names_and_ids_stay_on_their_line(
    queue: AsyncQueue, where: EndpointOptions, log: pytest.LogCaptureFixture
) -> None:
    handle = await queue.add(NASTY, job_id=f"{queue.name}\n\x9bid")
    async with Worker(queue.name, fine, **where):
        await handle.result(60_000)
        await eventually(lambda: of(log, "job_completed"), "it is logged")
    (ended,) = of(log, "job_completed")
    assert ended.message.isprintable()
    assert fields(ended)["job_name"] == "n\\r\\n\\x1b[31mERROR forged\\u202e"
    assert all(value.isprintable() for value in fields(ended).values() if isinstance(value, str))


async def test_at_the_level_that_python_has_only_trouble_is_logged(
    queue: AsyncQueue, where: EndpointOptions, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await queue.add("n")
    async with Worker(queue.name, fine, **where):
        await handle.result(60_000)
    assert [record for record in told(caplog) if record.name == "bunqueue.worker"] == []


async def test_a_stop_says_for_what_it_waits_and_what_it_ends(
    queue: AsyncQueue, where: EndpointOptions, log: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    async def endless(job: ActiveJob) -> None:
        begun.set()
        await asyncio.Event().wait()

    handle = await queue.add("report")
    async with Worker(queue.name, endless, **where) as worker:
        await begun.wait()
        await worker.stop(grace=100)
    (stopping,), (ended,) = of(log, "worker_stopping"), of(log, "jobs_interrupted")
    assert stopping.message.endswith(f"the worker stops, and waits up to 0.1 s for {handle.id} (report)")
    assert (fields(stopping)["jobs"], fields(stopping)["job_ids"]) == (1, handle.id)
    assert ended.levelno == logging.WARNING
    assert ended.message.endswith(f"has waited long enough, and ends {handle.id} (report)")


TASKS = """
    import os, sys, threading
    from bunqueue import Bunqueue

    app = Bunqueue("log-json", port=int(os.environ["BUNQUEUE_PORT"]))

    @app.job
    def wait(path: str) -> str:
        open(path, "w").close()
        while not os.path.exists(path + ".go"):
            threading.Event().wait(0.02)  # nobody tells a file's coming
        return "done"

    if __name__ == "__main__":
        app.run(log_format=None if "BUNQUEUE_LOG_FORMAT" in os.environ else "json")
"""


@pytest.mark.parametrize("by_variable", [False, True])
@pytest.mark.parametrize("how", ["bunqueue worker", "app.run"])
def test_json_lines_until_sigterm(how: str, by_variable: bool, shared_server: Server, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(textwrap.dedent(TASKS))
    command = [sys.executable, "tasks.py"]
    if how == "bunqueue worker":
        command = [sys.executable, "-c", PROGRAM, "worker", "tasks:app"]
        command += [] if by_variable else ["--log-format", "json"]
    environment = {"PYTHONPATH": str(ROOT), "BUNQUEUE_PORT": str(shared_server.port), "PATH": ""}
    environment |= {"BUNQUEUE_LOG_FORMAT": "json"} if by_variable else {}
    with (tmp_path / "log").open("wb") as errors:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=errors)
    try:
        with Queue("log-json", port=shared_server.port) as queue:
            handle = queue.add("wait", {"path": str(tmp_path / "begun")})
            wait_until((tmp_path / "begun").exists, "it runs")
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: "worker_stopping" in (tmp_path / "log").read_text(), "it stops")
            (tmp_path / "begun.go").touch()
            assert process.wait(60) == 0
            assert handle.result(60_000) == "done"
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    by_event = {line["event"]: line for line in lines}
    assert by_event["signal"]["message"].startswith("SIGTERM: ")
    assert by_event["worker_stopping"]["job_ids"] == handle.id
    assert by_event["job_completed"] | {"time": "", "duration_ms": 0} == {
        "time": "",
        "level": "info",
        "logger": "bunqueue.worker",
        "message": f"queue 'log-json': job {handle.id} (wait) completed in "
        f"{by_event['job_completed']['duration_ms'] / 1000:.3f} s",
        "event": "job_completed",
        "queue": "log-json",
        "job_id": handle.id,
        "job_name": "wait",
        "attempt": 1,
        "max_attempts": 3,
        "duration_ms": 0,
    }
    assert by_event["worker_stopped"]["completed"] == 1


def test_an_unknown_log_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Bunqueue("n", port=1)
    with pytest.raises(OptionError, match="log_format: 'xml' is unknown; there are text, json"):
        app.run(log_format="xml")  # type: ignore[arg-type]
    monkeypatch.setenv("BUNQUEUE_LOG_FORMAT", "xml")
    with pytest.raises(OptionError, match="BUNQUEUE_LOG_FORMAT: 'xml' is unknown; there are text, json"):
        app.run()
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "BUNQUEUE_LOG_FORMAT": "xml"}
    command = [sys.executable, "-c", PROGRAM, "worker", "tasks:app"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "BUNQUEUE_LOG_FORMAT: 'xml' is not allowed; give one of text, json" in done.stderr
