"""Flows on the command line, and the flags that say more about a job."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import Cli, Terminal
from support.server import Server

from bunqueue import Queue
from bunqueue.cli.framework import exits
from bunqueue.client.options.cron import cron_command
from bunqueue.protocol.commands.cron import CronReply

FLOW = {
    "name": "sum",
    "queue": "fl-sums",
    "data": {"month": "May"},
    "children": [
        {"name": "one", "queue": "fl-parts", "max_attempts": 1},
        {"name": "two", "queue": "fl-parts", "on_failure": "ignore", "delay": 60_000, "children": [
            {"name": "deep", "queue": "fl-deep"},
        ]},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def cli(shared_server: Server) -> Cli:
    return Cli(shared_server)


@pytest.fixture
def terminals(cli: Cli) -> Iterator[list[Terminal]]:
    made: list[Terminal] = []
    yield made
    for each in made:
        each.dispose()


def test_a_flow_is_added_and_shown(cli: Cli, tmp_path: Path, terminals: list[Terminal]) -> None:
    file = tmp_path / "flow.json"
    file.write_text(json.dumps(FLOW))
    rows = [line.split("\t") for line in cli("flow", "add", str(file)).out.splitlines()]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("0", "fl-sums", "sum"),
        ("1", "fl-parts", "one"),
        ("1", "fl-parts", "two"),
        ("2", "fl-deep", "deep"),
    ]
    root, one = rows[0][1], rows[1][1]
    assert cli("job", "state", root).value == "waiting-children"
    shown = cli.json("flow", "show", root)
    assert [(row["depth"], row["name"], row["state"]) for row in shown][:2] == [
        (0, "sum", "waiting-children"), (1, "one", "waiting")
    ]  # fmt: skip
    assert shown[0]["data"] == {"month": "May"}
    assert shown[1]["maxAttempts"] == 1
    assert len(cli.json("flow", "show", root, "--depth", "2")) == 3
    cli("pull", "fl-parts")
    cli("ack", one)
    terminals.append(cli.terminal("flow", "show", root))
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", terminals[0].end().out)
    assert re.search(r"^sum  waiting-children  fl-sums", drawn)
    assert re.search(r"├── one  completed", drawn)
    assert re.search(r"    └── deep  waiting", drawn)
    assert "1 of 4 jobs completed" in drawn


def test_several_flows_from_standard_input(cli: Cli) -> None:
    two = json.dumps([{"name": "a", "queue": "fl-many"}, {"name": "b", "queue": "fl-many"}])
    assert [row["name"] for row in cli.json("flow", "add", "-", stdin=two)] == ["a", "b"]


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        ("[1]", "flow 1 is no object; give"),
        ("{", "is no JSON"),
        ('{"name": "a"}', "the flow has no 'queue'"),
        ('{"name": "a", "queue": "fl-bad", "color": 1}', "there is no 'color'; there are name, queue"),
        ('{"name": "a", "queue": "fl-bad", "children": {}}', "the flow: children must be a list"),
        ('{"name": "a", "queue": "fl-bad", "children": [{"name": "", "queue": "q"}]}', "flow, child 1: name"),
        ('{"name": "a", "queue": "fl-bad", "unique_key": "k"}', "unique_key: not possible in a flow"),
        ('{"name": "a", "queue": "fl-bad", "max_attempts": 0}', "max_attempts must be at least 1, not 0"),
        ('{"name": "a", "queue": "fl-bad", "on_failure": "cry"}', "on_failure: 'cry' is not allowed"),
    ],
)  # fmt: skip
def test_a_wrong_flow_is_named_and_nothing_added(cli: Cli, flow: str, words: str) -> None:
    done = cli("flow", "add", "-", stdin=flow, status=exits.USAGE)
    assert words in done.err
    assert (done.err.count("\n"), done.out) == (1, "")
    assert cli("queue", "count", "fl-bad").value == "0"


NAMES = {"jobs": {
    "a": {"name": "one", "queue": "fl-graph"},
    "b": {"name": "two", "queue": "fl-graph", "after": ["a"]},
}}  # fmt: skip


def test_a_flow_with_names_is_added_grown_shown_cancelled_and_retried(cli: Cli) -> None:
    assert [row["id"] for row in cli.json("flow", "add", "-", "--id", "fl-7", stdin=json.dumps(NAMES))] == [
        "fl-7:a", "fl-7:b"
    ]  # fmt: skip
    more = json.dumps({"jobs": {"c": {"name": "three", "queue": "fl-graph", "after": ["a", "b"]}}})
    cli("flow", "add", "-", "--id", "fl-7", "--grow", stdin=more)
    shown = cli.json("flow", "show", "fl-7")
    assert [(row["name"], row["state"], row["after"]) for row in shown] == [
        ("a", "waiting", ""), ("b", "waiting-children", "a"), ("c", "waiting-children", "a, b")
    ]  # fmt: skip
    assert "already exists" in cli("flow", "add", "-", "--id", "fl-7", "--grow", stdin=more, status=1).err
    assert cli.json("flow", "cancel", "fl-7", "--reason", "enough") == {"cancelled": 3}
    assert [row["state"] for row in cli.json("flow", "show", "fl-7")] == ["cancelled"] * 3
    assert sorted(cli.json("flow", "retry", "fl-7")["retried"]) == ["a", "b", "c"]
    assert "has not ended" in cli("flow", "retry", "fl-7", "b", status=exits.WRONG_STATE).err


def test_a_batch_is_added_grows_and_is_closed_and_flows_are_listed(
    cli: Cli, terminals: list[Terminal]
) -> None:
    job = {"name": "send", "queue": "fl-batch"}
    batch = {"on_complete": {"name": "summary", "queue": "fl-batch"}, "jobs": {"a": job}}
    added = cli.json("flow", "add", "-", "--id", "fl-mails", stdin=json.dumps(batch))
    assert [row["id"] for row in added] == ["fl-mails:on-complete", "fl-mails:a"]
    more = json.dumps({"jobs": {"b": job}})
    cli("flow", "add", "-", "--id", "fl-mails", "--grow", stdin=more)
    cli("pull", "fl-batch")
    cli("ack", "fl-mails:a")
    terminals.append(cli.terminal("flow", "show", "fl-mails"))
    assert "batch, open: 1 completed and 0 failed of 2 jobs; on-complete to come" in terminals[0].end().out
    (line,) = cli.json("flow", "list", "--queue", "fl-batch")
    assert (line["id"], line["state"], line["jobs"], line["completed"], line["batch"]) == (
        "fl-mails", "running", 3, 1, "open"
    )  # fmt: skip
    assert cli("flow", "close", "fl-mails").value == "2"
    late = json.dumps({"jobs": {"c": job}})
    assert "was closed" in cli("flow", "add", "-", "--id", "fl-mails", "--grow", stdin=late, status=1).err
    assert cli("flow", "list", "--prefix", "fl-mai").value.split("\t")[:6] == [
        "fl-mails", "running", "3", "1", "0", "closed"
    ]  # fmt: skip
    assert cli("flow", "list", "--prefix", "fl-nobody").out == ""
    cli("flow", "list", "--limit", "0", status=exits.USAGE)
    cli("flow", "list", "--prefix", "a:b", status=exits.USAGE)


@pytest.mark.parametrize(
    ("flags", "flow", "words"),
    [
        (["--id", "x", "--grow"], {"on_complete": NAMES["jobs"]["a"]}, "--grow: on_complete is said when"),
        ([], {"jobs": {}, "color": 1}, "names has no 'color'; there are jobs, on_complete, on_success"),
        ([], {"jobs": {}, "id": "x"}, "has no 'id'; there are jobs, on_complete, on_success; give its id as"),
        ([], {"jobs": []}, 'jobs: they have names here; give {"jobs": {name: job}}'),
        (["--grow"], NAMES, "--grow: which flow? give its --id"),
        (["--id", "x"], FLOW, "--id and --grow are for a flow whose jobs have names"),
        ([], {"jobs": {"a": {"name": "a", "queue": "q", "children": []}}}, "job 'a': there is no 'children'"),
        ([], {"jobs": {"a": {"name": "a", "queue": "q", "after": "b"}}}, "job 'a': after must be a list"),
        (["--id", "a:b"], NAMES, "--id: 'a:b' is not allowed"),
    ],
)
def test_a_wrong_flow_with_names(cli: Cli, flags: list[str], flow: dict[str, object], words: str) -> None:
    assert words in cli("flow", "add", "-", *flags, stdin=json.dumps(flow), status=exits.USAGE).err


def test_an_unknown_flow(cli: Cli) -> None:
    assert "there is no job" in cli("flow", "show", "nobody", status=exits.NOT_FOUND).err
    for verb in ("cancel", "retry", "close"):
        assert "Flow not found" in cli("flow", verb, "nobody", status=exits.NOT_FOUND).err
    assert cli("flow", "add", "/nowhere", status=exits.USAGE).err.startswith("bunqueue: FILE: '/nowhere'")


# -- what else may be said of a job


def job(cli: Cli, *flags: str) -> dict[str, object]:
    found: dict[str, object] = cli.json("job", "get", cli("push", "fl-push", "1", *flags).value)
    return found


def test_flags_of_jobs(cli: Cli) -> None:
    headers = ("--header", "tenant=acme", "--header", "trace=a=b")
    assert job(cli, *headers)["headers"] == {"tenant": "acme", "trace": "a=b"}
    assert job(cli, "--backoff", "5s", "--backoff-type", "fixed")["backoff"] == 5000
    assert job(cli, "--keep-logs", "5", "--stack-trace-limit", "3", "--size-limit", "100")["keepLogs"] == 5
    kept = job(cli, "--keep-completed", "10m", "--keep-failed", "30d")
    assert (kept["keepCompleted"], kept["keepFailed"]) == (600_000, 30 * 86_400_000)
    repeated = job(cli, "--repeat", "1h", "--repeat-limit", "2")["repeat"]
    assert (repeated["every"], repeated["limit"]) == (3_600_000, 2)  # type: ignore[index]


def test_unique_jobs(cli: Cli) -> None:
    first = cli("push", "fl-unique", '{"to": "a", "n": 1}', "--unique-by", "to", "--unique-for", "1h").value
    kept = cli.json("push", "fl-unique", '{"to": "a", "n": 2}', "--unique-by", "to")
    assert kept == {"id": first, "queue": "fl-unique", "existing": True, "conflict": "kept", "holder": first}
    cli("push", "fl-unique", "5", "--unique")
    assert cli.json("push", "fl-unique", "5", "--unique")["existing"]
    refused = cli("push", "fl-unique", "5", "--unique", "--on-conflict", "reject", status=1)
    assert "holds the unique key" in refused.err
    newer = cli.json("push", "fl-unique", '{"to": "a"}', "--unique-by", "to", "--on-conflict", "supersede")
    assert (newer["existing"], newer["conflict"], newer["holder"]) == (False, "superseded", first)
    states = ["--unique-state", "active", "--unique-state", "waiting"]
    held = cli("push", "fl-unique", "1", "-u", "k", *states, "--on-conflict", "keep").value
    assert cli("queue", "unique-key", "fl-unique", "k").value == held


def test_unique_keys_with_more_to_them(cli: Cli) -> None:
    first = cli("push", "fl-key", "1", "-u", "a", "--delay", "1h", "--unique-for", "1h").value
    assert cli("push", "fl-key", "2", "-u", "a").value == first
    second = cli("push", "fl-key", "3", "-u", "a", "--delay", "1h", "--unique-replace").value
    assert second != first
    cli("job", "state", first, status=exits.NOT_FOUND)
    ids = [cli("push", "fl-quiet", str(n), "-u", "page", "--debounce", "1h").value for n in range(3)]
    assert cli("queue", "count", "fl-quiet").value == "1"
    assert cli.json("job", "get", ids[-1])["data"] == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--header", "tenant"], "--header: 'tenant' is not allowed; give NAME=TEXT"),
        (
            ["--unique-for", "1h"],
            "--unique-for: it goes with --unique-key or --unique or --unique-by; give that",
        ),
        (["--debounce", "1h"], "--debounce: it goes with --unique-key; give that"),
        (["--repeat-limit", "3"], "--repeat-limit: it goes with --repeat or --repeat-pattern; give that"),
        (["--repeat", "1h", "--repeat-pattern", "* * * * *"], "--repeat: give either that, or --repeat-p"),
        (["--backoff-type", "fixed"], "--backoff-type: it goes with --backoff"),
        (["-u", "k", "--debounce", "1h", "--unique-replace"], "--debounce: it replaces the job"),
        (["--backoff", "1s", "--backoff-type", "odd"], "--backoff: type"),
        (["--group-max-size", "3"], "--group-max-size: it is the size of a group; give --group"),
        (["--failure-policy", "cry"], "--failure-policy: 'cry' is not allowed; give one of fail"),
        (["--header", f"x={'y' * 2000}"], "--header"),
    ],
)
def test_flags_that_make_no_sense(cli: Cli, flags: list[str], words: str) -> None:
    done = cli("push", "fl-none", "1", *flags, status=exits.USAGE)
    assert words in done.err
    assert done.err.count("\n") == 1


def test_rules_for_retries(cli: Cli) -> None:
    flags = ["--backoff", "1s,5m", "--backoff-max", "4m", "--never-on", "ValueError", "--retry-on", "OSError"]
    dead = ["--on-dead", "alarm", "--on-dead-queue", "fl-ops", "--on-dead-data", '{"team": 1}']
    job_id = cli("push", "fl-rules", "1", "--max-attempts", "1", *flags, *dead).value
    job = cli.json("job", "get", job_id)
    assert (job["neverOn"], job["retryOn"]) == (["ValueError"], ["OSError"])
    assert (job["backoffConfig"]["delays"], job["backoffConfig"]["maxDelay"]) == ([1000], 240_000)
    cli("pull", "fl-rules")
    cli("fail", job_id, "--error", "broken")
    (alarm,) = cli.json("queue", "jobs", "fl-ops")
    assert (alarm["name"], alarm["data"], alarm["cause"]["id"]) == ("alarm", {"team": 1}, job_id)
    cli("push", "fl-rules", "1", "--on-dead-queue", "q", status=exits.USAGE)


def test_why_and_attempts(cli: Cli) -> None:
    job_id = cli("push", "fl-why", "1", "--max-attempts", "2", "--backoff", "1h").value
    assert cli("job", "attempts", job_id).out == ""
    cli("pull", "fl-why")
    cli("fail", job_id, "--error", "no such mailbox")
    (attempt,) = cli.json("job", "attempts", job_id)
    assert (attempt["number"], attempt["error"]) == (1, "no such mailbox")
    cli("queue", "pause", "fl-why")
    kinds = [line.split("\t")[0] for line in cli("job", "why", job_id).out.splitlines()]
    assert {"retry", "paused", "no-worker"} <= set(kinds)
    cli("job", "why", "nobody", status=exits.NOT_FOUND)


def test_dead_letters_by_name_and_error(cli: Cli) -> None:
    for name, error in (("pay", "bank closed"), ("pay", "no money"), ("declare", "bank closed")):
        job_id = cli("push", "fl-dead", "1", "--name", name, "--max-attempts", "1").value
        cli("pull", "fl-dead")
        cli("fail", job_id, "--error", error)
    assert cli("dlq", "count", "fl-dead").value == "3"
    assert cli("dlq", "count", "fl-dead", "--error", "BANK").value == "2"
    (one,) = cli.json("dlq", "list", "fl-dead", "--error", "bank", "--name", "pay")
    assert one["job"]["name"] == "pay"
    assert cli("dlq", "retry", "fl-dead", "--error", "bank").value == "2"
    assert cli("dlq", "count", "fl-dead").value == "1"


def test_schedules_are_paused(cli: Cli) -> None:
    cli("cron", "add", "fl-cron", "-q", "fl-cron", "--every", "1h")
    assert cli.json("cron", "get", "fl-cron")["paused"] is False
    cli("cron", "pause", "fl-cron")
    assert cli.json("cron", "get", "fl-cron")["paused"] is True
    assert "is paused" in cli("cron", "next", "fl-cron").err
    cli("cron", "resume", "fl-cron")
    assert [row["paused"] for row in cli.json("cron", "list") if row["name"] == "fl-cron"] == [False]
    cli("cron", "pause", "fl-nobody", status=exits.NOT_FOUND)


def test_groups_and_shards_are_listed(cli: Cli) -> None:
    for group in ("b", "a"):
        cli("push", "fl-group", "1", "--group", group)
    assert [row["id"] for row in cli.json("group", "list", "fl-group")] == ["a", "b"]
    assert cli("group", "list", "fl-group", "--limit", "1").value.split("\t")[:2] == ["a", "1"]
    assert [row["shard"] for row in cli.json("shards")] == [0, 1]


def test_json_of_queues_is_that_of_the_wire(cli: Cli) -> None:
    cli("push", "fl-wire", "1", "--priority", "5")
    cli("push", "fl-wire", "1")
    (row,) = [row for row in cli.json("queue", "list") if row["name"] == "fl-wire"]
    assert (row["waiting"], row["prioritized"]) == (1, 1)
    assert "fl-wire\t2\t" in cli("queue", "list").out


def test_a_schedule_shows_its_settings_and_how_its_last_run_ended(cli: Cli) -> None:
    cli("cron", "add", "fl-run", "-q", "fl-run", "--every", "1h", "--data", '{"a": 1}', "--allow-overlap")
    before = cli.json("cron", "get", "fl-run")
    assert (before["preventOverlap"], before["skipMissedOnRestart"], before["data"]) == (
        False,
        True,
        {"a": 1},
    )
    assert (before["missed"], before["lastRun"], before["app"]) == (0, None, None)
    job_id = cli("cron", "run", "fl-run").value
    cli("pull", "fl-run")
    cli("ack", job_id)
    last = cli.json("cron", "get", "fl-run")["lastRun"]
    assert (last["jobId"], last["outcome"]) == (job_id, "completed")
    (row,) = [row for row in cli("cron", "list").out.splitlines() if row.startswith("fl-run\t")]
    assert "\tcompleted\t" in row
    cli("cron", "run", "fl-nobody", status=exits.NOT_FOUND)


def test_the_name_of_a_schedule_is_not_taken_from_another_queue_by_mistake(cli: Cli) -> None:
    cli("cron", "add", "fl-mine", "-q", "fl-one", "--every", "1h")
    refused = cli("cron", "add", "fl-mine", "-q", "fl-two", "--every", "1h", status=exits.FAILED)
    assert "belongs to queue 'fl-one'" in refused.err
    assert cli.json("cron", "add", "fl-mine", "-q", "fl-two", "--every", "1h", "--move")["queue"] == "fl-two"


def test_schedules_that_an_app_no_longer_declares_are_pruned(
    cli: Cli, tmp_path: Path, shared_server: Server
) -> None:
    module = tmp_path / "pruned_tasks.py"
    module.write_text(PRUNED, encoding="utf-8")
    target = ["pruned_tasks:app", "--app-dir", str(tmp_path)]
    with Queue("fl-prune", host=shared_server.host, port=shared_server.port) as queue:
        for name in ("fl-kept", "fl-old"):
            declared = cron_command("fl-prune", name, None, {"every": 3_600_000}, "fl-prune")
            queue._caller.call(declared, CronReply)
    assert [row["name"] for row in cli.json("cron", "prune", *target, "--dry-run")] == ["fl-old"]
    cli("cron", "prune", *target, status=exits.USAGE)  # nobody is there to say yes
    assert [row["name"] for row in cli.json("cron", "list", "--app", "fl-prune")] == ["fl-kept", "fl-old"]
    assert [row["name"] for row in cli.json("cron", "prune", *target, "--yes")] == ["fl-old"]
    assert [row["name"] for row in cli.json("cron", "list", "--app", "fl-prune")] == ["fl-kept"]
    cli("cron", "prune", "pruned_tasks:NOTHING", "--app-dir", str(tmp_path), status=exits.USAGE)


PRUNED = """
from bunqueue import Bunqueue

app = Bunqueue("fl-prune")
NOTHING = 1

@app.cron(every=3_600_000, name="fl-kept")
def kept() -> None: ...
"""
