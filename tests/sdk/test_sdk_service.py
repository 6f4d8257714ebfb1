"""Workers as processes: signals stop them in order, and a second one ends the waiting."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import Server
from support.waiting import wait_until

from bunqueue import Queue
from bunqueue.protocol.commands import query, queues
from bunqueue.worker.service import AGAIN

PROGRAM = """
import sys, time, asyncio
from bunqueue import Worker, run_forever

def work(job):
    print("begun", job.name, flush=True)
    if job.name == "exit":
        sys.exit(3)
    time.sleep(job.data)  # how long the job runs
    return "done"

async def work_async(job):
    return work(job) if job.name == "exit" else await asyncio.sleep(job.data)  # how long the job runs

port = int(sys.argv[1])
run_forever(
    Worker("sdk-service", work, port=port, concurrency=4),
    Worker("sdk-service-async", work_async, port=port),
)
print("ended", flush=True)
"""


class Process:
    """A worker process and what it prints."""

    def __init__(self, port: int) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def end(self) -> tuple[int, str, str]:
        out, errors = self.popen.communicate(timeout=60)
        return self.popen.returncode, out, errors


@pytest.fixture
def process(shared_server: Server) -> Iterator[Process]:
    process = Process(shared_server.port)
    yield process
    process.popen.kill()
    process.popen.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_lets_the_jobs_finish(shared_server: Server, process: Process, number: int) -> None:
    with Queue("sdk-service", port=shared_server.port) as queue:
        handle = queue.add("short", 1.0)
        assert process.line() == "begun short"
        process.popen.send_signal(number)
        assert process.end() == (0, "ended\n", "")
        assert handle.result() == "done"


def test_two_signals_at_once_are_one(shared_server: Server, process: Process) -> None:
    with Queue("sdk-service", port=shared_server.port) as queue:
        handle = queue.add("short", 1.0)
        assert process.line() == "begun short"
        process.popen.send_signal(signal.SIGTERM)
        process.popen.send_signal(signal.SIGINT)
        assert process.end() == (0, "ended\n", "")
        assert handle.result() == "done"


def test_the_second_signal_does_not_wait(shared_server: Server, process: Process) -> None:
    with Queue("sdk-service", port=shared_server.port) as queue:
        handle = queue.add("endless", 600.0, max_attempts=1)
        assert process.line() == "begun endless"
        process.popen.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.popen.wait(2 * AGAIN)  # it waits for the job
        process.popen.send_signal(signal.SIGTERM)
        status, out, _ = process.end()
        assert (status, out) == (0, "ended\n")
        job = handle.job()
        assert (job.state, job.attempts, job.error) == ("waiting", 0, None)
        queue._caller.call(queues.Drain(queue=queue.name), query.CountReply)


def test_a_coroutine_that_exits_ends_its_own_job_only(shared_server: Server, process: Process) -> None:
    with Queue("sdk-service-async", port=shared_server.port) as queue:
        handle = queue.add("exit", 0, max_attempts=1)
        assert handle.wait(timeout=60_000).state == "failed"
        assert handle.job().error == "SystemExit: 3"
        assert process.popen.poll() is None
        process.popen.send_signal(signal.SIGTERM)
        assert process.end()[0] == 0


def test_a_killed_worker_gives_its_jobs_back(shared_server: Server, process: Process) -> None:
    with Queue("sdk-service", port=shared_server.port) as queue:
        handle = queue.add("endless", 600.0)
        assert process.line() == "begun endless"
        process.popen.kill()
        wait_until(lambda: handle.state() == "waiting", "the server has given it back")
        assert handle.job().attempts == 0


@pytest.mark.nightly  # at each change `make lint` looks at tests/types
def test_types_are_what_users_see(tmp_path: Path) -> None:
    """`mypy --strict` on a user's program, also with its mistakes."""
    program = tmp_path / "program.py"
    program.write_text(
        "import bunqueue\n"
        "async def handler(job: bunqueue.ActiveJob) -> int:\n"
        "    await job.progress(5)\n"
        "    return job.attempts\n"
        "async def main() -> None:\n"
        "    async with bunqueue.AsyncQueue('q', default_job_options={'max_attempts': 2}) as queue:\n"
        "        handle = await queue.add('n', {'x': 1}, priority=1, delay=5)\n"
        "        reveal_type(await handle.state())\n"
        "        reveal_type(await queue.get_job(handle.id))\n"
        "        await queue.add('n', priority='high')\n"
        "        await queue.add('n', prio=1)\n"
        "    await bunqueue.Worker('q', handler, concurrency=5).run()\n"
        "with bunqueue.Queue('q') as blocking:\n"
        "    reveal_type(blocking.add('n', 1, tags=['a']))\n"
        "    reveal_type(blocking.add('n').job().created_at)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.partition("program.py:")[2] for line in done.stdout.splitlines()]
    assert [line for line in lines if "Revealed" in line] == [
        '8: note: Revealed type is "str"',
        '9: note: Revealed type is "bunqueue.client.models.jobs.Job | None"',
        '14: note: Revealed type is "bunqueue.client.blocking.queue.handle.JobHandle[Any]"',
        '15: note: Revealed type is "datetime.datetime"',
    ]
    errors = [line.split(":")[0] for line in lines if "error" in line]
    assert errors == ["10", "11"], done.stdout
