"""Queues from the command line, their dead letters, schedules, limits, groups and webhooks; the server."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest
from support.cli import Cli
from support.server import Server, StartServer
from support.waiting import eventually

from bunqueue import Queue, Worker
from bunqueue.cli.commands.top.numbers import RATES
from bunqueue.cli.framework import exits


@pytest.fixture(scope="module")
def cli(shared_server: Server) -> Cli:
    return Cli(shared_server)


def fill(cli: Cli, queue: str, count: int) -> None:
    cli("push", queue, "--lines", "-", stdin="\n".join(map(str, range(count))))


def test_queues_are_listed_paused_and_counted(cli: Cli) -> None:
    fill(cli, "list-b", 3)
    cli("push", "list-a", "1", "--priority", "4", "--delay", "1h")
    cli("push", "list-a", "1", "--priority", "4")
    cli("queue", "pause", "list-b")
    rows = [line.split("\t") for line in cli("queue", "list").out.splitlines()]
    assert rows == sorted(rows)
    assert ["list-a", "1", "1", "0", "0", "false"] in rows
    assert ["list-b", "3", "0", "0", "0", "true"] in rows
    assert cli("queue", "paused", "list-b").value == "true"
    cli("queue", "resume", "list-b")
    assert cli("queue", "paused", "list-b").value == "false"
    assert cli("queue", "count", "list-b").value == "3"
    assert cli.json("queue", "counts", "list-b")["waiting"] == 3
    assert cli("queue", "counts", "list-a", "--by-priority").value == "4\t2"


def test_a_push_waits_for_room(cli: Cli) -> None:
    cli("bounds", "config", "room", "--max-waiting", "1")
    first = cli("push", "room", "1").value
    assert "is full" in cli("push", "room", "2", status=exits.FAILED).err
    with ThreadPoolExecutor() as threads:
        waits = [
            threads.submit(cli.program, "push", "room", *job, "--wait-if-full", "30s", stdin="3\n")
            for job in (["2"], ["--lines", "-"])
        ]
        while cli.json("bounds", "config", "room")["refused"] < 3:
            pass
        cli("job", "remove", first, "--yes")
        assert next(as_completed(waits)).result().status == 0
        cli("queue", "drain", "room", "--yes")
        done = [wait.result() for wait in waits]
        assert [each.status for each in done] == [0, 0], done
    assert cli("queue", "count", "room").value == "1"


def test_json_and_the_server_may_be_said_anywhere(cli: Cli) -> None:
    fill(cli, "anywhere", 2)
    wanted = {"queue": "anywhere", "count": 2}
    nowhere = {"BUNQUEUE_URL": "bunqueue://127.0.0.1:1"}
    host, _, port = cli.url.removeprefix("bunqueue://").partition(":")
    for arguments in (
        ["--json", "--url", cli.url, "queue", "count", "anywhere"],
        ["queue", "--json", "--url", cli.url, "count", "anywhere"],
        ["queue", "count", "--json", "--url", cli.url, "anywhere"],
        ["-p", port, "queue", "-H", host, "count", "anywhere", "--json"],
    ):
        done = cli.program(*arguments, env=nowhere)
        assert (done.status, done.json) == (0, wanted), done


def test_pages_of_jobs(cli: Cli) -> None:
    fill(cli, "pages", 1200)
    assert len(cli.json("queue", "jobs", "pages", "--limit", "1100")) == 1100
    newest = cli.json("queue", "jobs", "pages", "--newest", "--limit", "2", "--offset", "1")
    assert [job["data"] for job in newest] == [1198, 1197]
    assert cli.json("queue", "jobs", "pages", "--state", "active", "--state", "delayed") == []
    lines = cli("queue", "jobs", "pages", "--limit", "2").out.splitlines()
    assert [line.split("\t")[1:5] for line in lines] == [["default", "waiting", "0", "0"]] * 2


def test_drain_clean_promote_retry_and_obliterate(cli: Cli) -> None:
    fill(cli, "many", 30)
    ids = [cli("push", "many", "1", "--delay", "1h").value for _ in range(3)]
    assert cli("queue", "promote", "many", "--count", "2").value == "2"
    assert cli("job", "state", ids[0]).value == "waiting"
    job_id = cli("pull", "many").value.partition("\t")[0]
    cli("ack", job_id)
    assert cli("queue", "retry", "many", "--yes").value == "1"
    assert cli("job", "state", job_id).value == "waiting"
    cli("queue", "retry", "many", "--id", job_id, status=exits.NOT_FOUND)
    done = cli.json("queue", "clean", "many", "--limit", "10", "--yes")
    assert (done["count"], len(done["ids"])) == (10, 10)
    assert cli("queue", "clean", "many", "--older-than", "1h", "--yes").value == "0"
    assert cli("queue", "clean", "many", "--older-than", "2020-01-31T12:00Z", "--yes").value == "0"
    assert cli("queue", "drain", "many", "--yes").value == "23"
    cli("queue", "trim-events", "many", "5", "--yes")
    cli("queue", "obliterate", "many", "--yes")
    assert "many" not in [row["name"] for row in cli.json("queue", "list")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["queue", "drain", "ask"],
        ["queue", "clean", "ask"],
        ["queue", "obliterate", "ask"],
        ["queue", "retry", "ask"],
        ["queue", "trim-events", "ask", "1"],
        ["dlq", "purge", "ask"],
        ["dlq", "remove", "ask", "x"],
        ["webhook", "remove", "x"],
    ],
)
def test_what_destroys_needs_a_yes_where_nobody_can_be_asked(cli: Cli, arguments: list[str]) -> None:
    if cli("queue", "count", "ask").value == "0":
        fill(cli, "ask", 2)
    done = cli(*arguments, status=exits.USAGE)
    assert "give --yes to do it" in done.err
    assert cli("queue", "count", "ask").value == "2"


def test_unique_keys(cli: Cli) -> None:
    job_id = cli("push", "keys", "1", "--unique-key", "k").value
    assert cli("queue", "unique-key", "keys", "k").value == job_id
    assert cli.json("queue", "unique-key", "keys", "k", "--free")["freed"] is True
    cli("queue", "unique-key", "keys", "k", status=exits.NOT_FOUND)


def test_dead_letters(cli: Cli) -> None:
    ids = [cli("push", "dead", "1").value for _ in range(4)]
    for each in ids:
        cli("job", "discard", each)
    rows = [line.split("\t") for line in cli("dlq", "list", "dead").out.splitlines()]
    assert [(row[0], row[3]) for row in rows] == [(each, "discarded") for each in reversed(ids)]
    assert cli.json("dlq", "list", "dead", "--older-than", "1h") == []
    assert cli.json("dlq", "list", "dead", "--older-than", "2020-01-31T12:00Z") == []
    assert len(cli.json("dlq", "list", "dead", "--newer-than", "2020-01-31T12:00Z")) > 0
    assert cli.json("dlq", "stats", "dead")["total"] == 4
    config = cli.json(
        "dlq", "config", "dead", "--auto-retry", "--auto-retry-interval", "10m", "--max-age", "never"
    )
    assert (config["autoRetry"], config["autoRetryInterval"], config["maxAge"]) == (True, 600_000, None)
    assert cli.json("dlq", "config", "dead", "--no-auto-retry", "--max-age", "1d")["maxAge"] == 86_400_000
    assert cli("dlq", "retry", "dead", "--id", ids[0]).value == "1"
    cli("dlq", "retry", "dead", "--id", ids[0], status=exits.NOT_FOUND)
    assert cli("dlq", "retry", "dead", "--count", "1").value == "1"
    cli("dlq", "remove", "dead", ids[2], "--yes")
    cli("dlq", "remove", "dead", ids[2], "--yes", status=exits.NOT_FOUND)
    assert cli("dlq", "purge", "dead", "--yes").value == "1"


def test_schedules(cli: Cli) -> None:
    cron = cli.json(
        "cron", "add", "nightly", "-q", "c", "-s", "30 2 * * *", "-z", "Europe/Rome", "--data", '{"a": 1}',
        "--limit", "3", "--max-attempts", "2", "--tag", "x", "--allow-overlap", "--backoff", "1s",
        "--backoff-type", "linear", "--unique-key", "k", "--unique-for", "1m", "--on-conflict", "reject",
    )  # fmt: skip
    assert (cron["uniqueKey"], cron["dedup"]["onConflict"], cron["dedup"]["ttl"]) == ("k", "reject", 60_000)
    assert cron["jobOptions"]["backoff"] == {"type": "linear", "delay": 1000, "jitter": 0.1}
    assert (cron["schedule"], cron["timezone"], cron["maxLimit"]) == ("30 2 * * *", "Europe/Rome", 3)
    cli("cron", "add", "pulse", "-q", "c", "--every", "90s", "--immediately")
    assert [each["name"] for each in cli.json("cron", "list")] == ["nightly", "pulse"]
    assert cli.json("cron", "list", "--queue", "other") == []
    runs = cli.json("cron", "next", "nightly", "--count", "5")
    assert len(runs) == 3
    assert all("02:30:00" in run["local"] for run in runs)
    assert runs[0]["at"] == cli.json("cron", "get", "nightly")["nextRun"]
    assert len(cli.json("cron", "next", "pulse")) == 10
    (job,) = cli.json("queue", "jobs", "c")
    assert job["name"] == "default"
    cli("cron", "delete", "pulse", "--yes")
    cli("cron", "get", "pulse", status=exits.NOT_FOUND)
    cli("cron", "delete", "pulse", "--yes", status=exits.NOT_FOUND)
    refused = cli("cron", "add", "odd", "-q", "c", "-s", "99 * * * *", status=exits.USAGE)
    assert "99" in refused.err


def test_next_runs_need_no_server(cli: Cli) -> None:
    arguments = ["cron", "next", "--schedule", "0 12 * * *", "--count", "2", "--port", "1"]
    first, second = (line.split("\t") for line in cli(*arguments).out.splitlines())
    assert int(second[0]) - int(first[0]) == 86_400_000
    assert first[1].endswith("12:00:00 UTC")


def test_limits_and_stalls(cli: Cli) -> None:
    cli("rate-limit", "get", "l", status=exits.NOT_FOUND)
    cli("rate-limit", "set", "l", "100", "--per", "1m")
    found = cli.json("rate-limit", "get", "l")
    assert (found["max"], found["duration"]) == (100, 60_000)
    cli("rate-limit", "clear", "l")
    cli("rate-limit", "get", "l", status=exits.NOT_FOUND)
    cli("concurrency", "set", "l", "2")
    assert cli("concurrency", "get", "l").out == "limit\t2\nmaxed\tfalse\n"
    cli("concurrency", "clear", "l")
    cli("concurrency", "get", "l", status=exits.NOT_FOUND)
    stalls = cli.json("stall", "config", "l", "--stall-interval", "2m", "--off")
    assert (stalls["enabled"], stalls["stallInterval"], stalls["maxStalls"]) == (False, 120_000, 3)


def test_groups(cli: Cli) -> None:
    cli("push", "g", "1", "--group", "acme")
    cli("group", "pause", "g", "acme")
    cli("group", "concurrency", "g", "acme", "3")
    cli("group", "rate-limit", "g", "acme", "10", "--per", "1m")
    found = cli.json("group", "get", "g", "acme")
    assert (found["queued"], found["active"], found["paused"], found["concurrency"]) == (1, 0, True, 3)
    assert found["rateLimit"] == {"max": 10, "duration": 60_000}
    assert cli("call", "GetGroupsJobsCount", "queue=g").value == "1"
    cli("group", "resume", "g", "acme")
    cli("group", "concurrency", "g", "acme", "--clear")
    cli("group", "rate-limit", "g", "acme", "--clear")
    cli("group", "hold", "g", "acme", "1m")
    cli("pull", "g", status=exits.NOT_FOUND)


def test_webhooks(cli: Cli) -> None:
    hook = cli(
        "webhook", "add", "https://example.com/x", "-e", "job.failed", "-q", "h", "--secret", "-", stdin="s\n"
    )
    hook_id = hook.value
    cli("webhook", "disable", hook_id)
    (found,) = cli.json("webhook", "list", "--queue", "h")
    assert (found["id"], found["enabled"], found["events"]) == (hook_id, False, ["job.failed"])
    cli("webhook", "enable", hook_id)
    cli("webhook", "remove", hook_id, "--yes")
    cli("webhook", "remove", hook_id, "--yes", status=exits.NOT_FOUND)
    cli("webhook", "enable", hook_id, status=exits.NOT_FOUND)
    inside = cli("webhook", "add", "http://127.0.0.1/x", "-e", "job.failed", status=exits.FAILED)
    assert "Traceback" not in inside.err


def test_the_server_as_a_whole(cli: Cli) -> None:
    fill(cli, "whole", 2)
    assert cli.json("stats")["waiting"] >= 2
    assert cli.json("metrics")["totalPushed"] >= 2
    assert "# TYPE bunqueue_jobs_waiting gauge" in cli("metrics").out
    assert float(cli("ping").value) > 0
    health = cli.json("health")
    assert (health["status"], health["address"]) == ("ok", cli.url.removeprefix("bunqueue://"))
    found = {row["check"]: row for row in cli.json("doctor")}
    assert found["storage"]["status"] == "ok"
    assert found["queues without workers"]["status"] == "warning"
    assert cli.json("worker", "list") == []


def test_top_as_json(cli: Cli) -> None:
    fill(cli, "top", 5)
    line = cli("top", "--json", "--count", "1", "--interval", "100").json
    (queue,) = [each for each in line["queues"] if each["name"] == "top"]
    assert (queue["waiting"], line["jobs"]["waiting"] >= 5) == (5, True)
    assert set(line["rates"]) == set(RATES)
    assert [each["name"] for each in line["processes"]] == ["router", "shard-0", "shard-1"]
    assert queue["oldest"] > 0


def test_tokens_and_tls_and_nobody_there(make_server: StartServer) -> None:
    server = make_server("--auth-token", "right")
    server.start()
    cli = Cli(server)
    assert "--token, or the variable BUNQUEUE_TOKEN" in cli("stats", status=exits.NOT_ALLOWED).err
    cli("stats", "--token", "wrong", status=exits.NOT_ALLOWED)
    cli("stats", "-t", "right")
    by_variable = {"BUNQUEUE_TOKEN": "right"}
    assert cli.program("stats", "--port", str(server.port), env=by_variable).status == 0
    assert cli("stats", "--tls", "-t", "right", status=exits.NO_CONNECTION).err.count("\n") == 1
    assert cli("ping", "--host", "nowhere.invalid", status=exits.NO_CONNECTION).err.count("\n") == 1
    server.stop()
    assert cli("queue", "drain", "q", "--yes", status=exits.NO_CONNECTION).err.count("\n") == 1
    began = time.monotonic()
    lost = cli("stats", status=exits.NO_CONNECTION)
    assert "Start one with: bunqueue start" in lost.err
    assert lost.err.count("\n") == 1
    assert time.monotonic() - began < 25  # not the half minute that an answer may take


async def test_workers_are_listed_while_they_run(cli: Cli, shared_server: Server) -> None:
    async with Worker("wl", lambda job: None, port=shared_server.port, name="mill", concurrency=3):
        rows: list[dict[str, object]] = []

        async def is_listed() -> bool:  # a worker makes itself known from a thread of its own
            rows[:] = await asyncio.to_thread(cli.json, "worker", "list", "--queue", "wl")
            return bool(rows)

        await eventually(is_listed, "the worker is listed")
        (row,) = rows
        assert (row["name"], row["concurrency"], row["status"]) == ("mill", 3, "active")
        assert await asyncio.to_thread(cli.json, "worker", "list", "--queue", "other") == []


async def test_a_name_that_nobody_runs_is_told(cli: Cli, shared_server: Server) -> None:
    job = cli("push", "ghosts", "1", "--name", "ghost", "--delay", "1h").value
    cli("push", "ghosts", "1", "--name", "mill", "--delay", "1h")
    async with Worker("ghosts", {"mill": print, 'say "when"': print}, port=shared_server.port):

        async def is_told() -> bool:  # a worker makes itself known from a thread of its own
            return "nobody runs 'ghost'" in (await asyncio.to_thread(cli, "job", "why", job)).out

        await eventually(is_told, "it is told")
        rows = await asyncio.to_thread(cli.json, "doctor")
    (found,) = [row for row in rows if row["check"] == "unknown names"]
    assert (found["status"], "'ghost' in ghosts" in found["finding"]) == ("warning", True)
    assert "mill" not in found["finding"]


def test_dead_letters_are_listed_newest_first_and_to_the_end(
    cli: Cli, shared_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bunqueue.cli.commands.dlq.PAGE", 3)
    with Queue("dead-pages", port=shared_server.port) as queue:
        queue.obliterate()
        ids = [queue.add("n", number).id for number in range(8)]
        for each in ids:
            queue.handle(each).discard()

        def listed(*flags: str) -> list[str]:
            return [letter["job"]["id"] for letter in cli.json("dlq", "list", "dead-pages", *flags)]

        assert listed() == ids[::-1]
        assert listed("--oldest") == ids
        assert listed("--limit", "4") == ids[:3:-1]
        assert listed("--limit", "4", "--offset", "4") == ids[3::-1]
        assert listed("--limit", "5", "--offset", "6") == ids[1::-1]
        assert listed("--oldest", "--limit", "2", "--offset", "5") == ids[5:7]
        assert listed("--offset", "8") == []
        assert "4 more dead letters: --offset 4 goes on" in cli("dlq", "list", "dead-pages", "-n", "4").err
        newest = queue.dlq_entries(limit=2, offset=1, newest_first=True)
        assert [entry.job.id for entry in newest] == [ids[6], ids[5]]
