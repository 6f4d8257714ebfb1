"""The command line on a terminal: tables, questions, bars, live views; completion, and how it starts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from support.cli import Cli, Terminal, command
from support.server import ROOT, Server
from support.waiting import wait_until

from bunqueue import Breaker, Queue
from bunqueue.cli.framework import exits

On = Callable[..., Terminal]


@pytest.fixture(scope="module")
def cli(shared_server: Server) -> Cli:
    return Cli(shared_server)


@pytest.fixture
def on_terminal(cli: Cli) -> Iterator[On]:
    made: list[Terminal] = []

    def start(*arguments: str, **size: int) -> Terminal:
        made.append(cli.terminal(*arguments, **size))
        return made[-1]

    yield start
    for each in made:
        each.dispose()


def plain(text: str) -> str:
    """Without colours and movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_tables_and_sentences(cli: Cli, on_terminal: On) -> None:
    job_id = cli("push", "tt", '{"to": "\\u001b[31mada"}', "--name", "welcome").value
    done = on_terminal("queue", "jobs", "tt").end()
    heading, row = plain(done.out).splitlines()
    assert heading.split() == ["id", "name", "state", "priority", "failed", "created", "data"]
    assert row.startswith(f"{job_id}  welcome  waiting")
    assert "\\u001b[31mada" in row  # what could move the cursor is shown, not done
    record = plain(on_terminal("job", "get", job_id).end().out)
    assert re.search(r"^state\s+waiting\s*$", record, re.MULTILINE)
    assert "queue tt is paused\n" in on_terminal("queue", "pause", "tt").end().out
    assert "no such jobs\n" in on_terminal("queue", "jobs", "tt", "--state", "failed").end().out


def test_narrow_terminals_keep_ids_whole(cli: Cli, on_terminal: On) -> None:
    job_id = cli("push", "narrow", json.dumps({"text": "x" * 500})).value
    lines = plain(on_terminal("queue", "jobs", "narrow", columns=120).end().out).splitlines()
    assert len(lines) == 2
    assert lines[1].startswith(job_id)
    assert lines[1].rstrip().endswith("…")
    heading, row = plain(on_terminal("queue", "jobs", "narrow", columns=80).end().out).splitlines()
    assert heading.split() == ["id", "name", "state", "priority", "failed"]
    assert row.startswith(job_id)


def test_questions(cli: Cli, on_terminal: On) -> None:
    cli("push", "ask", "--lines", "-", stdin="1\n2\n")
    no = on_terminal("queue", "drain", "ask")
    no.until("Remove 2 jobs, waiting or delayed, of queue ask? [y/N]")
    no.type("n\n")
    done = no.end()
    assert (done.status, "nothing was changed" in done.out) == (exits.FAILED, True)
    assert cli("queue", "count", "ask").value == "2"
    yes = on_terminal("queue", "drain", "ask")
    yes.until("[y/N]")
    yes.type("y\n")
    assert "removed 2 jobs of queue ask" in yes.end().out
    stopped = on_terminal("queue", "obliterate", "ask")
    stopped.until("[y/N]")
    for _ in range(5):  # Python misses one that comes between its writing of a question and its reading
        stopped.type("\x03")
        with suppress(subprocess.TimeoutExpired):
            stopped.process.wait(5)
            break
    assert stopped.end().status == exits.INTERRUPTED


def test_a_long_work_shows_how_far_it_is(cli: Cli, on_terminal: On, shared_server: Server) -> None:
    with Queue("bar", port=shared_server.port) as queue:
        for _ in range(30):
            queue.add_bulk([("n", None)] * 5000)
    done = on_terminal("queue", "drain", "bar", "--yes").end()
    assert "removed 150,000 jobs of queue bar" in done.out
    assert "draining bar" in done.out
    assert "/150000" in plain(done.out)


def test_the_live_view(cli: Cli, on_terminal: On) -> None:
    cli("push", "live", "--lines", "-", stdin="1\n2\n3\n")
    cli("queue", "pause", "live")
    view = on_terminal("top", "--interval", "200ms", columns=120, rows=40)
    view.until("q\x1b[0m quits") if "q\x1b[0m quits" in view.said else view.until("quits")
    shown = plain(view.said)
    for words in ("pushed", "live", "paused", "router", "shard-1", "by depth", "workers (0)"):
        assert words in shown
    view.type("s")
    view.until("by oldest")
    view.type("q")
    done = view.end()
    assert done.status == 0
    assert done.out.rstrip().endswith("\x1b[?25h") or "\x1b[?1049l" in done.out


def test_keys_of_the_live_view(on_terminal: On) -> None:
    view = on_terminal("top", "--interval", "200ms", columns=100, rows=30)
    view.until("by depth")
    view.type("ss")  # as fast as nobody types
    view.until("by dead")
    view.type("\x1b[A")  # an arrow is no Escape
    view.type("s")
    view.until("by name")
    view.type("\x1b")
    assert view.end().status == 0


def test_the_live_view_on_a_small_terminal(on_terminal: On) -> None:
    view = on_terminal("top", "--count", "2", "--interval", "100", columns=60, rows=12)
    assert view.end().status == 0


# -- events ------------------------------------------------------------------------------------------------


def test_events_with_filters(cli: Cli) -> None:
    arguments = ["events", "ev", "--type", "completed", "--type", "failed", "--count", "2"]
    with subprocess.Popen(
        command(*arguments), env=cli.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "bunqueue: listening to queue ev; Ctrl-C ends it\n"
        first = cli("push", "ev", "1").value
        cli("pull", "ev")
        cli("ack", first, "--result", '{"a": 1}')
        second = cli("push", "ev", "1").value
        cli("pull", "ev")
        cli("fail", second, "--error", "broken\tpipe", "--unrecoverable")
        out, _ = process.communicate(timeout=60)
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[1:4] for row in rows] == [["completed", "ev", first], ["failed", "ev", second]]
    assert json.loads(rows[0][4]) == {"data": {"a": 1}}
    assert json.loads(rows[1][4])["terminal"] is True
    assert process.returncode == 0


def test_events_of_all_queues_also_new_ones(cli: Cli) -> None:
    with subprocess.Popen(
        command("events", "--json", "--follow"),
        env=cli.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert "listening to all queues" in process.stderr.readline()
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")))  # type: ignore
        reader.start()

        def heard() -> bool:
            cli("push", "brand-new", "1")
            return any('"brand-new"' in line for line in lines)

        wait_until(heard, "an event of the new queue")
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
        reader.join()
    assert process.returncode == exits.INTERRUPTED
    assert "Traceback" not in errors
    assert {"eventType", "queue", "jobId", "timestamp"} <= json.loads(lines[-1]).keys()


def test_events_that_have_happened(cli: Cli) -> None:
    ids = [cli("push", "past", str(number)).value for number in range(3)]
    cli("pull", "past")
    cli("ack", ids[0])
    rows = [line.split("\t") for line in cli("events", "past", "--since", "1h").out.splitlines()]
    kinds = [row[1:4] for row in rows]
    assert kinds[:3] == [["pushed", "past", each] for each in ids]
    assert ["completed", "past", ids[0]] in kinds
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    only = cli("events", "--since", "1h", "--type", "pushed", "--job", ids[1], "--json").out
    assert json.loads(only)["jobId"] == ids[1]
    assert cli("events", "past", "--since", "1h", "--count", "1").out.count("\n") == 1
    assert cli("events", "past", "--since", "1h", "--type", "stalled").out == ""
    refused = cli("events", "past", "--since", "1h", "--type", "lost", status=exits.USAGE)
    assert "'lost' is not allowed" in refused.err


def test_the_log_is_followed(cli: Cli) -> None:
    first = cli("push", "tail", "1").value
    with subprocess.Popen(
        command("events", "tail", "--since", "1h", "--follow", "--type", "pushed"),
        env=cli.environ(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert first in process.stdout.readline()
        second = cli("push", "tail", "2").value
        assert second in process.stdout.readline()
        process.send_signal(signal.SIGINT)
    assert process.returncode == exits.INTERRUPTED


def test_events_end_in_time(cli: Cli) -> None:
    assert cli("events", "silent", "--for", "100ms").out == ""
    cli("events", "silent", "--count", "1", "--for", "100ms", status=exits.TIMED_OUT)


def test_events_in_colour(cli: Cli, on_terminal: On) -> None:
    view = on_terminal("events", "colour", "--count", "1")
    view.until("listening")
    job_id = cli("push", "colour", "1").value
    assert re.search(rf"\d\d:\d\d:\d\d\.\d{{3}}  pushed      colour  {job_id}", plain(view.end().out))


def test_events_without_colours(cli: Cli) -> None:
    environ = cli.environ({"TERM": "xterm-256color", "NO_COLOR": "1"})
    view = Terminal(command("events", "grey", "--count", "1"), environ, 120, 40)
    try:
        view.until("listening")
        cli("push", "grey", "1")
        assert "\x1b[" not in view.end().out
    finally:
        view.dispose()


# -- completion --------------------------------------------------------------------------------------------


def completed(cli: Cli, line: str, url: str | None = None) -> list[str]:
    words = line.split(" ")
    environ = {
        "_BUNQUEUE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        **({"BUNQUEUE_URL": url} if url else {}),
    }
    return cli.program(env=environ).out.split()


def test_completion(cli: Cli) -> None:
    cli("push", "complete-me", "1")
    cli("cron", "add", "complete-cron", "-q", "complete-me", "--every", "1h")
    assert completed(cli, "bunqueue que") == ["queue"]
    assert "pause" in completed(cli, "bunqueue queue pa")
    assert completed(cli, "bunqueue queue pause complete") == ["complete-me"]
    assert completed(cli, "bunqueue push complete") == ["complete-me"]
    assert completed(cli, "bunqueue cron delete complete") == ["complete-cron"]
    assert completed(cli, "bunqueue queue jobs x --state del") == ["delayed"]
    assert completed(cli, "bunqueue call GetGroupWei") == ["GetGroupWeight"]
    assert completed(cli, "bunqueue call GetGroupWeight que") == ["queue="]
    assert completed(cli, "bunqueue queue pause complete", url="bunqueue://127.0.0.1:1") == []
    nobody = f"bunqueue queue pause --url {cli.url} complete"
    assert completed(cli, nobody, url="bunqueue://127.0.0.1:1") == ["complete-me"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_scripts(cli: Cli, shell: str) -> None:
    assert "_BUNQUEUE_COMPLETE" in cli("completion", shell).out


# -- the program itself ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "never"),
    [
        (["--help"], ("bunqueue.client", "rich", "asyncio")),
        (["queue", "--help"], ("bunqueue.client", "rich", "asyncio")),
        (
            ["push", "load", "1"],
            ("router", "shardproc", "bunqueue.worker.worker", "rich", "sqlite3", "croniter"),
        ),
    ],
)
def test_what_is_loaded(cli: Cli, arguments: list[str], never: tuple[str, ...]) -> None:
    program = (
        "import sys; from bunqueue.cli import main; status = main(); "
        "print(*sys.modules, sep='\\n', file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=cli.environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not set(done.stderr.split()) & set(never)


def test_a_closed_pipe_is_no_error(cli: Cli) -> None:
    cli("push", "piped", "--lines", "-", stdin="\n".join(map(str, range(3000))))
    line = " ".join(command("queue", "jobs", "piped", "--limit", "3000")[:1])
    program = f"{line} -m bunqueue queue jobs piped --limit 3000 | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", program],
        env=cli.environ(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (exits.PIPE_CLOSED, "")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("arguments", [("--help",), ("queue", "--help"), ("queue",), ("completion", "bash")])
def test_help_into_a_closed_pipe_is_no_error(cli: Cli, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            command(*arguments),
            env=cli.environ(),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (exits.PIPE_CLOSED, "")


def test_output_that_cannot_be_written(cli: Cli) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("queue", "list", "--json"),
            env=cli.environ(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == exits.FAILED
    assert json.loads(done.stderr)["error"] == "standard output cannot be written: No space left on device"


@pytest.mark.parametrize(
    ("words", "closed", "status", "said"),
    [
        (
            "queue list --json",
            ">&-",
            exits.FAILED,
            '{"ok":false,"error":"standard output cannot be written: Bad file descriptor","code":"option"}\n',
        ),
        ("queue pause closed", ">&-", exits.DONE, ""),
        ("push closed 1", "<&- >&- 2>&-", exits.FAILED, ""),
        ("queue pause closed", "2>&-", exits.DONE, ""),
        ("job get none", "2>&-", exits.NOT_FOUND, ""),
        ("queue drain closed", "<&-", exits.USAGE, None),
    ],
)
def test_standard_streams_that_are_closed(
    cli: Cli, words: str, closed: str, status: int, said: str | None
) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command(*words.split())],
        env=cli.environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done
    assert "Traceback" not in done.stderr
    assert said is None or done.stderr == said


def test_letters_that_a_terminal_does_not_have(cli: Cli) -> None:
    job_id = cli("push", "letters", r'"\u00e9\u20ac\ud83d\ude00"').value
    done = cli.program("job", "get", job_id, "--json", env={"PYTHONIOENCODING": "ascii"})
    assert (done.status, done.err) == (0, "")
    assert r"\u20ac\ud83d\ude00" in done.out
    assert json.loads(done.out)["data"] == "é€\N{GRINNING FACE}"


def test_help_is_readable_everywhere(cli: Cli) -> None:
    shown = cli("push", "--help").out
    assert "Examples:\n  bunqueue push emails" in shown
    assert shown.index("Options:") < shown.index("Any command:") < shown.index("Examples:")
    assert os.linesep.join(["Usage: bunqueue push [OPTIONS] QUEUE [DATA]"]) in shown
    assert cli("-h").out.startswith("Usage: bunqueue ")


# -- what somebody else chose ------------------------------------------------------------------------------

ESCAPES = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202eX\rY"
RAW = ("\x1b]0;pwned", "\x1b[2J", "\x9b31m", "\u202e", "\x07")


def test_no_text_of_others_has_an_effect_on_the_terminal(
    cli: Cli, on_terminal: On, shared_server: Server
) -> None:
    with Queue("hostile", port=shared_server.port) as queue:
        job = queue.add(f"n{ESCAPES}", {"text": ESCAPES}, max_attempts=1)
        taken = queue.pull()
        assert taken is not None
        queue.handle(job.id).fail(ESCAPES, lock_token=taken.lock_token)
        queue.set_breaker(Breaker(failures=1, pause=1000), job=f"b{ESCAPES}")
    for arguments in (
        ["job", "wait", job.id],
        ["job", "get", job.id],
        ["job", "get", job.id, "--json"],
        ["job", "attempts", job.id],
        ["dlq", "list", "hostile"],
        ["metrics"],
        ["breaker", "list"],
        ["job", "get", f"no{ESCAPES}"],
        ["queue", "count", f"no{ESCAPES}"],
        ["job", f"no{ESCAPES}"],
        ["--url", f"bunqueue://127.0.0.1:1/{ESCAPES}", "ping"],
        ["events", "hostile", "--since", "1h"],
        ["queue", "jobs", "hostile", "--state", "failed"],
    ):
        shown = on_terminal(*arguments).end().out
        assert not [each for each in RAW if each in shown], (arguments, shown)
        piped = cli.program(*arguments)
        assert not [each for each in RAW if each in piped.out + piped.err], (arguments, piped)
    question = on_terminal("cron", "delete", f"no{ESCAPES}").end().out
    assert not [each for each in RAW if each in question]


def test_a_bug_shows_no_escapes_either(cli: Cli) -> None:
    program = (
        "import sys\n"
        "from bunqueue.cli.output.terminal import plain_streams\n"
        "with plain_streams():\n"
        "    print('\\x1b[2Jhere')\n"
        "    raise RuntimeError('\\x1b[2Jthere')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=cli.environ(), capture_output=True, text=True, check=False
    )
    assert done.stdout == "\\x1b[2Jhere\n"
    assert "RuntimeError: \\x1b[2Jthere" in done.stderr
    assert "\x1b" not in done.stderr
