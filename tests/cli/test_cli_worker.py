"""`bunqueue worker` as a process: what it runs, how it ends, and processes that are kept running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import Cli
from support.procfs import children
from support.server import Server, StartServer
from support.waiting import PATIENCE_S, wait_until
from support.warm import COMMAND, ROOT, Warm

from bunqueue import JobHandle, Queue
from bunqueue.cli.framework import exits
from bunqueue.protocol.commands import workers as staff

MODULE = """
import os, sys, time
from pathlib import Path
from bunqueue import Bunqueue, Worker

VERSION = "first"

async def send(job):
    return {"pid": os.getpid(), "data": job.data, "version": VERSION}

def slow(job):
    print("begun", job.data, flush=True)
    time.sleep(job.data)  # how long the job runs
    return "done"

def deadly(job):
    if job.data == "poison":
        os._exit(9)
    return "fine"

def broken(job):
    sys.exit(5)

worker = Worker("cli-worker", send, concurrency=3)
routes = {"a": send, "*": slow}
pair = [Worker("cli-pair-1", send), Worker(["cli-pair-2", "cli-pair-3"], routes, concurrency=4)]
app = Bunqueue("cli-app", concurrency=6)

@app.job
async def greet(name: str) -> str:
    return f"hello {name}"

@app.job(queue="cli-other", run_in="process")
def square(number: int) -> int:
    return number ** 2

number = 5
"""


class Command:
    """A running `bunqueue worker`, in a folder with `tasks.py`."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        if not (folder / "tasks.py").exists():
            (folder / "tasks.py").write_text(MODULE)
        self.errors = folder / "stderr"
        with self.errors.open("ab") as errors:
            self.popen = Warm(
                [*COMMAND, "worker", *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.errors.read_text()

    def end(self, number: int = signal.SIGTERM, within_s: float = PATIENCE_S) -> int:
        """Send a signal, and wait; the exit status."""
        self.popen.send_signal(number)
        return self.wait(within_s)

    def wait(self, within_s: float = PATIENCE_S) -> int:
        try:
            return self.popen.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end\n{self.said()}") from None

    def dispose(self) -> None:
        """Whatever has happened, leave nothing behind."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.communicate()


Run = Callable[..., Command]


@pytest.fixture
def run(tmp_path: Path, shared_server: Server) -> Iterator[Run]:
    made: list[Command] = []

    def start(*arguments: str, **environment: str) -> Command:
        environment.setdefault("BUNQUEUE_URL", f"bunqueue://127.0.0.1:{shared_server.port}")
        made.append(Command(tmp_path, *arguments, **environment))
        return made[-1]

    yield start
    for command in made:
        command.dispose()


def queue_of(server: Server, name: str) -> Queue:
    return Queue(name, port=server.port, default_job_options={"max_attempts": 1, "backoff": 1})


def result(handle: JobHandle[Any]) -> Any:
    return wait_until(lambda: handle.state() == "completed" and handle.job(), "it is done").result


# -- what it runs ------------------------------------------------------------------------------------------


def test_a_handler(run: Run, shared_server: Server) -> None:
    command = run("tasks:send", "--queue", "cli-handler", "-c", "7", "--name", "mill")
    with queue_of(shared_server, "cli-handler") as queue:
        assert result(queue.add("n", 5))["data"] == 5

        def registered() -> list[staff.WorkerInfo]:  # by a thread of the worker's own
            workers = queue._caller.call(staff.ListWorkers()).data.workers
            return [each for each in workers if each.name == "mill"]

        (entry,) = wait_until(registered, "the worker is registered")
        assert (entry.concurrency, entry.pid) == (7, command.popen.pid)
    assert command.end() == 0
    said = command.said()
    place = f"127.0.0.1:{shared_server.port}"
    assert f"queue cli-handler at {place}: all jobs, 7 at a time, in the event loop\n" in said
    assert "stop it with Ctrl-C; once more does not wait for running jobs" in said


@pytest.mark.parametrize(("order", "left"), [("strict", (1, 4)), ("{0}=2,{1}=1", (2, 3))])
def test_the_order_of_several_queues(
    run: Run, shared_server: Server, order: str, left: tuple[int, int]
) -> None:
    names = [f"cli-order-{kind}-{left[0]}" for kind in ("high", "low")]
    with queue_of(shared_server, names[0]) as high, queue_of(shared_server, names[1]) as low:
        for queue in (low, high):
            for number in range(4):
                queue.add("n", number)
        flags = ("-q", names[0], "-q", names[1], "--order", order.format(*names), "--max-jobs", "3")
        assert run("tasks:send", *flags).wait() == 75
        assert (high.counts().waiting, low.counts().waiting) == left


def test_a_worker_by_its_usual_name(run: Run, shared_server: Server, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("from tasks import worker\n")
    command = run("other", "--concurrency", "9")
    with queue_of(shared_server, "cli-worker") as queue:
        assert result(queue.add("n", 6))["data"] == 6
    assert command.end(signal.SIGINT) == 0
    assert "all jobs, 9 at a time" in command.said()


def test_several_workers(run: Run, shared_server: Server) -> None:
    command = run("tasks:pair")
    for name in ("cli-pair-1", "cli-pair-2", "cli-pair-3"):
        with queue_of(shared_server, name) as queue:
            assert result(queue.add("a", name))["data"] == name
    assert command.end() == 0
    assert "queue cli-pair-3" in command.said()
    assert "a, all other jobs, 4 at a time in all, in the event loop, threads" in command.said()


def test_an_app(run: Run, shared_server: Server) -> None:
    command = run("tasks:app")
    with queue_of(shared_server, "cli-app") as queue, queue_of(shared_server, "cli-other") as other:
        assert result(queue.add("greet", {"name": "Ada"})) == "hello Ada"
        assert result(other.add("square", {"number": 7})) == 49
    assert command.end() == 0
    assert "greet, 6 at a time, in the event loop" in command.said()
    assert "square, 6 at a time, in processes" in command.said()


def test_an_app_as_the_flags_say(run: Run, shared_server: Server) -> None:
    command = run("tasks:app", "-q", "cli-app", "-c", "3")
    with queue_of(shared_server, "cli-app") as queue:
        assert result(queue.add("greet", {"name": "Ada"})) == "hello Ada"
    assert command.end() == 0
    assert "greet, 3 at a time, in the event loop" in command.said()
    assert "cli-other" not in command.said()


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("cli-app=2,cli-other=1", "square, 3 at a time in all, in processes"),
        ("first", 'order: \'first\' is not allowed; give "even", "strict", or a weight for each queue'),
        ("cli-app=2", "give a weight for each of cli-app, cli-other"),
    ],
)
def test_the_order_of_an_apps_queues(run: Run, shared_server: Server, order: str, said: str) -> None:
    command = run("tasks:app", "--order", order, "-c", "3")
    if "3 at a time" not in said:
        assert command.wait() == exits.USAGE
    else:
        with queue_of(shared_server, "cli-app") as queue, queue_of(shared_server, "cli-other") as other:
            assert result(queue.add("greet", {"name": "Ada"})) == "hello Ada"
            assert result(other.add("square", {"number": 7})) == 49
        assert command.end() == 0
    assert said in command.said()


def test_the_server_by_flags(run: Run, make_server: StartServer) -> None:
    server = make_server("--auth-token", "right")
    server.start()
    flags = ["--host", "127.0.0.1", "--port", str(server.port), "--token", "right"]
    command = run("tasks:send", "-q", "q", *flags, BUNQUEUE_URL="bunqueue://127.0.0.1:1")
    with Queue("q", port=server.port, token="right") as queue:
        assert result(queue.add("n", 1))["data"] == 1
    assert command.end() == 0


# -- what it does not run ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nothing"], "there is no module 'nothing' in "),
        (["nothing.here:app"], "there is no module 'nothing' in "),
        (["bad-name:app"], "'bad-name:app' is no target: give module:name, such as tasks:app"),
        (["tasks:nothing"], "module tasks has no 'nothing'"),
        (["tasks:number"], "tasks:number is 5; give an app, a Worker, or a function that takes a job"),
        (["tasks:send"], "tasks:send is a handler; say which jobs it runs: --queue NAME"),
        (["tasks:send", "-q", "not allowed"], "invalid characters"),
        (["tasks:send", "-q", "q", "-c", "0"], "'-c': 0 is not allowed; give a number from 1 on"),
        (["tasks:send", "-q", "q", "--max-memory", "-1"], "'--max-memory': -1 is not allowed"),
        (["tasks:send", "-q", "q", "--max-jobs", "0"], "'--max-jobs': 0 is not allowed"),
        (["tasks:send", "-q", "q", "--grace", "-1"], "'--grace': -1.0 is not allowed"),
        (["tasks:app", "--port", "99999"], "--port: '99999' is not allowed"),
        (["tasks:app", "--url", "redis://x"], "--url: it is no address of a server"),
        (["quits"], "module quits ends the program while it is imported"),
        (["tasks:send", "-q", "q", "--run-in", "fork"], "run_in: 'fork' is not allowed"),
        (["tasks:send", "-q", "q", "-q", "r", "--order", "first"], "order: 'first' is not allowed"),
        (["tasks:send", "-q", "q", "-q", "r", "--order", "q=1,q=2"], "order: 'q=1,q=2' is not allowed"),
        (["tasks:send", "-q", "q", "-q", "r", "--order", "q=1"], "give a weight for each of q, r"),
        (["tasks:send", "-q", "q", "-q", "r", "--order", "q=1,r=x"], "order['r']: 'x' is not allowed"),
        (["tasks:send", "-q", "q", "--order", "strict"], "as the worker has one queue, 'q'"),
        (["tasks:app", "-q", "cli-app", "--order", "strict"], "as the worker has one queue, 'cli-app'"),
        (["tasks:app", "-q", "q"], "has no queue 'q' to work; it has cli-app, cli-other"),
        (["tasks:app", "-c", "0"], "'-c': 0 is not allowed"),
        (["tasks:worker", "-q", "q"], "--queue: tasks:worker names its own queues"),
        (["tasks:greet"], "tasks:greet is a job of an app; name the app instead"),
        (
            ["tasks:send", "-q", "q", "--url", "bunqueue://x", "--port", "1"],
            "--url says what --host and --port",
        ),
        (["tasks:send", "-q", "q", "--log-level", "loud"], "--log-level: 'loud' is not allowed"),
        (["tasks:send", "-q", "q", "--processes", "2", "--bad"], "No such option: --bad"),
        (["broken_module"], "module broken_module cannot be imported: ZeroDivisionError: division by zero"),
        (["half"], "module half cannot be imported: No module named 'missing_library'"),
        (["empty"], "module empty has none of app, worker, workers; say what to run: empty:name"),
    ],
)
def test_what_cannot_be_run_is_told_in_a_line(
    run: Run, tmp_path: Path, arguments: list[str], text: str
) -> None:
    (tmp_path / "broken_module.py").write_text("def deep():\n    return 1 / 0\n\ndeep()\n")
    (tmp_path / "half.py").write_text("import missing_library\n")
    (tmp_path / "quits.py").write_text("import sys\n\nsys.exit(0)\n")
    (tmp_path / "empty.py").write_text("")
    command = run(*arguments)
    assert command.wait() == 2
    *before, last = command.said().splitlines()
    assert last.startswith("bunqueue: ")
    assert text in last
    trace = "\n".join(before)
    assert ("Traceback" in trace) == (arguments[0] in ("broken_module", "half", "quits"))
    assert "importlib" not in trace
    assert "in deep" in trace or arguments[0] != "broken_module"


# -- how it ends -------------------------------------------------------------------------------------------


def test_running_jobs_may_end_and_a_second_signal_does_not_wait(run: Run, shared_server: Server) -> None:
    with queue_of(shared_server, "cli-slow") as queue:
        command = run("tasks:slow", "-q", "cli-slow")
        handle = queue.add("n", 1.0)
        assert command.popen.stdout is not None
        assert command.popen.stdout.readline() == "begun 1.0\n"
        assert command.end() == 0
        assert handle.result() == "done"

        command = run("tasks:slow", "-q", "cli-slow")
        handle = queue.add("n", 600)
        assert command.popen.stdout is not None
        assert command.popen.stdout.readline() == "begun 600\n"
        command.popen.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            command.popen.wait(1)
        assert command.end() == 0
        assert (handle.state(), handle.job().attempts) == ("waiting", 0)

        command = run("tasks:slow", "-q", "cli-slow", "--grace", "100")
        assert command.popen.stdout is not None
        assert command.popen.stdout.readline() == "begun 600\n"
        assert command.end() == 0


def test_exit_statuses(run: Run, shared_server: Server, make_server: StartServer) -> None:
    with queue_of(shared_server, "cli-status") as queue:
        queue.add_bulk([("n", 1)] * 5)
        worn = run("tasks:send", "-q", "cli-status", "--max-jobs", "3")
        assert worn.wait() == 75
        assert "to be replaced: it has run 3 jobs" in worn.said()
        queue.add("n", 1)
        large = run("tasks:send", "-q", "cli-status", "--max-memory", "1")
        assert large.wait() == 75
    server = make_server("--auth-token", "right")
    server.start()
    refused = run("tasks:send", "-q", "q", "--port", str(server.port), "--token", "wrong")
    assert refused.wait() == 78
    assert "AuthError: " in refused.said()
    assert "Traceback" not in refused.said()


# -- several processes -------------------------------------------------------------------------------------


def test_processes_share_the_work_and_the_dead_are_replaced(run: Run, shared_server: Server) -> None:
    command = run("tasks:send", "-q", "cli-many", "--processes", "3")
    pid = command.popen.pid
    first = wait_until(lambda: len(children(pid)) == 3 and children(pid), "three run")
    with queue_of(shared_server, "cli-many") as queue:
        seen: set[int] = set()
        while len(seen) < 3:
            seen |= {result(handle)["pid"] for handle in queue.add_bulk([("n", 1)] * 10)}
        assert seen == {process.pid for process in first}
        first[0].kill()
        wait_until(lambda: len({p.pid for p in children(pid)} - {first[0].pid}) == 3, "it is replaced")
        assert "was killed by SIGKILL; another one is started in 1 s" in command.said()
        result(queue.add("n", 1))
    running = children(pid)
    assert command.end() == 0
    assert not any(process.alive for process in running)


def test_worn_out_processes_are_replaced_at_once(run: Run, shared_server: Server) -> None:
    command = run("tasks:send", "-q", "cli-worn", "--processes", "1", "--reload", "--max-jobs", "5")
    with queue_of(shared_server, "cli-worn") as queue:
        handles = queue.add_bulk([("n", 1)] * 20)
        assert len({result(handle)["pid"] for handle in handles}) >= 3
    assert command.end() == 0
    assert "another one is started in" not in command.said()


def test_what_makes_no_sense_is_not_repeated(run: Run) -> None:
    command = run("tasks:nothing", "--processes", "2")
    assert command.wait() == 2
    assert command.said().count("module tasks has no 'nothing'") <= 2


def test_processes_do_not_outlive_who_oversees_them(run: Run) -> None:
    command = run("tasks:send", "-q", "cli-orphans", "--processes", "2")
    running = wait_until(
        lambda: len(children(command.popen.pid)) == 2 and children(command.popen.pid), "two run"
    )
    wait_until(lambda: command.said().count("queue cli-orphans") == 2, "they work")
    command.popen.kill()
    wait_until(lambda: not any(process.alive for process in running), "they have ended, too")


def test_a_job_that_kills_its_worker_ends_as_a_dead_letter(run: Run, shared_server: Server) -> None:
    """And does not keep the others from being done."""
    with queue_of(shared_server, "cli-poison") as queue:
        poison = queue.add("n", "poison", max_attempts=3)
        handles = queue.add_bulk([("n", "good")] * 10)
        command = run("tasks:deadly", "-q", "cli-poison", "--processes", "2")
        for handle in handles:
            assert result(handle) == "fine"
        wait_until(lambda: poison.state() == "failed", "it is given up")
        (letter,) = queue.dlq()
        assert letter.stall_count == 3
        assert letter.error == "Whoever held the job has gone at once, 5 times by now"
        assert command.end() == 0


# -- development -------------------------------------------------------------------------------------------


def test_a_change_starts_it_anew(run: Run, shared_server: Server, tmp_path: Path) -> None:
    command = run("tasks:send", "-q", "cli-reload", "--reload")
    module = tmp_path / "tasks.py"
    with queue_of(shared_server, "cli-reload") as queue:
        assert result(queue.add("n", 1))["version"] == "first"
        write(module, MODULE.replace('"first"', '"second"'))
        wait_until(lambda: "tasks.py has changed" in command.said(), "it is seen")
        wait_until(lambda: result(queue.add("n", 1))["version"] == "second", "the new one runs")
        write(module, "this is no Python\n")
        wait_until(lambda: "waiting for a change" in command.said(), "a mistake is waited out")
        assert "SyntaxError" in command.said()
        write(module, MODULE.replace('"first"', '"third"'))
        wait_until(lambda: result(queue.add("n", 1))["version"] == "third", "the mended one runs")
    assert command.end() == 0


def write(path: Path, text: str) -> None:
    """Write a file so that its time tells it."""
    path.write_text(text)
    later = time.time() + 2
    os.utime(path, (later, later))


def test_workers_are_paused_and_resized_by_name(shared_server: Server) -> None:
    cli = Cli(shared_server)
    program = [sys.executable, "-c", PAUSED, str(shared_server.port)]
    with subprocess.Popen(program, env=cli.environ(), stdin=subprocess.PIPE) as process:
        try:
            wait_until(lambda: "mill" in cli("worker", "list").out, "it is listed")
            assert cli.json("worker", "pause", "mill")["paused"] is True
            (found,) = [each for each in cli.json("worker", "list") if each["name"] == "mill"]
            assert found["status"] == "paused"
            assert cli.json("worker", "concurrency", found["id"], "5")["workers"] == [found["id"]]
            cli("worker", "resume", "mill")
            (found,) = [each for each in cli.json("worker", "list") if each["name"] == "mill"]
            assert (found["status"], found["concurrency"]) == ("active", 5)
            assert "no worker 'mil'" in cli("worker", "pause", "mil", status=exits.NOT_FOUND).err
            assert cli("worker", "concurrency", "mill", "0", status=None).status == exits.USAGE
        finally:
            process.kill()


PAUSED = """
import sys
from bunqueue import Worker
Worker("flour", print, name="mill", port=int(sys.argv[1])).run_forever()
"""


def test_stop_and_drain_from_elsewhere(run: Run, shared_server: Server) -> None:
    """`drain` waits for a job that outlasts the grace; an overseer replaces no process that was stopped."""
    cli = Cli(shared_server)
    for verb, count in (("drain", 1), ("stop", 2)):
        name = f"ended-{verb}"
        flags = ("--queue", "cli-ended", "--name", name, "--grace", "100", "--processes", str(count))
        with Queue("cli-ended", port=shared_server.port) as queue:
            queue.obliterate()
            command = run("tasks:slow", *flags)
            job = queue.add("slow", 1.5 if verb == "drain" else 0.0)
            wait_until(lambda job=job: job.state() != "waiting", "a worker has it")  # type: ignore[misc]

            def ids(name: str = name) -> list[str]:
                return [each["id"] for each in cli.json("worker", "list") if each["name"] == name]

            wait_until(lambda ids=ids, count=count: len(ids()) == count, "all are listed")  # type: ignore[misc]
            cli("worker", verb, name if count == 2 else ids()[0])
            assert command.wait() == 0, command.said()
            assert job.result(60_000) == "done"
            assert ids() == []
    cli("worker", "stop", "nobody-here", status=exits.NOT_FOUND)
