"""Several shards, the messages between them, and crashes at every step of what they do together."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from engine.shard_world import CONN, QUEUES, Life, World, state_of
from support.budget import budget

from bunqueue.model.ids import slot_of_id


@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("seed", range(budget(5, 200)))
@pytest.mark.parametrize("cut_rate", [0.0, 0.04])
def test_a_life_with_crashes(tmp_path: Path, shards: int, seed: int, cut_rate: float) -> None:
    world = World(tmp_path, shards, seed, crash_rate=0.04, cut_rate=cut_rate)
    life = Life(world)
    for number in range(30):
        life.rng.choice((life.push_flow, life.push_dependent, life.race))(number)
        for _ in range(life.rng.randrange(3)):
            life.work()
    world.calm()
    for _ in range(20):  # a pull whose reply was lost may hold up a chain of others
        while life.work():
            pass
        life.lost_pulls_return()
        world.settle()
    assert world.crashes >= 3
    assert bool(world.cuts) == bool(cut_rate)
    for ids, acknowledged in life.flows:
        there = [own for own in ids if state_of(world, own) != "unknown"]
        assert there in ([], ids), "a flow is there in part"
        assert there or not acknowledged, "an acknowledged flow is lost"
    for own, acknowledged in life.pushed.items():
        assert not acknowledged or state_of(world, own) == "completed", own
    for ids, _ in life.flows:
        assert {state_of(world, own) for own in ids} <= {"completed", "unknown"}, ids
    assert all(count == 1 for own, count in life.runs.items() if own.startswith("race-")), life.runs
    for shard in world.shards:
        state = shard.engine.state
        left = (state.parts, state.prepared, state.decisions, state.asked, state.undecided)
        assert not any(left), left
        assert not state.awaited
    world.close()


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_an_id_is_free_again_after_its_job(tmp_path: Path, shards: int) -> None:
    """Over any shards: the second life forgets the result of the first."""
    world = World(tmp_path, shards, 1, crash_rate=0.0)
    life = Life(world)
    for queue in QUEUES:
        assert world.ask(cmd="PUSH", queue=queue, data=queue, jobId="again") == {"ok": True, "id": "again"}
        there = {"ok": True, "id": "again", "existing": True}
        assert world.ask(cmd="PUSH", queue=QUEUES[0], data="no", jobId="again") == there
        found = world.ask(cmd="GetJobByCustomId", customId="again")
        assert found is not None
        assert (found["job"]["queue"], found["job"]["data"]) == (queue, queue)
        assert world.ask(cmd="GetResult", id="again") == {"ok": True, "id": "again"}
        assert life.work()
        assert state_of(world, "again") == "completed"
    counts = [world.ask(cmd="GetJobCounts", queue=queue) for queue in QUEUES]
    assert sum(count["counts"]["completed"] for count in counts if count) == 1
    world.close()


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_a_batch_over_ids_of_several_shards(tmp_path: Path, shards: int) -> None:
    world = World(tmp_path, shards, 2, crash_rate=0.0)
    ids = [f"own-{number}" for number in range(20)]
    jobs = [{"data": own, "jobId": own} for own in ids]
    assert world.ask(cmd="PUSHB", queue="alpha", jobs=jobs) == {"ok": True, "ids": ids}
    pulled = world.ask(cmd="PULLB", queue="alpha", count=20)
    assert pulled is not None
    assert [job["id"] for job in pulled["jobs"]] == ids
    by_shard: dict[int, list[str]] = {}
    for own in ids:
        by_shard.setdefault(slot_of_id(own) & (shards - 1), []).append(own)
    for shard, some in by_shard.items():  # as the router splits them: not where the jobs are
        request = msgpack.packb({"cmd": "ACKB", "ids": some, "results": some, "reqId": f"b{shard}"})
        engine = world.shards[shard]
        engine.execute(engine.client(CONN, 3), request, world.now)
        world.finish(shard)
        world.settle()
        assert world.replies[f"b{shard}"] == {"ok": True}
    for own in ids:
        assert world.ask(cmd="GetResult", id=own) == {"ok": True, "id": own, "result": own}
    world.close()


def test_entries_of_removed_jobs_are_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path, 4, 3, crash_rate=0.0)
    life = Life(world)
    for number in range(40):
        queue = QUEUES[number % len(QUEUES)]
        reply = world.ask(cmd="PUSH", queue=queue, data=1, jobId=f"gone-{number}", removeOnComplete=True)
        assert reply == {"ok": True, "id": f"gone-{number}"}
    while life.work():
        world.settle()
    assert not any(shard.engine.state.directory for shard in world.shards)
    world.close()


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_a_waiting_job_gets_a_child_and_runs_once(tmp_path: Path, shards: int) -> None:
    world = World(tmp_path, shards, 4, crash_rate=0.0)
    life = Life(world)
    for own, queue in (("late-parent", "alpha"), ("late-child", "beta")):
        world.ask(cmd="PUSH", queue=queue, data={"own": own}, jobId=own)
    life.needs["late-parent"] = ["late-child"]
    assert world.ask(cmd="UpdateParent", childId="late-child", parentId="late-parent") == {"ok": True}
    assert state_of(world, "late-parent") == "waiting-children"
    while life.work():
        world.settle()
    assert life.runs == {"late-child": 1, "late-parent": 1}
    world.close()


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_a_running_job_waits_for_children_it_has_just_made(tmp_path: Path, shards: int) -> None:
    world = World(tmp_path, shards, 5, crash_rate=0.0)
    life = Life(world)
    world.ask(cmd="PUSH", queue="alpha", data={}, jobId="maker")
    pulled = world.ask(cmd="PULL", queue="alpha", owner="w", lockTtl=1000)
    assert pulled is not None
    world.ask(cmd="PUSH", queue="beta", data={}, jobId="made", parentId="maker")
    world.ask(cmd="UpdateParent", childId="made", parentId="maker")
    moved = world.ask(cmd="MoveToWaitingChildren", id="maker", token=pulled["token"])
    assert moved == {"ok": True, "data": {"moved": True}}
    world.crash(0)
    world.settle()
    assert state_of(world, "maker") == "waiting-children"
    life.needs["maker"] = ["made"]
    while life.work():
        world.settle()
    assert list(life.done) == ["made", "maker"]
    world.close()
