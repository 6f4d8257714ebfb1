"""A mistake in the code of a command, put there by the test: what becomes of the shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver
from engine.shard_world import QUEUES, World

from bunqueue.protocol.codec import decode_command
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS, ErrorReply
from bunqueue.server.links import peers as messages
from shardproc.engine.registry import ANSWERS, HANDLERS
from shardproc.engine.slices import sliced

LAST = f"f:{QUEUES[-1]}"
QUESTIONS: dict[type[messages.Message], dict[str, Any]] = {
    messages.Members: {"cmd": "GetFlow", "flow": "f"},
    messages.Flows: {"cmd": "ListFlows"},
    messages.Where: {"cmd": "GetChildrenValues", "id": LAST},
    messages.Values: {"cmd": "GetChildrenValues", "id": LAST},
}
PUSH = {"cmd": "PUSH", "queue": "q", "data": 1}


def encoded(command: dict[str, Any]) -> bytes:
    return bytes(msgpack.packb(command))


def broken(*_: Any) -> None:
    raise RecursionError("too deep")


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(str(tmp_path / "jobs.db"))
    yield driver
    driver.close()


def test_a_command_that_only_reads_does_not_end_the_shard(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = driver.ask(**PUSH)["id"]
    with monkeypatch.context() as mistake:
        mistake.setitem(HANDLERS, COMMANDS["GetJob"].request, broken)
        for _ in range(3):
            driver.shard.execute(
                driver.shard.client(1, 3), encoded({"cmd": "GetJob", "id": job_id}), driver.now
            )
            ((_, reply),) = driver.shard.commit()
            assert isinstance(reply, ErrorReply)
            assert (reply.code, reply.error) == (
                Code.INTERNAL_ERROR,
                "GetJob failed; the log of shard 0 says why",
            )
    assert driver.ask(cmd="GetJob", id=job_id)["job"]["id"] == job_id
    assert caplog.messages == ["a command that only reads has failed"]


def test_one_that_changes_something_ends_it(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HANDLERS, type(decode_command(encoded(PUSH))), broken)
    with pytest.raises(RecursionError):
        driver.ask(**PUSH)


def failing_slice(*_: Any) -> Iterator[None]:
    yield
    raise RecursionError("too deep")


def test_nor_does_one_that_works_in_slices(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first slice goes well."""
    mistaken = sliced(failing_slice)
    with monkeypatch.context() as mistake:
        mistake.setitem(HANDLERS, COMMANDS["FindJobs"].request, mistaken)
        found = driver.ask(cmd="FindJobs", queue="q")
        assert (found["ok"], found["error"]) == (False, "FindJobs failed; the log of shard 0 says why")
    assert driver.ask(cmd="FindJobs", queue="q")["ok"]


def test_nor_does_a_statement_that_is_wrong(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> Any:
        return driver.shard.store.database.connection.execute("select too from much")

    monkeypatch.setitem(HANDLERS, COMMANDS["GetJob"].request, wrong)
    assert driver.ask(cmd="GetJob", id="1")["error"] == "GetJob failed; the log of shard 0 says why"


def test_one_that_changes_something_in_slices_ends_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistaken = sliced(failing_slice)
    monkeypatch.setitem(HANDLERS, COMMANDS["Drain"].request, mistaken)
    with pytest.raises(RecursionError):
        driver.ask(cmd="Drain", queue="q")


def test_what_a_read_writes_first_is_not_only_its_own(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that cannot be stored ends the shard, also if a command that reads stumbles over it: else the
    push would be acknowledged."""
    job_id = driver.push(data=1)
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="ACK", id=job_id)
    driver.execute(1, encoded(PUSH))
    monkeypatch.setattr(driver.shard.store._journal, "write", broken)
    with pytest.raises(RecursionError):
        driver.shard.execute(driver.shard.client(1, 3), encoded({"cmd": "GetJob", "id": job_id}), driver.now)


def test_jobs_that_cannot_be_summed_up_for_searches_do_not_end_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver.push(data=1)
    search = driver.shard.store._search
    monkeypatch.setattr(search, "_left", [0])
    monkeypatch.setattr(search, "_sum_up", broken)
    driver.shard.tick()
    driver.commit()
    assert caplog.messages == ["jobs were not summed up for searches"]
    assert len(driver.ask(cmd="FindJobs", queue="q")["jobs"]) == 1


def test_nor_does_a_question_of_another_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a client who may only read makes shards ask each other."""
    with closing(World(tmp_path, 2, 11, crash_rate=0.0)) as world:
        nodes = [
            {"name": queue, "queue": queue, "after": QUEUES[:number], "input": {"data": {}}}
            for number, queue in enumerate(QUEUES)
        ]
        added = world.ask(cmd="AddFlow", flow="f", nodes=nodes)
        assert added is not None
        assert added["ok"], added
        world.settle()
        for_limited_identities = {messages.Queues}  # tests/server/test_scopes.py
        assert {*QUESTIONS} | for_limited_identities == {*messages.READING}
        for question, command in QUESTIONS.items():
            with monkeypatch.context() as mistake:
                mistake.setitem(ANSWERS, question, broken)
                reply = world.ask(**command)
                assert reply is not None
                assert reply["error"].startswith(f"{question.__name__} failed; the log of shard"), reply
            reply = world.ask(**command)
            assert reply is not None
            assert reply["ok"], reply
    assert set(caplog.messages) == {"a question that only reads has failed"}


def test_one_that_changes_something_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what was changed by then."""
    with closing(World(tmp_path, 2, 11, crash_rate=0.0)) as world:
        monkeypatch.setitem(ANSWERS, messages.Prepare, broken)
        nodes = [{"name": queue, "queue": queue, "after": [], "input": {"data": {}}} for queue in QUEUES]
        with pytest.raises(RecursionError):
            world.ask(cmd="AddFlow", flow="f", nodes=nodes)
