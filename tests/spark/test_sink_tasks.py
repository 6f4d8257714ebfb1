"""A task of a write against a real server, without Spark: what is added, what is not, what is told."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.server import Server, StartServer, quiet_port
from support.waiting import wait_until
from support.wire import Wire

from bunqueue import CommandFailed, ConnectTimeout, Queue
from bunqueue.spark.sink.settings import SinkSettings, sink_settings
from bunqueue.spark.sink.summary import TaskSummary
from bunqueue.spark.sink.task import BadRows, write_rows

Rows = list[dict[str, Any]]


def settings_for(server: Server, queue: str, **options: object) -> SinkSettings:
    given = {"port": server.port, "queue": queue, "name": "n", **options}
    return sink_settings({name: str(value) for name, value in given.items()})


def numbers(count: int) -> Rows:
    return [{"data": {"number": number}} for number in range(count)]


def write(rows: Rows, settings: SinkSettings, write_id: str = "w", attempt: int = 0) -> TaskSummary:
    return write_rows(rows, list(rows[0]), settings, write_id, attempt=attempt)


def counts(summary: TaskSummary) -> tuple[int, int, int]:
    return summary.accepted, summary.duplicates, summary.rejected


def work_off(server: Server, queue: str, count: int) -> list[Any]:
    """Complete that many jobs; their data."""

    async def work() -> list[Any]:
        wire = await Wire.open(server.address)
        jobs: list[dict[str, Any]] = []
        while len(jobs) < count:
            some = (await wire.ok("PULLB", queue=queue, count=min(1000, count - len(jobs))))["jobs"]
            assert some, f"{len(jobs)} of {count} jobs"
            await wire.ok("ACKB", ids=[job["id"] for job in some])
            jobs += some
        await wire.close()
        return [job["data"] for job in jobs]

    return asyncio.run(work())


def waiting(server: Server, queue: str) -> list[Any]:
    """The data of all jobs that wait, in the order in which they are taken."""
    with Queue(queue, port=server.port) as client:
        return [job.data for job in client.iter_jobs(["waiting", "prioritized", "delayed"])]


def test_a_job_for_each_row(shared_server: Server) -> None:
    summary = write(numbers(2500), settings_for(shared_server, "each", inFlight=1))
    assert counts(summary) == (2500, 0, 0)
    assert waiting(shared_server, "each") == [row["data"] for row in numbers(2500)]


def test_rows_may_go_to_several_queues(shared_server: Server) -> None:
    rows = [{"queue": f"several-{number % 7}", "data": number} for number in range(1000)]
    summary = write(rows, settings_for(shared_server, "unused", batchSize=50))
    assert counts(summary) == (1000, 0, 0)
    for number in range(7):
        assert sorted(waiting(shared_server, f"several-{number}")) == list(range(number, 1000, 7))


def test_rows_of_many_queues_do_not_wait_for_ever(shared_server: Server) -> None:
    """More queues than may have full batches at a time."""
    rows = [{"queue": f"many-{number % 300}", "data": number} for number in range(900)]
    assert counts(write(rows, settings_for(shared_server, "unused", batchSize=10))) == (900, 0, 0)
    assert waiting(shared_server, "many-299") == [299, 599, 899]


@pytest.mark.parametrize("done", [0, 1, 999, 1700, 3000], ids=lambda done: f"{done} done")
def test_a_task_that_is_run_again_adds_what_is_missing(shared_server: Server, done: int) -> None:
    """Whatever workers have done meanwhile, and in whatever order the rows come now."""
    queue = f"again-{done}"
    settings = settings_for(shared_server, queue)
    assert write(numbers(3000), settings).accepted == 3000
    finished = work_off(shared_server, queue, done) if done else []

    summary = write(numbers(5000)[::-1], settings, attempt=1)
    assert counts(summary) == (2000, 3000, 0)
    assert summary.attempt == 1
    left = work_off(shared_server, queue, 5000 - done)
    assert sorted(job["number"] for job in finished + left) == list(range(5000))


def test_large_results_do_not_hide_that_jobs_have_ended(shared_server: Server) -> None:
    """The server tells fewer ends at once when results are large."""
    settings = settings_for(shared_server, "large-results")
    write(numbers(60), settings)

    async def work() -> None:
        wire = await Wire.open(shared_server.address)
        jobs = (await wire.ok("PULLB", queue="large-results", count=50))["jobs"]
        for job in jobs[::2]:
            await wire.ok("ACK", id=job["id"], result="x" * 1_000_000)
        await wire.close()

    asyncio.run(work())
    assert counts(write(numbers(61), settings)) == (1, 60, 0)


def test_equal_rows_are_one_job(shared_server: Server) -> None:
    rows: Rows = [{"data": {"same": True}}] * 1500 + [{"data": {"same": False}}]
    assert counts(write(rows, settings_for(shared_server, "equal"))) == (2, 1499, 0)


def test_another_write_of_the_same_rows_adds_them_again(shared_server: Server) -> None:
    settings = settings_for(shared_server, "writes")
    assert counts(write(numbers(10), settings, "monday")) == (10, 0, 0)
    assert counts(write(numbers(10), settings, "tuesday")) == (10, 0, 0)
    assert counts(write(numbers(10), settings, "monday")) == (0, 10, 0)


def test_ids_of_their_own_hold_over_writes(shared_server: Server) -> None:
    settings = settings_for(shared_server, "own-ids")
    rows: Rows = [{"job_id": f"order-{number}", "data": number} for number in range(100)]
    assert counts(write(rows, settings, "monday")) == (100, 0, 0)
    assert work_off(shared_server, "own-ids", 30) == list(range(30))
    more: Rows = [{"job_id": f"order-{number}", "data": -1} for number in range(110)]
    assert counts(write(more, settings, "tuesday")) == (10, 100, 0)
    with Queue("own-ids", port=shared_server.port) as queue:
        assert queue.handle("order-0").state() == "completed"
        assert queue.handle("order-50").job().data == 50


def test_bad_rows_are_left_out_and_told(shared_server: Server, tmp_path: Path) -> None:
    rows: Rows = [
        {"name": "n", "data": 1, "priority": 0, "depends_on": None},
        {"name": "n" * 257, "data": 2, "priority": 0, "depends_on": None},
        {"name": "n", "data": 3, "priority": 9_000_000, "depends_on": None},
        {"name": "n", "data": 4, "priority": 0, "depends_on": ["there is no such job"]},  # the server says so
        {"name": "n", "data": 5, "priority": 0, "depends_on": None},
    ]
    settings = settings_for(shared_server, "bad", badRows="skip", rejectsPath=tmp_path / "rejects")
    summary = write(rows, settings)
    assert counts(summary) == (2, 0, 3)
    assert sorted(waiting(shared_server, "bad")) == [1, 5]

    (file,) = (tmp_path / "rejects").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(bad.row, bad.reason) for bad in summary.examples] == [
        (line["row"], line["reason"]) for line in lines
    ]
    told = {json.loads(line["row"])["data"]: line["reason"] for line in lines}
    assert told[2].startswith("name: a job cannot be called 'nnn")
    assert told[3].startswith("priority")
    assert told[4] == "Dependency job not found: there is no such job"


def test_a_bad_row_ends_the_write_unless_told_otherwise(shared_server: Server, tmp_path: Path) -> None:
    rows = [*numbers(10), {"data": "x" * (11 << 20)}]
    with pytest.raises(BadRows) as wrong:
        write(rows, settings_for(shared_server, "strict"))
    assert "as JSON it may have" in str(wrong.value)
    assert "badRows=skip" in str(wrong.value)
    assert len(str(wrong.value)) < 2000


def test_so_does_one_that_the_server_refuses(shared_server: Server) -> None:
    rows = [{"data": number, "depends_on": ["nobody"] if number == 7 else None} for number in range(10)]
    with pytest.raises(BadRows, match="Dependency job not found: nobody; the row is"):
        write(rows, settings_for(shared_server, "strict-server"))


def test_of_many_bad_rows_a_summary_shows_some_and_the_file_all(
    shared_server: Server, tmp_path: Path
) -> None:
    rows: Rows = [{"data": number, "priority": 9_000_000} for number in range(2500)]
    settings = settings_for(shared_server, "many-bad", badRows="skip", rejectsPath=tmp_path)
    summary = write(rows, settings)
    assert summary.rejected == 2500
    assert len(summary.examples) == 20
    (file,) = tmp_path.iterdir()
    assert len(file.read_text().splitlines()) == 2500


def test_an_attempt_that_failed_leaves_no_file_behind(shared_server: Server, tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for number in range(1500):
            yield {"data": number, "priority": 9_000_000}
        raise RuntimeError("the task died")

    settings = settings_for(shared_server, "died", badRows="skip", rejectsPath=tmp_path)
    with pytest.raises(RuntimeError, match="the task died"):
        write_rows(rows(), ["data", "priority"], settings, "w")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there() -> None:
    settings = sink_settings({"port": str(quiet_port()), "queue": "q", "name": "n", "timeout": "300"})
    with pytest.raises(ConnectTimeout, match="is the server running there"):
        write(numbers(1), settings)


def test_a_refusal_that_is_no_row_s_fault_is_no_bad_row(make_server: StartServer) -> None:
    server = make_server("--auth-token", "s3cret")
    server.start()
    with pytest.raises(Exception, match="token") as refused:
        write(numbers(5), settings_for(server, "q", badRows="skip"))
    assert not isinstance(refused.value, BadRows | CommandFailed)
    assert counts(write(numbers(5), settings_for(server, "q", token="s3cret"))) == (5, 0, 0)


def test_rows_wait_for_the_server(make_server: StartServer) -> None:
    """While it is busy no more rows are taken than two batches under way and a third one hold."""
    server = make_server(shards=1)
    server.start()
    settings = settings_for(server, "busy", batchSize=10, inFlight=2)
    taken = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for row in numbers(1000):
            taken += 1
            yield row

    result: list[TaskSummary] = []
    thread = threading.Thread(target=lambda: result.append(write_rows(rows(), ["data"], settings, "w")))
    shard = server.shard(0)
    shard.kill(signal.SIGSTOP)
    try:
        thread.start()
        wait_until(lambda: taken == 30, "two batches are under way and the third is full")
        thread.join(0.2)  # time in which more might be taken
        assert taken == 30
    finally:
        shard.kill(signal.SIGCONT)
    thread.join(30)
    assert counts(result[0]) == (1000, 0, 0)


def test_a_server_that_is_killed_and_comes_back(make_server: StartServer) -> None:
    """The write goes on; no job is lost, and none is there twice."""
    server = make_server(port=quiet_port())
    server.start()
    settings = settings_for(server, "killed", batchSize=100)
    added = threading.Event()

    def rows() -> Iterator[dict[str, Any]]:
        for row in numbers(20_000):
            if row["data"]["number"] == 5000:
                added.set()
            yield row

    result: list[TaskSummary] = []
    thread = threading.Thread(target=lambda: result.append(write_rows(rows(), ["data"], settings, "w")))
    thread.start()
    assert added.wait(30)
    server.kill_all()
    server.restart()
    thread.join(60)
    (summary,) = result
    assert summary.accepted + summary.duplicates == 20_000
    assert sorted(job["number"] for job in work_off(server, "killed", 20_000)) == list(range(20_000))
    with Queue("killed", port=server.port) as queue:
        assert queue.counts().waiting == 0
