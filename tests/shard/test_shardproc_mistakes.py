"""A mistake in the code of a command, put there by the test: what becomes of the shard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver

from bunqueue.protocol.codec import decode_command
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS, ErrorReply

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
        mistake.setitem(driver.shard.engine.state.tables.handlers, COMMANDS["GetJob"].request, broken)
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
    monkeypatch.setitem(
        driver.shard.engine.state.tables.handlers, type(decode_command(encoded(PUSH))), broken
    )
    with pytest.raises(RecursionError):
        driver.ask(**PUSH)
