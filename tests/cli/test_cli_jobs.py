"""Jobs from the command line: adding, taking, looking at them, changing and ending them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from support.cli import Cli
from support.server import Server

from bunqueue.cli.framework import exits


@pytest.fixture(scope="module")
def cli(shared_server: Server) -> Cli:
    return Cli(shared_server)


def test_push_says_the_id_and_the_job_has_what_was_given(cli: Cli) -> None:
    job_id = cli(
        "push", "p", '{"to": "ada"}', "--name", "welcome", "--priority", "7", "--delay", "1h30m",
        "--max-attempts", "5", "--backoff", "2s", "--tag", "a", "--tag", "b", "--group", "acme",
        "--timeout", "5m", "--lifo", "--remove-on-fail", "--unique-key", "u",
    ).value  # fmt: skip
    job = cli.json("job", "get", job_id)
    assert (job["name"], job["data"], job["priority"], job["maxAttempts"]) == ("welcome", {"to": "ada"}, 7, 5)
    assert (job["backoff"], job["timeout"], job["tags"]) == (2000, 300_000, ["a", "b"])
    assert (job["groupId"], job["lifo"], job["removeOnFail"]) == ("acme", True, True)
    assert job["runAt"] - job["createdAt"] == 5_400_000
    again = cli.json("push", "p", "1", "--unique-key", "u")
    assert again == {"id": job_id, "queue": "p", "existing": True}


def test_push_takes_data_from_files_and_standard_input(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('["file"]')
    ids = [
        cli("push", "d", f"@{path}").value,
        cli("push", "d", "-", stdin='["stdin"]').value,
        cli("push", "d").value,
        cli("push", "d", '"ünï"').value,
    ]
    assert [cli.json("job", "get", each)["data"] for each in ids] == [["file"], ["stdin"], None, "ünï"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["push", "q", "{"], "DATA"),
        (["push", "q", "{"], "'{' is no JSON"),
        (["push", "q", r'"\ud83d"'], r"half a character (a lone surrogate: \ud83d, byte 1)"),
        (["queue", "jobs", "q", "--limit", str(10**20)], f"--limit: {10**20} is not allowed; give a whole"),
        (["workflow", "list", "--limit", str(10**20)], f"--limit: {10**20} is not allowed; give a whole"),
        (["flow", "list", "--limit", str(10**20)], f"--limit: {10**20} is not allowed; give a whole"),
        (["push", "q", "@/nowhere"], "'/nowhere' cannot be read: No such file"),
        (["push", "not allowed", "1"], "1 to 256 of the characters"),
        (["push", "q", "1", "--priority", "1000001"], "--priority must be at most 1000000, not 1000001"),
        (["push", "q", "1", "--priority", "high"], "'--priority' / '-P': 'high' is no whole number"),
        (["push", "q", "1", "--delay", "soon"], "'--delay' / '-d': 'soon' is no span of time; give ms, or"),
        (["push", "q", "1", "--delay", "400d"], "--delay must be at most 31536000000, not 34560000000"),
        (["push", "q", "1", "--max-attempts", "0"], "--max-attempts must be at least 1, not 0"),
        (["push", "q", "1", "--whole"], "--whole: it says what lines are; give --lines FILE, too"),
        (["push", "q", "1", "--lines", "x"], "--lines says what to add; give one or the other"),
        (["push", "q", "--lines", "/nowhere"], "--lines: '/nowhere' cannot be read"),
        (["pull", "q", "--timeout", "2m"], "--timeout must be at most 60000, not 120000"),
        (["pull", "q", "--lock", "2d"], "must be at most 86400000, not 172800000"),
        (["job", "priority", "x", "many"], "'many' is no whole number"),
        (["queue", "jobs", "q", "--state", "odd"], "--state: 'odd' is unknown; there are waiting"),
        (["queue", "jobs", "q", "--limit", "0"], "--limit: 0 is not allowed"),
        (["queue", "clean", "q", "--limit", "9999999", "--yes"], "--limit must be at most 1000000, not"),
        (["queue", "clean", "q", "--state", "active", "--yes"], "--state: 'active' is unknown"),
        (["rate-limit", "set", "q", "1", "--per", "0"], "--per must be at least 1, not 0"),
        (["rate-limit", "set", "q", "0"], "N: 0 would let no job start; pause the queue"),
        (["concurrency", "set", "q", "0"], "N: 0 would let no job start; pause the queue"),
        (["cron", "add", "n", "--queue", "q"], "--schedule: give either that, or --every"),
        (["cron", "add", "n", "--queue", "q", "--every", "0"], "--every must be a positive whole number"),
        (["cron", "next", "--schedule", "61 * * * *"], "--schedule: '61 * * * *' is not allowed"),
        (["cron", "next"], "NAME: give that of a schedule, or --schedule"),
        (["dlq", "config", "q", "--max-age", "x"], "is no span of time"),
        (["group", "concurrency", "q", "g"], "N: give a number of jobs, or --clear"),
        (["events", "--type", "odd"], "--type: 'odd' is not allowed; give one of pushed"),
        (["top"], "top draws on a terminal"),
        (["top", "--interval", "1"], "--interval must be at least 100 ms, not 1"),
        (["stats", "--port", "http"], "--port: 'http' is not allowed; give a number from 1 to 65535"),
        (["stats", "--url", "http://x"], "--url: it is no address of a server"),
        (["stats", "--url", "bunqueue://x", "--port", "1"], "--url says what --host and --port say"),
        (["pull", "bad name"], "invalid characters: 'bad name'; give 1 to 256 of the characters"),
        (["stall", "config", "q", "--max-stalls", "0"], "--max-stalls must be at least 1, not 0"),
        (["dlq", "config", "q", "--max-entries=-1"], "--max-entries must be at least 0, not -1"),
        (["dlq", "list", "q", "--limit", "0"], "--limit: 0 is not allowed"),
        (["group", "rate-limit", "q", "g", "0"], "N must be a positive safe integer, not 0"),
        (["cron", "add", "x", "-q", "q", "-s", "* * *"], "--schedule: '* * *' is not allowed: an"),
        (["cron", "add", "x", "-q", "q", "-s", "@daily", "-z", "Mars"], "unknown time zone 'Mars'"),
        (["stats", "--url", "bunqueue://x:99999"], "bunqueue: --url: Port out of range"),
        (["stats", "--tls-ca", "/nowhere"], "ca_file: /nowhere cannot be used: No such file"),
        (["queue", "lst"], "No such command 'lst'"),
    ],
)  # fmt: skip
def test_bad_input_is_named_with_its_bound(cli: Cli, arguments: list[str], words: str) -> None:
    done = cli(*arguments, status=exits.USAGE)
    assert words in done.err
    assert done.err.startswith("bunqueue: ")
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_an_error_is_json_where_json_is_wanted(cli: Cli) -> None:
    done = cli("job", "get", "nothing", "--json", status=exits.NOT_FOUND)
    error = orjson.loads(done.err)
    assert (error["ok"], error["code"], done.out) == (False, "job_not_found", "")
    assert error["error"].startswith("there is no job 'nothing'")


@pytest.mark.parametrize(
    ("arguments", "words", "rest"),
    [
        (["push", "q", "--priority", "5000000"], "--priority must", ("priority", 5_000_000, 1_000_000)),
        (["push", "q", "--backoff", "5", "--backoff-jitter", "7"], "--backoff:", ("backoff.jitter", 7, 1)),
        (["push", "q", "--max-attempts", "-1"], "--max-attempts must", ("maxAttempts", -1, 1)),
        (["push", "q", "--delay", "5x"], "'5x' is no span of time", ()),
        (["push", "q", "--nothing"], "No such option: --nothing", ()),
        (["start"], "--json: it is for commands that talk to a server, which start does not", ()),
    ],
)
def test_what_is_refused_before_it_is_sent_is_json_too(
    cli: Cli, arguments: list[str], words: str, rest: tuple[object, ...]
) -> None:
    done = cli("--json", *arguments, status=exits.USAGE)
    error = orjson.loads(done.err)
    assert (error["ok"], error["code"], done.out) == (False, "option", "")
    assert words in error["error"]
    assert tuple(error[name] for name in ("field", "value", "bound") if name in error) == rest


def test_lines_become_jobs(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n\n' for number in range(2500)))
    assert cli("push", "lines", "--lines", str(path), "--name", "count").value == "2500"
    jobs = cli.json("queue", "jobs", "lines", "--limit", "3000")
    assert [job["data"]["n"] for job in jobs] == list(range(2500))
    assert {job["name"] for job in jobs} == {"count"}


def test_whole_lines_have_names_and_options_of_their_own(cli: Cli) -> None:
    lines = '{"name": "a", "data": 1, "priority": 5}\n{"data": 2, "unique_key": "k"}\n{"unique_key": "k"}\n'
    done = cli.json("push", "whole", "--lines", "-", "--whole", "--max-attempts", "9", stdin=lines)
    assert done == {"queue": "whole", "added": 2, "existing": 1}
    first, second = cli.json("queue", "jobs", "whole")
    assert (first["name"], first["data"], first["priority"], first["maxAttempts"]) == ("a", 1, 5, 9)
    assert (second["name"], second["data"], second["uniqueKey"]) == ("default", 2, "k")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("{", "line 3: "),
        ('{"prio": 1}', "line 3: there is no option 'prio'; there are name, data,"),
        ('{"priority": 9999999}', "line 3: priority must be at most 1000000"),
        ("[1]", "line 3: it is no object"),
    ],
)
def test_the_lines_before_a_wrong_one_are_added(cli: Cli, bad: str, words: str) -> None:
    queue = f"bad-{abs(hash(bad))}"
    done = cli("push", queue, "--lines", "-", "--whole", stdin=f'{{"data": 1}}\n\n{bad}\n{{}}\n', status=None)
    assert done.status == exits.FAILED
    assert words in done.err
    assert "the 1 job before it are added" in done.err
    assert cli("queue", "count", queue).value == "1"
    nothing = cli("push", queue, "--lines", "-", "--whole", stdin=f"{bad}\n", status=exits.USAGE)
    assert "line 1: " in nothing.err
    assert "nothing was added" in nothing.err


def test_the_same_file_again_adds_nothing_with_its_key(cli: Cli) -> None:
    for _ in range(2):
        cli("push", "again", "--lines", "-", "--idempotency-key", "batch-1", stdin="1\n2\n3\n")
    assert cli("queue", "count", "again").value == "3"


def test_results_cannot_write_to_the_terminal(cli: Cli) -> None:
    job_id = cli("push", "unprintable", "1").value
    cli("pull", "unprintable")
    result = "a\x9b31m\x7f\u202e\u200f\u2066ü"
    cli("ack", job_id, "--result", orjson.dumps(result).decode())
    for verb in ("result", "wait"):
        for flags in ([], ["--json"]):
            out = cli("job", verb, job_id, *flags).out
            assert out.rstrip("\n").isprintable(), out
            found = orjson.loads(out)
            assert (found["result"] if flags else found) == result


def test_pull_ack_and_result(cli: Cli) -> None:
    job_id = cli("push", "t", '{"a": "b\\tc"}').value
    pulled = cli("pull", "t").value.split("\t")
    assert pulled == [job_id, '{"a":"b\\tc"}']
    assert cli("job", "state", job_id).value == "active"
    cli("ack", job_id, "--result", "[1, 2]")
    assert cli("job", "result", job_id).value == "[1,2]"
    assert cli("job", "wait", job_id).value == "[1,2]"
    assert cli("pull", "t", status=exits.NOT_FOUND).out == ""
    cli("ack", job_id, status=exits.WRONG_STATE)


def test_a_locked_job_needs_its_token(cli: Cli) -> None:
    job_id = cli("push", "locked", "1", "--max-attempts", "2", "--backoff", "0").value
    pulled = cli.json("pull", "locked", "--lock", "1m")
    assert (pulled["id"], pulled["data"]) == (job_id, 1)
    assert "lock" in cli("ack", job_id, "--lock-token", "wrong", status=exits.WRONG_STATE).err.lower()
    cli("heartbeat", job_id, "--lock-token", pulled["lockToken"], "--duration", "2m")
    cli("fail", job_id, "--lock-token", pulled["lockToken"], "--error", "no such mailbox")
    cli("pull", "locked", "--timeout", "60s")
    cli("fail", job_id, "--error", "gone", "--unrecoverable")
    (letter,) = cli.json("dlq", "list", "locked")
    assert (letter["job"]["id"], letter["error"], len(letter["attempts"])) == (job_id, "gone", 2)
    waited = cli("job", "wait", job_id, status=exits.NOT_COMPLETED)
    assert "gone" in waited.err


def test_given_back_is_no_failure(cli: Cli) -> None:
    job_id = cli("push", "back", "1").value
    cli("pull", "back")
    cli("fail", job_id, "--give-back")
    job = cli.json("job", "get", job_id)
    assert (job["state"], job["attempts"]) == ("waiting", 0)


def test_what_can_be_changed_of_a_job(cli: Cli) -> None:
    job_id = cli("push", "c", "1", "--delay", "1h", "--unique-key", "u").value
    cli("job", "update", job_id, '{"new": true}')
    cli("job", "priority", job_id, "-5")
    soon = datetime.now(UTC) + timedelta(hours=5)
    cli("job", "delay", job_id, (soon + timedelta(days=500)).isoformat(), status=exits.USAGE)
    cli("job", "delay", job_id, soon.isoformat())
    assert abs(cli.json("job", "get", job_id)["runAt"] - soon.timestamp() * 1000) < 5_000
    naive = cli("job", "delay", job_id, "2026-01-31T12:00", status=exits.USAGE)
    assert "'2026-01-31T12:00' has no time zone; give 2026-01-31T12:00Z for UTC" in naive.err
    cli("job", "delay", job_id, "2h")
    cli("job", "log", job_id, "one\ttab", "--level", "warning")
    job = cli.json("job", "get", job_id)
    assert (job["data"], job["priority"], job["state"]) == ({"new": True}, -5, "delayed")
    assert job["runAt"] - job["createdAt"] > 7_000_000
    assert cli("job", "logs", job_id).value.split("\t")[1:] == ["warning", "one\\ttab"]
    cli("job", "clear-logs", job_id, "--yes")
    assert cli.json("job", "logs", job_id) == []
    cli("job", "release-key", job_id)
    other = cli.json("push", "c", "1", "--unique-key", "u")
    assert other["existing"] is False
    cli("job", "promote", job_id)
    assert cli("job", "state", job_id).value == "waiting"
    cli("job", "discard", job_id)
    assert cli("job", "state", job_id).value == "failed"
    refused = cli("job", "retry", job_id, status=exits.WRONG_STATE)
    assert "another job has its unique key" in refused.err
    cli("job", "cancel", other["id"])
    cli("job", "retry", job_id)
    cli("job", "cancel", job_id)
    cli("job", "state", job_id, status=exits.NOT_FOUND)


def test_a_running_job_is_stopped_and_progress_is_told(cli: Cli) -> None:
    job_id = cli("push", "s", "1").value
    cli("pull", "s", "--lock", "1m")
    cli("job", "progress", job_id, "40", "--message", "half")
    assert cli.json("job", "progress", job_id) == {"progress": 40, "message": "half"}
    assert cli("job", "progress", job_id).out == "progress\t40\nmessage\thalf\n"
    assert cli.json("job", "cancel", job_id, "--reason", "enough", "--grace", "200")["running"] is True
    assert "enough" in cli("job", "wait", job_id, "--timeout", "60s", status=exits.NOT_COMPLETED).err


def test_wrong_states_and_unknown_jobs(cli: Cli) -> None:
    job_id = cli("push", "w", "1").value
    assert f"job {job_id} is waiting: " in cli("job", "promote", job_id, status=exits.WRONG_STATE).err
    assert "is waiting, so it has no result" in cli("job", "result", job_id, status=exits.WRONG_STATE).err
    late = cli("job", "wait", job_id, "--timeout", "50ms", status=exits.TIMED_OUT)
    assert "has not ended within 0.05 s" in late.err
    for verb in ("get", "state", "result", "wait", "cancel", "promote", "retry", "discard", "logs"):
        assert "no-such-job" in cli("job", verb, "no-such-job", status=exits.NOT_FOUND).err
    for verb in ("ack", "fail", "heartbeat"):
        for token in ([], ["--lock-token", "any"]):
            assert "no-such-job" in cli(verb, "no-such-job", *token, status=exits.NOT_FOUND).err
        cli(verb, job_id, status=exits.WRONG_STATE)


def test_families(cli: Cli) -> None:
    parent = cli("push", "f", '"parent"', "--delay", "1h").value
    child = cli("push", "f", '"child"').value
    cli("job", "set-parent", child, parent)
    cli("pull", "f")
    cli("ack", child, "--result", "42")
    rows = cli.json("job", "children", parent)
    assert rows == [{"child": child, "state": "completed", "value": 42, "error": None}]
    other = cli("push", "f", "1", "--delay", "1h").value
    cli("job", "set-parent", other, parent)
    cli("job", "leave-parent", other)
    cli("job", "set-parent", other, parent)
    cli("job", "remove-children", parent, "--yes")
    cli("job", "state", other, status=exits.NOT_FOUND)
