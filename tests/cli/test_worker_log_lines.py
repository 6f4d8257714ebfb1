"""With `--log-format json` each line on standard error is JSON, and those of handlers name their job, from
wherever in the handler's threads, processes and coroutines they are written.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support import warm
from support.server import PROGRAM, ROOT, Server

from bunqueue import Queue
from bunqueue.worker.log_context import _call_for, given_fields, job_fields

TASKS = """
import asyncio, functools, logging, os, threading, warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import multiprocessing
from bunqueue import ActiveJob, Batch, Bunqueue, Flow, Route, Worker, current_job

log = logging.getLogger("mine")
port = int(os.environ["BUNQUEUE_PORT"])
app = Bunqueue("lines", port=port, concurrency=1)
outside = ThreadPoolExecutor(1)

def say(what):
    log.info(what, extra={"order": {"id": 7, "token": "hush"}, "queue": "theirs", "odd": {1, 2} and object})

@app.job
async def everywhere():
    say("coroutine")
    await asyncio.create_task(asyncio.to_thread(say, "to_thread"))
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, say, "run_in_executor")
    await loop.run_in_executor(outside, say, "own executor")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as spawned:
        await loop.run_in_executor(spawned, say, "spawned pool")

@app.job
def in_a_thread():
    say("plain function")
    list(outside.map(say, ["map"]))
    log.info("%d jobs", "no number")
    warnings.warn("careful")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception("went wrong", stack_info=True)

@app.job(run_in="process")
def in_a_process():
    say("process")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(say, "thread of a process").result()

def step_function():
    say("step")

@app.workflow
async def flow(flow: Flow):
    say("workflow")
    await flow.step("first", step_function)

@app.workflow
def plain_flow(flow):
    say("plain workflow")
    flow.step("second", step_function)

@app.batch("batch", size=2, max_wait=100)
def batch(jobs: list[ActiveJob]):
    say("batch")

@app.job
def last():
    os.kill(os.getpid(), 15)
"""
LINES = {
    "coroutine": "everywhere",
    "to_thread": "everywhere",
    "run_in_executor": "everywhere",
    "own executor": "everywhere",
    "spawned pool": "everywhere",
    "plain function": "in_a_thread",
    "map": "in_a_thread",
    "process": "in_a_process",
    "thread of a process": "in_a_process",
    "workflow": "flow",
    "plain workflow": "plain_flow",
}


FIELDS = ("queue", "job_id", "job_name", "attempt", "queue_", "order")


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {"PYTHONPATH": str(ROOT), "PATH": "", **environment}
    return warm.run([*warm.COMMAND, *arguments], cwd=folder, env=environ)


def lines_of(text: str) -> list[dict[str, Any]]:
    """Fails for a line that is not JSON."""
    return [json.loads(line) for line in text.splitlines()]


def test_lines_lead_to_their_job(shared_server: Server, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    with Queue("lines", port=shared_server.port) as queue:
        queue.obliterate()
        ids = {
            name: queue.add(name, {}).id
            for name in ("everywhere", "in_a_thread", "in_a_process", "flow", "plain_flow")
        }
        ids["batch"] = queue.add("batch", 1).id
        queue.add("last", {})
        done = run(
            tmp_path, "worker", "tasks:app", "--log-format", "json", BUNQUEUE_PORT=str(shared_server.port)
        )
    assert done.returncode == 0, done.stderr
    lines = lines_of(done.stderr)
    mine = {line["message"]: line for line in lines if line["logger"] == "mine"}
    for words, job in LINES.items():
        line = mine[words]
        found = {
            name: line.get(name) for name in ("queue", "job_id", "job_name", "attempt", "queue_", "order")
        }
        assert found == {
            "queue": "lines",
            "job_id": ids[job],
            "job_name": job,
            "attempt": 1,
            "queue_": "theirs",
            "order": {"id": 7, "token": "***"},
        }, (words, line)
        assert line.get("workflow") == (job if "flow" in job else None), words
        assert "step" not in line
    steps = {line["step"]: line for line in lines if line["message"] == "step"}
    assert {name: (line["workflow"], line["job_id"]) for name, line in steps.items()} == {
        "first": ("flow", ids["flow"]),
        "second": ("plain_flow", ids["plain_flow"]),
    }
    batch = mine["batch"]
    assert (batch["queue"], batch["job_name"], batch["jobs"], batch["job_ids"]) == (
        "lines",
        "batch",
        1,
        ids["batch"],
    )
    assert "ZeroDivisionError" in mine["went wrong"]["traceback"]
    assert "log.exception" in mine["went wrong"]["stack"]
    assert mine["%d jobs (cannot be formatted with its arguments: TypeError)"]["job_id"] == ids["in_a_thread"]
    assert any("UserWarning: careful" in line["message"] for line in lines if line["logger"] == "py.warnings")
    assert any(
        "ZeroDivisionError" in line.get("traceback", "") for line in lines if "nobody" in line["message"]
    )


BROKEN = {
    "import": ("1 / 0", ["worker", "tasks:app"], "ZeroDivisionError"),
    "missing": ("import no_such_module_of_mine", ["worker", "tasks:app"], "no_such_module_of_mine"),
    "exit": ("raise SystemExit(3)", ["worker", "tasks:app"], "SystemExit"),
    "syntax": ("def", ["worker", "tasks:app"], "SyntaxError"),
    "no module": ("", ["worker", "nothing:app"], None),
    "no name": ("", ["worker", "tasks:app"], None),
    "no such flag": ("", ["worker", "tasks:app", "--lod-level", "x"], None),
    "level": ("", ["worker", "tasks:app", "--log-level", "loud"], None),
    "no server setting": ("", ["start", "--shards", "many"], None),
    "in several processes": ("1 / 0", ["worker", "tasks:app", "-p", "2"], "ZeroDivisionError"),
    "while it starts": (
        "from bunqueue import Bunqueue\\napp = Bunqueue('q')\\n@app.job\\ndef f(): ...\\n"
        "@app.on('startup')\\ndef begin(): raise ValueError('hook')",
        ["worker", "tasks:app"],
        "ValueError: hook",
    ),
}


def test_refusals_and_import_errors_are_json(tmp_path: Path) -> None:
    for form in (["--log-format", "json"], ["--log-format=json"], []):
        for what, (program, command, trace) in BROKEN.items():
            (tmp_path / "tasks.py").write_text(program.replace("\\n", "\n"))
            done = run(tmp_path, *command, *form, **({} if form else {"BUNQUEUE_LOG_FORMAT": "json"}))
            lines = lines_of(done.stderr)
            assert (done.returncode != 0, bool(lines), done.stdout) == (True, True, ""), what
            assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines), what
            traces = [line["traceback"] for line in lines if "traceback" in line]
            assert all(trace in each for each in traces) if trace else not traces, (what, lines)
            assert bool(traces) == bool(trace), (what, lines)


def test_a_server_that_cannot_start_says_so_in_json(shared_server: Server, tmp_path: Path) -> None:
    done = run(
        tmp_path, "start", "--data-dir", "d", "--tcp-port", str(shared_server.port), "--log-format", "json"
    )
    assert done.returncode != 0
    assert any(line["level"] == "critical" for line in lines_of(done.stderr))


def test_a_server_that_starts_and_stops_writes_json(tmp_path: Path) -> None:
    command = ["start", "--data-dir", "d", "--tcp-port", "0", "--http-port", "0", "--log-format", "json"]
    with (tmp_path / "errors").open("w") as errors:
        server = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *command],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert server.stdout is not None
        assert json.loads(server.stdout.readline())["message"].startswith("bunqueue ready tcp=")
        server.terminate()
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.communicate()
    assert lines_of((tmp_path / "errors").read_text())


def test_level_critical(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "import logging, os\nfrom bunqueue import Bunqueue\napp = Bunqueue('q', embedded=True)\n"
        "@app.job\ndef f(): ...\n@app.on('startup')\ndef begin():\n"
        "    logging.error('an error'); logging.critical('critical'); os.kill(os.getpid(), 15)\n"
    )
    done = run(tmp_path, "worker", "tasks:app", "--log-level", "critical", "--log-format", "json")
    assert [line["message"] for line in lines_of(done.stderr)] == ["critical"], done.stderr


def test_a_process_of_a_pool_belongs_to_the_job_of_each_call() -> None:
    """Such a process may be a copy of one in which another job was running."""
    other = given_fields.set({"job_id": "other"})
    try:
        assert _call_for({"job_id": "mine"}, None, job_fields) == {"job_id": "mine"}
        assert _call_for({}, None, job_fields) == {}
        assert job_fields() == {"job_id": "other"}
    finally:
        given_fields.reset(other)
