"""Power cuts under all that concerns several shards: what was promised is there, and the shards agree."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engine.power_world import PowerLife, PowerWorld
from engine.shard_world import QUEUES, state_of
from support.budget import budget

from bunqueue.model.ids import slot_of_id, slot_of_queue
from bunqueue.server.links import peers as messages
from shardproc.engine.peers import roll_call
from shardproc.storage.database import Database

Patch = pytest.MonkeyPatch
CUTS = ("any", "none", "any")


def live(tmp_path: Path, monkeypatch: Patch, shards: int, seed: int, **options: bool) -> None:
    """Three lives of a server, each ended by a power cut."""
    folder = tmp_path / f"{shards}-{seed}"
    folder.mkdir()
    with closing(PowerWorld(folder, shards, seed, **options)) as world:
        monkeypatch.setattr(os, "fdatasync", world.flush)
        life = PowerLife(world)
        world.settle()
        for mode in CUTS:
            for _ in range(world.rng.randrange(5, 40)):
                life.step()
            world.fail(mode)
            life.check()
        life.finish()


def many(tmp_path: Path, monkeypatch: Patch, shards: int, seeds: range) -> None:
    for seed in seeds:
        print("shards", shards, "seed", seed)
        live(tmp_path, monkeypatch, shards, seed)


@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("seed", range(budget(2, 60)))
def test_power_cuts(tmp_path: Path, monkeypatch: Patch, shards: int, seed: int) -> None:
    live(tmp_path, monkeypatch, shards, seed)


@pytest.mark.parametrize("seed", range(budget(1, 30)))
def test_power_cuts_with_full_sync(tmp_path: Path, monkeypatch: Patch, seed: int) -> None:
    live(tmp_path, monkeypatch, 2, seed, full_sync=True)


@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("seed", range(budget(2, 40)))
def test_a_backup_whose_files_were_copied_one_after_the_other(
    tmp_path: Path, monkeypatch: Patch, shards: int, seed: int
) -> None:
    with closing(PowerWorld(tmp_path, shards, seed)) as world:
        monkeypatch.setattr(os, "fdatasync", world.flush)
        life, images = PowerLife(world), {}
        world.settle()
        for number in world.rng.sample(range(shards), shards):
            for _ in range(15):
                life.step()
            world.now += 5
            images[number] = world.image(number, "all")
        world.start_on([images[number] for number in range(shards)])
        life.promised.clear()  # what came after the copy of its shard is not in the backup
        life.check()
        life.finish()


def test_a_flow_that_is_decided_between_two_pages(tmp_path: Path, monkeypatch: Patch) -> None:
    """Its job sorts before the page that was read last, and was in no table when that page was read."""
    monkeypatch.setattr(roll_call, "PAGE", 1)
    with closing(PowerWorld(tmp_path, 4, 1)) as world:
        monkeypatch.setattr(os, "fdatasync", world.flush)
        world.settle()
        queue = next(name for name in QUEUES if slot_of_queue(name) & 3)
        home = slot_of_queue(queue) & 3
        lost = 3 if home != 3 else 2  # the shard that forgets its entry; shard 0 decides
        child = next(own for own in map("a{}".format, range(99)) if slot_of_id(own) & 3 == lost)
        for own in ("y", "z"):
            world.ask(cmd="PUSH", queue=queue, data=1, jobId=own)
        fields = {"data": {}, "dependsOn": [child], "childrenIds": [child]}
        jobs = [{"id": child, "queue": queue, "input": {"data": {}, "parentId": "p"}}]
        world.send(cmd="PUSHF", jobs=[*jobs, {"id": "p", "queue": queue, "input": fields}])
        while not world.shards[0].engine.state.decisions:
            assert world.turn()
        assert child in world.shards[home].engine.state.prepared
        world.start_on([world.image(number, "none" if number == lost else "all") for number in range(4)])
        world.deliver(home, lost)  # that it is up
        while world.wires[lost, home]:  # the question for the first page
            world.deliver(lost, home)
        late = [(lost, home), (home, lost)]
        while others := [wire for wire, messages in world.wires.items() if messages and wire not in late]:
            world.deliver(*others[0])
        assert child in world.shards[home].engine.state.jobs
        world.settle()
        assert state_of(world, child) == "waiting"


@pytest.mark.nightly
@pytest.mark.parametrize("shards", [2, 4, 8])
def test_hundreds_of_power_cuts(tmp_path: Path, monkeypatch: Patch, shards: int) -> None:
    first = int.from_bytes(os.urandom(3))
    many(tmp_path, monkeypatch, shards, range(first, first + 60))


def no_flush(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Database, "flush", lambda self: None)


def no_flush_of_entries(monkeypatch: Patch) -> None:
    """The directory entry of a durable job is not flushed, and nobody announces anything at the start."""
    real = messages.Claim
    monkeypatch.setattr(messages, "Claim", lambda ids, wait, durable: real(ids, wait))
    no_roll_call(monkeypatch)


def no_roll_call(monkeypatch: Patch) -> None:
    def forget(state: Any) -> None:
        state.recovery.unannounced.clear()

    monkeypatch.setattr(roll_call, "begin", forget)


SEEDED = {
    no_flush: "durable jobs are lost",
    no_flush_of_entries: "stored jobs are unknown",
    no_roll_call: "stored jobs are unknown",
}


@pytest.mark.parametrize("defect", SEEDED)
def test_a_defect_is_seen(tmp_path: Path, monkeypatch: Patch, defect: Callable[[Patch], None]) -> None:
    """The check is worth something: it finds what was left out."""
    defect(monkeypatch)
    with pytest.raises(AssertionError, match=SEEDED[defect]):
        many(tmp_path, monkeypatch, 2, range(40))
