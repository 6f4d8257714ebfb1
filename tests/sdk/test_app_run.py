"""An app as the purpose of a process: its life from the first hook to the last, and signals that end it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.server import Server, StartServer
from support.waiting import wait_until

from bunqueue import Queue

MODULE = """
import asyncio, time
from bunqueue import Bunqueue, current_job

app = Bunqueue("app-run", worker={"grace": 5_000})

@app.job
async def nap(seconds: float) -> str:
    print("begun", flush=True)
    await asyncio.sleep(seconds)  # how long the job runs
    return "rested"

@app.job(queue="app-run-plain")
def work(seconds: float) -> str:
    print("begun", flush=True)
    time.sleep(seconds)  # how long the job runs
    return "worked"

@app.cron(every=3_600_000, immediately=True)
async def tick() -> None:
    print("tick", flush=True)

@app.on("startup")
async def hello() -> None:
    print("hello", flush=True)

@app.on("shutdown")
def bye() -> None:
    print("bye", flush=True)

if __name__ == "__main__":
    app.run()
"""

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Runs the module as a program, given where the server is."""
    started: list[subprocess.Popen[str]] = []
    script = tmp_path / "program.py"
    script.write_text(MODULE, encoding="utf-8")

    def start(url: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, script],
            env={"BUNQUEUE_URL": url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def url_of(server: Server) -> str:
    return f"bunqueue://{server.host}:{server.port}"


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("name", ["nap", "work"])
def test_a_signal_lets_the_jobs_finish(server: Server, start: Start, name: str) -> None:
    process = start(url_of(server))
    assert [line(process), line(process)] == ["hello", "tick"]
    with Queue("app-run-plain" if name == "work" else "app-run", port=server.port) as queue:
        handle = queue.add(name, {"seconds": 0.5})
        assert line(process) == "begun"
        process.send_signal(signal.SIGTERM)
        assert line(process) == "bye"
        assert (process.wait(60), line(process)) == (0, "")
        assert handle.job().result == ("worked" if name == "work" else "rested")


def test_what_does_not_finish_goes_back_without_using_an_attempt(server: Server, start: Start) -> None:
    process = start(url_of(server))
    with Queue("app-run", port=server.port) as queue:
        handle = queue.add("nap", {"seconds": 60}, max_attempts=1)
        while line(process) != "begun":
            pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert (handle.state(), handle.job().attempts) == ("waiting", 0)


def test_an_app_starts_before_its_server(make_server: StartServer, start: Start) -> None:
    """Its schedules are told when the server is there."""
    server = make_server()
    server.start()
    server.kill_all()
    process = start(url_of(server))
    assert line(process) == "hello"
    assert process.stderr is not None
    while "schedules, limits and functions are declared later" not in process.stderr.readline():
        pass
    server.restart()
    assert line(process) == "tick"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_many_processes_that_start_at_once_make_one_schedule(server: Server, start: Start) -> None:
    processes = [start(url_of(server)) for _ in range(4)]
    for process in processes:
        assert line(process) == "hello"
    with Queue("app-run", port=server.port) as queue:
        wait_until(lambda: queue.counts().completed, "the schedule has run")
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in processes] == [0] * 4
    # Not `communicate`: it knows nothing of what `readline` has read ahead.
    printed = [process.stdout.read() for process in processes if process.stdout is not None]
    assert sum("tick" in text for text in printed) == 1
