"""The pure parts of the gateway: the table of resources, values in queries, ids of events."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bunqueue.gateway.events.entries import format_position, parse_position
from bunqueue.gateway.http.resources import DEFAULTS, OFFERED, RESOURCES
from bunqueue.gateway.http.segments import decoded, encoded
from bunqueue.gateway.http.transcode import NotJson, read_json, write_json
from bunqueue.protocol.commands import COMMANDS
from bunqueue.protocol.from_text import from_texts, wire_fields


def test_every_command_has_a_resource() -> None:
    assert {each.command for each in RESOURCES} == OFFERED.keys() - {"Prometheus"}  # which has no JSON
    places = [(each.method, each.path) for each in RESOURCES]
    assert len(set(places)) == len(places)


def test_no_path_hides_another() -> None:
    """The first that fits is taken: /groups/count must come before /groups/{groupId}."""
    for each in RESOURCES:
        fits = [
            other
            for other in RESOURCES
            if other.method == each.method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", other.path), each.path)
        ]
        assert fits[0] is each


def test_names_in_paths_are_fields() -> None:
    for each in RESOURCES:
        assert set(each.names) <= wire_fields(each.spec.request).keys(), each


def test_defaults_are_fields() -> None:
    for command, fields in DEFAULTS.items():
        assert fields.keys() <= wire_fields(COMMANDS[command].request).keys()


def test_what_changes_something_is_no_get() -> None:
    """But for the pull, which has been one in the reference from the beginning."""
    unsafe = [each for each in RESOURCES if each.method == "GET" and each.spec.writes]
    assert [(each.path, each.command) for each in unsafe] == [("/queues/{queue}/jobs", "PULL")]


@pytest.mark.parametrize(
    ("command", "name", "texts", "value"),
    [
        ("GetJobs", "limit", ["5"], 5),
        ("GetJobs", "limit", ["five"], "five"),
        ("GetJobs", "asc", ["false"], False),
        ("GetJobs", "state", ["waiting"], "waiting"),
        ("GetJobs", "state", ["waiting", "active"], ["waiting", "active"]),
        ("GetJobs", "queue", ["5"], "5"),
        ("Dlq", "filter", ['{"reason": "stalled"}'], {"reason": "stalled"}),
        ("PULL", "timeout", ["2.5"], 2.5),
        ("PULL", "owner", ["true"], "true"),
        ("GetEvents", "after", ["3", "4"], [3, 4]),
        ("GetEvents", "after", ["[3, 4]"], [3, 4]),
        ("GetEvents", "types", ["pushed"], ["pushed"]),
        ("GetJobs", "nonsense", ["x"], "x"),
    ],
)
def test_values_in_queries(command: str, name: str, texts: list[str], value: Any) -> None:
    assert from_texts(COMMANDS[command].request, name, texts) == value


def test_ids_of_events() -> None:
    assert parse_position(format_position([3, -1, 0]), 3) == [3, -1, 0]
    assert parse_position("3-4", 3) == [-1, -1, -1]  # of a time with other shards
    assert parse_position("3-x-y", 3) is None


def test_paths_keep_their_segments() -> None:
    assert encoded("/jobs/a%2Flogs/%71/a:b@c%20%C3%BC%25") == "/jobs/a%2Flogs/q/a:b@c%20%C3%BC%25"
    assert decoded({"id": "a%2Flogs", "name": "%2525"}) == {"id": "a/logs", "name": "%25"}


def test_json_of_what_json_cannot_say() -> None:
    assert read_json(write_json({1: b"a", None: [float("nan")], (1, "a"): 2})) == {
        "1": "YQ==",
        "null": [None],
        '[1,"a"]': 2,
    }


def test_times_are_integers_in_json_and_texts_stay() -> None:
    time = 1_795_859_342_826.0
    value = {
        "createdAt": time,
        "at": [time],
        "rate": 12.0,
        "text": '":1795859342826.0,',
        '\\":1795859342826.0': "x",
    }
    text = write_json(value)
    assert text.startswith(b'{"createdAt":1795859342826,"at":[1795859342826.0],"rate":12.0,')
    assert read_json(text) == value


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (rb'"\ud83d\ude00"', None),
        (rb'"\ud83d"', r"\ud83d, byte 1)"),
        (rb'"\ud83d\ude00 \ude00"', r"\ude00, byte 14)"),
        (rb'"\\ud83d', "truncated"),
        (rb'{"a": 1,}', "trailing"),
        ('"\ud83d"'.encode("utf-8", "surrogatepass"), "utf-8"),
        (b"[" * 100_000, ""),
    ],
    ids=["none", "first half", "second half", "an escaped backslash", "a comma", "bytes", "deep"],
)
def test_what_is_said_of_texts_that_are_no_json(source: bytes, said: str | None) -> None:
    if said is None:
        assert read_json(source) == "\N{GRINNING FACE}"
        return
    with pytest.raises(NotJson) as caught:
        read_json(source)
    assert said in str(caught.value)
