"""``bunqueue call``: any command of the protocol, by its name."""

from __future__ import annotations

import json

import pytest
from support.cli import Cli
from support.server import Server

from bunqueue.cli.framework import exits
from bunqueue.cli.framework.completing import commands


@pytest.fixture(scope="module")
def cli(shared_server: Server) -> Cli:
    return Cli(shared_server)


def test_a_reply_is_printed(cli: Cli) -> None:
    assert cli.json("call", "SetGroupWeight", "queue=c-groups", "groupId=acme", "weight=3") == {}
    assert cli("call", "GetGroupWeight", "queue=c-groups", "groupId=acme").value == "3"
    assert cli.json("call", "GetGroupWeight", "queue=c-groups", "groupId=acme") == {"data": {"weight": 3}}
    assert cli("call", "Pause", "queue=c-groups").value == ""
    record = dict(line.split("\t") for line in cli("call", "Ping").out.splitlines())
    assert record["pong"] == "true"
    queues = cli.json("call", "ListQueues", "details=true")["queues"]
    assert [each["name"] for each in queues if each["name"] == "c-groups"] == ["c-groups"]
    lines = cli("call", "ListQueues", "details=true").out.splitlines()
    assert any(line.split("\t")[0] == "c-groups" for line in lines)


def test_values_are_json_or_texts(cli: Cli) -> None:
    data = {"to": "ada@example.com", "copies": [1, 2]}
    fields = [f"data={json.dumps(data)}", "name=5", "priority=7", "dedup.ttl=60000", "uniqueKey=k"]
    refused = cli("call", "PUSH", "queue=c-values", *fields, "tags=[1]", "--json", status=exits.USAGE)
    assert json.loads(refused.err)["field"].startswith("tags")
    job_id = cli("call", "PUSH", "queue=c-values", *fields, "tags=a", "tags=b").value
    job = cli.json("call", "GetJob", f"id={job_id}")["job"]
    assert (job["data"], job["name"], job["priority"], job["tags"]) == (data, "5", 7, ["a", "b"])
    again = cli.json("call", "PUSH", "queue=c-values", "uniqueKey=k", 'dedup={"ttl": 60000}')
    assert again == {"id": job_id, "existing": True}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (["getgroupweigth"], "did you mean GetGroupWeight"),
        (["Nonsense-of-mine"], "PROTOCOL.md has all of them"),
        (["Hello", "protocolVersion=2"], "there is no command 'Hello'"),
        (["GetDeliveries"], "there is no command 'GetDeliveries'"),
        (["Count", "que=emails"], "Count: que is unknown; did you mean queue?"),
        (["PUSH", "queue=q", "dedup.extnd=5"], "dedup.extnd is unknown; did you mean extend?"),
        (["PUSH", "queue=q", "dedup=5", "dedup.ttl=5"], "dedup is '5' already"),
        (["Count"], "queue"),
        (["Count", "emails"], "give FIELD=VALUE"),
    ],
)
def test_mistakes_are_named(cli: Cli, line: list[str], text: str) -> None:
    """Nothing is sent."""
    assert text in cli("call", *line, status=exits.USAGE).err


def test_a_refusal_says_what_is_wrong(cli: Cli) -> None:
    line = ["call", "SetGroupWeight", "queue=q", "groupId=acme", "weight=2000", "--json"]
    refusal = json.loads(cli(*line, status=exits.USAGE).err)
    assert (refusal["field"], refusal["value"], refusal["bound"]) == ("weight", 2000, 1000)
    refusal = json.loads(cli("call", "PUSH", "queue=q", "prio=1", "--json", status=exits.USAGE).err)
    assert (refusal["field"], refusal["value"]) == ("prio", "1")
    missing = cli("call", "RemoveJob", "id=nobody", "--json", status=None)
    assert missing.status in (exits.DONE, exits.NOT_FOUND)
    refusal = json.loads(cli("call", "GetJob", "id=nobody", "--json", status=exits.NOT_FOUND).err)
    assert refusal["serverCode"] == "JOB_NOT_FOUND"


def test_names_are_completed() -> None:
    assert commands("GetGroupW") == ["GetGroupWeight"]
    assert "Hello" not in commands("")
