"""What a shard answers other shards about a finished job that it cannot read: its file is damaged there."""

from __future__ import annotations

import pytest
from engine.shard_driver import Driver

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.server.links import peers as messages
from shardproc.engine.peers import possession, roll_call


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver(":memory:")

    def unreadable(job_id: str) -> None:
        raise CommandError("it is in a damaged part of the file", Code.STORAGE_DAMAGED)

    monkeypatch.setattr(driver.shard.engine.state.archive, "find", unreadable)
    return driver


def test_it_has_ended_and_its_flow_is_left_alone(driver: Driver) -> None:
    state = driver.shard.engine.state
    answer = possession.have(state, 1, messages.Have(["lost-in-the-file"]))
    assert [holding.word for holding in answer.jobs] == [messages.ENDED]


def test_a_roll_call_does_not_end_at_it(driver: Driver) -> None:
    state = driver.shard.engine.state
    roll_call._take(state, 1, [("lost-in-the-file", False), ("alive", True)])
    assert state.directory.get("alive") == 1
    assert state.directory.get("lost-in-the-file") is None
