"""Dead letters that are dropped, as users meet them: on every surface, and after a restart of the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from support.cli import Cli
from support.server import Server, dispose, quiet_port

from bunqueue import Admin, JobFailed, JobNotFound, Queue
from bunqueue.cli.framework import exits

GONE = r"dead letter of queue 'imports', and was dropped at .* UTC as there were more than 2 \(max_entries\)"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path / "data", "--dead-letters-max-count", "2", http_port=quiet_port())
    try:
        found.start()
        yield found
    finally:
        dispose(found)


def die(queue: Queue, count: int) -> list[str]:
    handles = [queue.add("row", {"number": number}, max_attempts=1) for number in range(count)]
    for number, handle in enumerate(handles):
        assert queue.pull() is not None
        handle.fail(f"row {number} is wrong")
    return [handle.id for handle in handles]


def test_every_surface_tells_of_it(server: Server) -> None:
    with Queue("imports", host=server.host, port=server.port) as queue:
        ids = die(queue, 5)
        assert queue.dlq_config().max_entries == 2, "as the server says"
    server.stop()
    server.start()
    _sdk(server, ids)
    _http(server, ids)
    _command_line(server, ids)


def _sdk(server: Server, ids: list[str]) -> None:
    with Queue("imports", host=server.host, port=server.port) as queue:
        dropped = queue.dropped_dlq()
        assert (dropped.count, dropped.too_many, dropped.too_old) == (3, 3, 0)
        assert dropped == queue.dlq_stats().dropped
        with pytest.raises(JobNotFound, match=f"{GONE}; its error: row 0 is wrong$"):
            queue.handle(ids[0]).job()
        with pytest.raises(JobFailed, match="row 1 is wrong"):
            queue.handle(ids[1]).result(timeout=60_000)
    with Admin(host=server.host, port=server.port) as admin:
        told = admin.read_events(types=["dropped"]).events
        assert [(event["jobId"], event["error"], event["reason"]) for event in told] == [
            (job_id, f"row {number} is wrong", "max_entries") for number, job_id in enumerate(ids[:3])
        ]


def _http(server: Server, ids: list[str]) -> None:
    with httpx2.Client(base_url=server.url, trust_env=False, timeout=30) as web:
        found = web.get(f"/jobs/{ids[0]}")
        assert (found.status_code, found.json()["code"]) == (404, "JOB_NOT_FOUND")
        assert re.search(GONE, found.json()["error"])
        assert web.get("/queues/imports/dlq").json()["dropped"]["tooMany"] == 3
        assert web.get("/queues/imports/dlq/config").json()["dropped"]["tooMany"] == 3
        text = web.get("/prometheus").text
        labels = '{queue="imports",reason="max_entries"}'
        assert f"bunqueue_queue_dead_letters_dropped_total{labels} 3.0" in text
        assert 'bunqueue_dead_letters_dropped_total{reason="max_age"} 0.0' in text, "since the start"


def _command_line(server: Server, ids: list[str]) -> None:
    cli = Cli(server)
    said = cli("job", "get", ids[0], status=exits.NOT_FOUND).err
    assert re.search(GONE, said)
    assert "never added" not in said
    assert re.search(GONE, cli("job", "state", ids[0], status=exits.NOT_FOUND).err)
    assert "never added" in cli("job", "get", "no-such-job", status=exits.NOT_FOUND).err
    (finding,) = (row for row in cli.json("doctor") if row["check"] == "dropped dead letters")
    assert finding["status"] == "warning"
    assert "imports (3)" in finding["finding"]
    listed = cli("dlq", "list", "imports")
    assert len(listed.out.splitlines()) == 2
    assert "3 more dead letters of imports were dropped" in listed.err
    assert cli.json("dlq", "stats", "imports")["dropped"]["tooMany"] == 3
    assert cli.json("dlq", "retry", "imports") == {"queue": "imports", "count": 2, "dropped": 3}
    for given, kept in (("0", 0), ("7", 7), ("server", 2)):
        assert cli.json("dlq", "config", "imports", "--max-entries", given)["maxEntries"] == kept
    cli("dlq", "config", "imports", "--max-entries", "many", status=exits.USAGE)
    cli("dlq", "purge", "imports", "--yes")
    assert "dropped" not in cli("dlq", "list", "imports").err


def test_the_log_has_few_lines(server: Server) -> None:
    with Queue("imports", host=server.host, port=server.port) as queue:
        die(queue, 30)
    server.stop()
    lines = [line for line in server.log().splitlines() if "dead letters were dropped" in line]
    told = [int(number) for number in re.findall(r"queue=imports too_many=(\d+)", "\n".join(lines))]
    assert sum(told) == 28
    assert len(lines) <= 2, "the first, and what was not told when the server ended"
