"""What shards say to each other, step by step: nothing is done twice, promised too early, or forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine.shard_world import QUEUES, Life, Reply, World, state_of
from support.naming import queue_on

from shardproc.engine.peer_calls import too_much

SHARDS = 4
TRY_AGAIN = "belongs to a flow that is being pushed, try again"


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(seed: int, crash_rate: float = 0.0) -> World:
        made.append(World(tmp_path, SHARDS, seed, crash_rate))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world(seed=1)


def on(shard: int, name: str) -> str:
    """A queue on that shard, or an id that points to it."""
    return queue_on(shard, name, SHARDS)


def push(world: World, shard: int, own: str, **options: Any) -> Reply:
    reply = world.ask(cmd="PUSH", queue=on(shard, "q"), data={}, jobId=own, **options)
    assert reply is not None
    return reply


def pull(world: World, queue: str) -> tuple[str, str]:
    reply = world.ask(cmd="PULL", queue=queue, owner="w", lockTtl=60_000)
    assert reply is not None
    assert reply["job"] is not None
    return reply["job"]["id"], reply["token"]


def child(own: str, shard: int, parent: str, **options: Any) -> dict[str, Any]:
    return {"id": own, "queue": on(shard, "q"), "input": {"data": {}, "parentId": parent, **options}}


def parent(own: str, shard: int, children: list[str]) -> dict[str, Any]:
    fields = {"data": {}, "dependsOn": children, "childrenIds": children}
    return {"id": own, "queue": on(shard, "q"), "input": fields}


def jobs_of(world: World, queues: tuple[str, ...] | list[str]) -> list[dict[str, Any]]:
    found = []
    for queue in queues:
        reply = world.ask(cmd="GetJobs", queue=queue, limit=1000)
        assert reply is not None
        found += reply["jobs"]
    return found


# Commands for jobs whose ids point elsewhere


@pytest.mark.parametrize("after_commit", [True, False])
def test_a_relayed_command_is_not_repeated(world: World, after_commit: bool) -> None:
    own = on(3, "own")
    push(world, 1, own, backoff=60_000)
    _, token = pull(world, on(1, "q"))
    world.settle()
    for command in ({"cmd": "AddLog", "message": "once"}, {"cmd": "FAIL", "token": token}):
        world.unanswered, world.doomed[1] = 0, after_commit
        key = world.send(id=own, **command)
        world.settle()
        assert key not in world.replies
        assert world.unanswered == 1, "its client is told that nobody knows"
    assert len(jobs_of(world, [on(1, "q")])) == 1
    logs = world.ask(cmd="GetLogs", id=own)
    assert logs is not None
    assert logs["data"]["count"] == after_commit
    assert jobs_of(world, [on(1, "q")])[0]["attempts"] == after_commit


def test_a_relayed_question_is_repeated(world: World) -> None:
    own = on(3, "own")
    push(world, 1, own)
    world.settle()
    world.doomed[1] = True
    assert state_of(world, own) == "waiting"
    assert world.crashes == 1


def test_the_last_part_of_an_answer_is_of_the_shard_itself(world: World) -> None:
    """A batch waits for a job that is about to appear; its reply leaves when that is there, not later."""
    elsewhere, own = on(1, "elsewhere"), on(1, "a")
    push(world, 2, elsewhere)
    world.settle()
    parts = {own: on(1, "q"), "b": on(3, "q")}
    jobs = [{"id": job, "queue": queue, "input": {"data": {}}} for job, queue in parts.items()]
    world.send(cmd="PUSHF", jobs=jobs)
    while not world.shards[1].engine.state.parts:
        world.turn()
    key = world.send(at=1, cmd="JobHeartbeatB", ids=[elsewhere, own])
    for wire in ((1, 2), (2, 1)):
        while world.wires.get(wire):
            world.deliver(*wire)
    assert key not in world.replies
    world.settle()
    assert world.replies[key] == {"ok": True, "data": {"ok": True, "count": 0}}


def test_no_more_than_so_much_waits_for_other_shards(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them may be down for long, and its clients go on asking."""
    monkeypatch.setattr("shardproc.engine.peer_calls.MAX_ASKED", 10_000)
    own = on(3, "own")
    push(world, 1, own)
    world.settle()
    commands: list[Reply] = [
        {"cmd": "Update", "id": own, "data": "x" * 1000},
        {"cmd": "PUSH", "queue": on(3, "q"), "dependsOn": [on(1, "nobody")]},
    ]
    refused = {"ok": False, "error": str(too_much()), "code": "SHARD_UNAVAILABLE"}
    keys = [world.send(**commands[number % 2]) for number in range(40)]
    waiting = [key for key in keys if key not in world.replies]
    assert 0 < len(waiting) < 20
    assert all(world.replies[key] == refused for key in keys if key not in waiting)
    world.settle()
    answers = [world.replies[key] for key in waiting]
    assert sum(reply["ok"] for reply in answers) == (len(waiting) + 1) // 2
    assert not any(shard.engine.state.asked_size for shard in world.shards)
    assert world.ask(**commands[0]) == {"ok": True}


# Ids


@pytest.mark.parametrize("seed", range(40))
def test_batches_race_for_ids_with_and_without_a_past(make_world: MakeWorld, seed: int) -> None:
    """Each id is given once, every push is answered, whoever comes first."""
    world = make_world(seed)
    life = Life(world)
    ids = [on(shard, f"id{n}") for shard in range(SHARDS) for n in range(2)]
    for own in world.rng.sample(ids, 4):  # some have lived elsewhere
        assert world.ask(cmd="PUSH", queue=world.rng.choice(QUEUES), data=0, jobId=own)
    while life.work():
        pass
    keys = []
    for queue in world.rng.sample(QUEUES, 3):
        mine = world.rng.sample(ids, 6)
        keys.append(world.send(cmd="PUSHB", queue=queue, jobs=[{"data": 1, "jobId": own} for own in mine]))
        for _ in range(world.rng.randrange(6)):
            world.turn()
    world.settle()
    assert all(world.replies[key]["ok"] for key in keys), [world.replies[key] for key in keys]
    waiting = [job["id"] for job in jobs_of(world, QUEUES) if job["state"] == "waiting"]
    pushed = {own for key in keys for own in world.replies[key]["ids"]}
    assert sorted(waiting) == sorted(pushed)
    assert not any(shard.engine.state.granted for shard in world.shards)


def test_an_id_is_removed_and_pushed_again_in_one_breath(world: World) -> None:
    """The entry that leads to the new job must not go with the old one."""
    own = on(3, "own")
    push(world, 1, own)
    _, token = pull(world, on(1, "q"))
    assert world.ask(cmd="ACK", id=own, token=token) == {"ok": True}
    world.settle()
    removed = world.send(cmd="RemoveJob", id=own)
    pushed = world.send(cmd="PUSH", queue=on(1, "q"), data="new", jobId=own)
    world.settle()
    assert world.replies[removed] == {"ok": True, "data": {"removed": True}}
    assert world.replies[pushed] == {"ok": True, "id": own}
    assert state_of(world, own) == "waiting"
    _, token = pull(world, on(1, "q"))
    assert world.ask(cmd="ACK", id=own, token=token) == {"ok": True}


# Who waits for whom


def nobody_waits(world: World) -> bool:
    return not any(shard.engine.state.awaited for shard in world.shards)


def test_a_refused_push_leaves_nothing_behind(world: World) -> None:
    """Neither where it was pushed nor where its dependencies were looked for."""
    missing = [on(shard, f"missing{n}") for shard in range(SHARDS) for n in range(3)]
    push(world, 1, on(1, "there"))
    refused = push(world, 2, "own", dependsOn=[on(1, "there"), *missing])
    assert refused["error"].startswith("Dependency job not found: ")
    world.settle()
    assert nobody_waits(world)


@pytest.mark.parametrize("dies", [None, 1, 2])
def test_who_is_gone_waits_for_nobody(world: World, dies: int | None) -> None:
    """The job that others depended on is not done for a long time; it would be told to nobody."""
    dep, after = on(1, "dep"), on(2, "after")
    push(world, 1, dep)
    push(world, 2, after, dependsOn=[dep])
    assert not nobody_waits(world)
    if dies is not None:
        world.crash(dies)
        world.settle()
    assert world.ask(cmd="Cancel", id=after) == {"ok": True}
    world.settle()
    assert nobody_waits(world)
    push(world, 2, after, dependsOn=[dep])
    _, token = pull(world, on(1, "q"))
    assert world.ask(cmd="ACK", id=dep, token=token) == {"ok": True}
    world.settle()
    assert state_of(world, after) == "waiting"


@pytest.mark.parametrize("step", range(8))
def test_the_parent_of_a_repeated_push_waits_whenever_its_shard_died(world: World, step: int) -> None:
    """The job may be there, and its parent not have heard of it."""
    mother = on(3, "mother")
    push(world, 1, mother)
    world.settle()
    request = {
        "cmd": "PUSH",
        "queue": on(2, "q"),
        "data": {"__parentId": mother},
        "parentId": mother,
        "idempotencyKey": "key",
    }
    world.send(**request)
    for _ in range(step):
        world.turn()
    world.doomed[2] = True
    world.settle()
    world.doomed.clear()
    reply = world.ask(**request)
    assert reply is not None
    assert state_of(world, mother) == "waiting-children"
    (job,) = jobs_of(world, [on(2, "q")])
    assert job["id"] == reply["id"]
    other = world.ask(cmd="PUSHB", queue=on(2, "q"), jobs=[{"tags": ["a"]}] * 3, idempotencyKey="key")
    assert other == {"ok": True, "ids": [reply["id"]], "existing": [0]}, "whatever else comes with the key"


# Flows that are not decided


def flow_of(world: World, number: int) -> list[dict[str, Any]]:
    ids = [on(world.rng.randrange(SHARDS), f"child-{number}-{n}") for n in range(3)]
    own = on(world.rng.randrange(SHARDS), f"parent-{number}")
    jobs = [child(one, 0, own) for one in ids] + [parent(own, 0, ids)]
    return [job | {"queue": world.rng.choice(QUEUES)} for job in jobs]


@pytest.mark.parametrize("crash_rate", [0.0, 0.03])
@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_promised_of_jobs_that_may_not_appear(
    make_world: MakeWorld, seed: int, crash_rate: float
) -> None:
    """Pushes meet the ids of flows, some of which are refused: a push that was answered is there, and a
    dependent waits for something that can come."""
    world = make_world(seed, crash_rate)
    life, refused = Life(world), on(1, "taken")
    push_ok(world, refused)
    promised: dict[str, str] = {}  # key of the reply -> id
    for number in range(6):
        jobs = flow_of(world, number)
        if world.rng.random() < 0.6:
            jobs.append({"id": refused, "queue": QUEUES[0], "input": {"data": {}}})
        world.send(cmd="PUSHF", jobs=jobs)
        for n in range(4):
            for _ in range(world.rng.randrange(4)):
                world.turn()
            own, queue = world.rng.choice(jobs[:-1])["id"], world.rng.choice(QUEUES)
            if world.rng.random() < 0.5:
                promised[world.send(cmd="PUSH", queue=queue, data={}, jobId=own)] = own
            else:
                after = on(world.rng.randrange(SHARDS), f"after-{number}-{n}")
                key = world.send(cmd="PUSH", queue=queue, data={}, jobId=after, dependsOn=[own])
                promised[key] = after
    world.calm()
    for key, own in promised.items():
        reply = world.replies.get(key)
        if reply is None:
            assert crash_rate, "a push was not answered"
        elif reply["ok"]:
            assert state_of(world, own) != "unknown", own
        else:
            assert reply["error"].startswith("Dependency job not found"), reply
    for _ in range(10):
        while life.work():
            pass
        life.lost_pulls_return()
        world.settle()
    left = [job["id"] for job in jobs_of(world, QUEUES) if job["state"] != "completed"]
    assert left == []


def push_ok(world: World, own: str) -> None:
    while world.ask(cmd="PUSH", queue=on(0, "kept"), data={}, jobId=own) is None:
        pass


@pytest.mark.parametrize("seed", range(20))
def test_two_flows_race_for_the_same_ids(make_world: MakeWorld, seed: int) -> None:
    world = make_world(seed)
    jobs = flow_of(world, 0)
    keys = []
    for _ in range(3):
        keys.append(world.send(cmd="PUSHF", jobs=jobs))
        for _ in range(world.rng.randrange(8)):
            world.turn()
    world.settle()
    replies = [world.replies[key] for key in keys]
    won = sum(reply["ok"] for reply in replies)
    errors = [reply["error"] for reply in replies if not reply["ok"]]
    assert won <= 1
    assert all(TRY_AGAIN in error or (won and "already exists" in error) for error in errors), errors
    if not won:
        again = world.ask(cmd="PUSHF", jobs=jobs)
        assert again is not None
        assert again["ok"]


def test_a_flow_is_pushed_again_before_the_old_one_is_given_up(world: World) -> None:
    """Its client comes back as soon as the shard that decides does."""
    jobs = [child("a", 1, "p"), parent("p", 2, ["a"])]
    world.send(cmd="PUSHF", jobs=jobs)
    while not world.shards[1].engine.state.parts:
        world.turn()
    world.crash(0)
    for wire in [wire for wire in world.wires if 0 in wire]:  # the others hear of it
        while world.wires[wire] and None in world.wires[wire] and wire[0] == 0:
            world.deliver(*wire)
    reply = world.ask(cmd="PUSHF", jobs=jobs)
    assert reply is not None
    assert reply["ok"], reply


def test_who_asks_for_a_job_of_a_flow_waits_until_it_appears(world: World) -> None:
    """Its shard was killed before it heard the decision, and the client knows that already."""
    jobs = [child("a", 1, "p"), parent("p", 2, ["a"])]
    key = world.send(cmd="PUSHF", jobs=jobs)
    while key not in world.replies:
        world.turn()
    assert world.replies[key]["ok"]
    world.crash(2)
    assert state_of(world, "p") == "waiting-children"


# Jobs of which nothing is kept


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("pointer", range(SHARDS))
def test_a_child_is_removed_before_its_parent_appears(world: World, fails: bool, pointer: int) -> None:
    """... and all processes are killed, so that only what is stored can tell."""
    own = on(pointer, "child")
    gone = {"removeOnFail": True, "failParentOnFailure": True} if fails else {"removeOnComplete": True}
    key = world.send(cmd="PUSHF", jobs=[child(own, 1, "p", **gone), parent("p", 2, [own])])
    while key not in world.replies:
        world.turn()
    world.deliver(0, 1)  # the decision, which shard 2 does not hear yet
    _, token = pull(world, on(1, "q"))
    answer: dict[str, Any] = {"cmd": "FAIL", "unrecoverable": True} if fails else {"cmd": "ACK"}
    key = world.send(at=1, id=own, token=token, **answer)
    assert world.replies[key]["ok"]
    for number in range(SHARDS):
        world.crash(number)
    world.settle()
    assert state_of(world, own) == "unknown"
    assert state_of(world, "p") == ("failed" if fails else "waiting")
    push(world, 3, own)
    assert state_of(world, own) == "waiting", "it can begin another life"


@pytest.mark.parametrize("dies", ["home", "asker"])
def test_a_dependency_is_removed_while_one_of_the_two_is_away(world: World, dies: str) -> None:
    dep, after = on(3, "dep"), on(0, "after")
    push(world, 1, dep, removeOnComplete=True)
    push(world, 2, after, dependsOn=[dep])
    _, token = pull(world, on(1, "q"))
    world.settle()
    world.doomed[1 if dies == "home" else 2] = True
    world.send(at=1, cmd="ACK", id=dep, token=token)
    world.settle()
    for number in (1, 3):
        world.crash(number)
    world.settle()
    assert state_of(world, after) == "waiting"


@pytest.mark.parametrize("pointer", range(SHARDS))
def test_that_a_removed_job_had_completed_is_known_everywhere(world: World, pointer: int) -> None:
    dep, failed = on(pointer, "dep"), on(pointer, "failed")
    push(world, 1, dep, removeOnComplete=True)
    push(world, 1, failed, removeOnFail=True)
    for answer in ({"cmd": "ACK"}, {"cmd": "FAIL", "unrecoverable": True}):
        own, token = pull(world, on(1, "q"))
        assert world.ask(id=own, token=token, **answer)
    world.settle()
    assert push(world, 2, on(2, "after"), dependsOn=[dep])["ok"]
    assert state_of(world, on(2, "after")) == "waiting"
    refused = push(world, 2, on(2, "never"), dependsOn=[failed])
    assert refused == {"ok": False, "error": f"Dependency job not found: {failed}"}


def test_what_became_of_a_removed_job_is_forgotten_after_a_week(world: World) -> None:
    own = on(3, "own")
    push(world, 1, own, removeOnComplete=True)
    push(world, 2, on(0, "after"), dependsOn=[own])
    _, token = pull(world, on(1, "q"))
    assert world.ask(cmd="ACK", id=own, token=token) == {"ok": True}
    world.settle()
    for days, known in ((6, True), (2, False)):
        world.now += days * 86_400_000
        world.crash(1)
        world.settle()
        assert (own in world.shards[1].engine.state.tombstones) == known
        assert (own in world.shards[3].engine.state.directory) == known
    world.crash(1)
    assert own not in world.shards[1].engine.state.tombstones


@pytest.mark.parametrize("shard", [1, 2])
def test_a_dependency_that_fails_and_is_removed_has_not_completed(world: World, shard: int) -> None:
    dep, after = on(3, "dep"), on(0, "after")
    push(world, 1, dep, removeOnFail=True)
    push(world, shard, after, dependsOn=[dep])
    own, token = pull(world, on(1, "q"))
    assert own == dep
    assert world.ask(cmd="FAIL", id=dep, token=token, unrecoverable=True)
    world.settle()
    assert state_of(world, dep) == "unknown"
    assert state_of(world, after) == "waiting-children"


def test_children_are_removed_again_when_nobody_knows_whether_they_were(world: World) -> None:
    ids = [on(shard, f"child{shard}") for shard in range(SHARDS)]
    assert world.ask(cmd="PUSHF", jobs=[child(own, 1, "p") for own in ids] + [parent("p", 2, ids)])
    world.settle()
    world.send(cmd="RemoveUnprocessedChildren", id="p")
    while world.shards[1].engine.state.jobs:
        world.turn()
    world.crash(2)
    reply = world.ask(cmd="RemoveUnprocessedChildren", id="p")
    assert reply is not None
    assert reply["ok"], reply
    assert state_of(world, "p") == "waiting"
