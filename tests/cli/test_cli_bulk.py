"""``bunqueue bulk``."""

from __future__ import annotations

import pytest
from support.cli import Cli
from support.server import Server

from bunqueue.cli.framework import exits


@pytest.fixture(scope="module")
def cli(shared_server: Server) -> Cli:
    return Cli(shared_server)


def test_what_is_found_is_changed(cli: Cli) -> None:
    for n in range(4):
        cli("push", "b1", f'{{"n": {n}}}', "--tag", "bulk")
    dry = cli("bulk", "priority", "-5", "--tag", "bulk", "data.n < 3", "--dry-run")
    assert (dry.value, dry.err) == ("3", "")
    done = cli.json("bulk", "priority", "-5", "--tag", "bulk", "data.n < 3", "-n", "2", "--yes")
    assert (done["changed"], done["more"], len(done["examples"]), done["dryRun"]) == (2, True, 2, False)
    assert cli("job", "find", "--tag", "bulk", "priority = -5", "--count").value == "2"
    moved = cli("bulk", "move", "b2", "--queue", "b1", "data.n >= 2", "--yes")
    assert (moved.value, moved.err) == ("2", "")
    there = cli("bulk", "move", "b2", "--queue", "b2", "--yes")
    assert (there.value, there.err) == ("0", "left alone: there-already 2\n")
    assert len(cli.json("job", "find", "--queue", "b2")) == 2
    cancelled = cli("bulk", "cancel", "--queue", "b2", "--reason", "why", "--grace", "0s", "--yes")
    assert cancelled.value == "2"
    for _ in range(2):
        job = cli("pull", "b1").out.split("\t")[0]
        cli("fail", job, "--error", "no", "--unrecoverable")
    assert cli("bulk", "retry", "--tag", "bulk", "--error", "NO", "--yes").value == "2"
    removed = cli("bulk", "remove", "--tag", "bulk", "--yes")
    assert removed.value == "2"
    assert cli("bulk", "remove", "--tag", "bulk", "--yes").value == "0"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["retry", "--queue", "b3"], "1 job will be retried. Go on? Nobody is there to be asked: give --yes"),
        (["remove", "--yes"], "at least one condition"),
        (["move", "no name", "--queue", "b3", "--yes"], "Queue name contains invalid characters"),
        (["priority", "soon", "--queue", "b3"], "PRIORITY"),
        (["cancel", "--queue", "b3", "--limit", "0", "--yes"], "--limit: 0 is not allowed"),
        (["cancel", "colour = red", "--yes"], "WHERE: colour is no field"),
    ],
)
def test_mistakes_are_explained_and_change_nothing(cli: Cli, arguments: list[str], words: str) -> None:
    cli("push", "b3", "1")
    job = cli("pull", "b3").out.split("\t")[0]
    cli("fail", job, "--error", "no", "--unrecoverable")
    before = cli.json("queue", "counts", "b3")
    done = cli("bulk", *arguments, status=None)
    assert done.status in (exits.USAGE, exits.FAILED)
    assert words in done.err
    assert cli.json("queue", "counts", "b3") == before
    cli("bulk", "remove", "--queue", "b3", "--yes")
