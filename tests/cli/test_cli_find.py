"""``bunqueue job find``."""

from __future__ import annotations

import pytest
from support.cli import Cli
from support.server import Server

from bunqueue.cli.framework import exits


@pytest.fixture(scope="module")
def cli(shared_server: Server) -> Cli:
    return Cli(shared_server)


def test_jobs_are_found_and_there_may_be_more(cli: Cli) -> None:
    ids = [cli("push", "f", f'{{"n": {n}}}', "--name", f"n{n % 2}", "--tag", "cli").value for n in range(5)]
    found = cli.json("job", "find", "--tag", "cli", "--queue", "f")
    assert [job["id"] for job in found] == ids[::-1]
    assert [
        job["id"] for job in cli.json("job", "find", "data.n >= 3 and state = waiting", "--tag", "cli")
    ] == [
        ids[4],
        ids[3],
    ]
    first = cli("job", "find", "--tag", "cli", "--name", "n0", "-n", "2", "--oldest-first")
    assert [line.split("\t")[:3] for line in first.out.splitlines()] == [
        [ids[0], "f", "n0"],
        [ids[2], "f", "n0"],
    ]
    assert first.err.startswith("there may be more: --cursor ")
    cursor = first.err.split()[-1]
    rest = cli("job", "find", "--tag", "cli", "--name", "n0", "-n", "2", "--oldest-first", "--cursor", cursor)
    assert [line.split("\t")[0] for line in rest.out.splitlines()] == [ids[4]]
    assert cli("job", "find", "--tag", "cli", "--data", '{"n": 3}', "--count").value == "1"
    assert cli("job", "find", "--tag", "cli", "--created-before", "1h", "--count").value == "0"
    assert cli("job", "find", "--tag", "cli", "--created-after", "1h", "--count").value == "5"
    assert cli.json("job", "find", "--state", "failed", "--explain") == {"by": ["state"], "jobs": 0}
    assert cli("job", "find", "--name", "absent").out == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--state", "odd"], "--state: 'odd' is unknown; there are waiting"),
        (["colour = red"], "WHERE: colour is no field"),
        (["--created-after", "soon"], "'soon' is no span of time"),
        (["--limit", "0"], "--limit: 0 is not allowed"),
        (["--data", "{"], "is no JSON"),
        (["--data", '{"a": []}'], "--data: {'a': []} is not allowed"),
        (["--queue", "no name"], "1 to 256 of the characters"),
        (["--cursor", "x"], "cursor was not given by a search"),
    ],
)
def test_mistakes_are_explained(cli: Cli, arguments: list[str], words: str) -> None:
    done = cli("job", "find", *arguments, status=None)
    assert done.status in (exits.USAGE, exits.FAILED)
    assert words in done.err
