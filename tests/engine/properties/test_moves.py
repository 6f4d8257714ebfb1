"""Jobs that are moved between queues of several shards, with crashes at every step: none is lost, none is
there twice, and each is what it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engine.shard_world import CONN, QUEUES, World
from support.budget import budget

from shardproc.engine.all_handlers import RECORDS
from shardproc.engine.peers import moves
from shardproc.engine.state import State

SEEDS = budget(4, 200)


class Movers:
    """Pushes jobs of all kinds, and has them moved about."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng
        self.jobs: dict[str, dict[str, Any]] = {}  # acknowledged ones -> what they were pushed with
        self.unsure: set[str] = set()

    def push(self, number: int) -> None:
        fields: dict[str, Any] = {"data": {"n": number}, "name": f"n{number % 3}", "priority": number % 4}
        if number % 3 == 0:
            fields["jobId"] = f"own-{number}"
        if number % 4 == 1:
            fields["delay"] = 3_600_000
        if number % 5 == 2:
            fields["tags"] = ["t"]
        if number % 7 == 3:
            fields["uniqueKey"] = f"key-{number % 14}"
        reply = self.world.ask(cmd="PUSH", queue=self.rng.choice(QUEUES), **fields)
        if reply is None:
            self.unsure.add(str(number))
            return
        assert reply["ok"], reply
        if not reply.get("existing"):
            self.jobs[reply["id"]] = fields

    def fail_one(self) -> None:
        """A dead letter, with a line in its log."""
        queue = self.rng.choice(QUEUES)
        taken = self.world.ask(cmd="PULL", queue=queue, owner="w", lockTtl=86_400_000)
        if taken is not None and taken["job"] is not None:
            job_id = taken["job"]["id"]
            self.world.ask(cmd="AddLog", id=job_id, message="tried")
            self.world.ask(cmd="FAIL", id=job_id, token=taken["token"], error="no", unrecoverable=True)

    def move(self) -> None:
        source, target = self.rng.sample(QUEUES, 2)
        wanted: dict[str, Any] = {"action": "move", "to": target, "limit": self.rng.choice([1, 5, 100])}
        if self.rng.random() < 0.5:
            wanted["where"] = f"data.n < {self.rng.randrange(40)}"
        if self.rng.random() < 0.3:
            self.world.send(cmd="ChangeJobs", queue=source, **wanted)  # others do something meanwhile
        else:
            reply = self.world.ask(cmd="ChangeJobs", queue=source, **wanted)
            assert reply is None or reply["ok"], reply

    def places(self) -> dict[str, list[tuple[int, str]]]:
        """Where each job is, on disk: its shards and states."""
        found: dict[str, list[tuple[int, str]]] = {}
        for number, shard in enumerate(self.world.shards):
            rows = shard.store.database.connection.execute("select id, state from job_history").fetchall()
            for job_id, state in rows:
                found.setdefault(job_id, []).append((number, state))
        return found


def found(world: World, **wanted: str) -> list[str]:
    """The ids of the jobs that a search finds, each queue by itself."""
    pages = [world.ask(cmd="FindJobs", queue=queue, limit=1000, **wanted) for queue in QUEUES]
    jobs = [job["id"] for page in pages if page is not None for job in page["jobs"]]
    assert len(jobs) == len(set(jobs))
    return jobs


def check(world: World, movers: Movers) -> None:
    places = movers.places()
    twice = {job_id: where for job_id, where in places.items() if len(where) > 1}
    assert not twice
    lost = movers.jobs.keys() - places.keys()
    assert not lost
    for job_id, fields in movers.jobs.items():
        reply = world.ask(cmd="GetJob", id=job_id)
        assert reply is not None
        assert reply["ok"], (job_id, reply)
        job = reply["job"]
        assert (job["data"], job["name"], job["priority"]) == (
            fields["data"],
            fields["name"],
            fields["priority"],
        )
        assert job["tags"] == fields.get("tags", [])
        assert job["uniqueKey"] == fields.get("uniqueKey")
        attempts = world.ask(cmd="GetAttempts", id=job_id)
        log = world.ask(cmd="GetLogs", id=job_id)
        assert attempts is not None
        assert log is not None
        assert len(attempts["data"]["attempts"]) <= len(log["data"]["logs"]) or world.crashes
    named = {job_id for job_id, fields in movers.jobs.items() if fields["name"] == "n1"}
    assert named <= set(found(world, name="n1"))
    for shard in world.shards:
        state = shard.engine.state
        left = state.moving, state.leaving, state.arrived, state.arriving, state.asked
        assert not any(left), left
        assert all(len(queue.unique) <= len(queue.jobs) + len(queue.late) for queue in state.queues.values())
        for queue in state.queues.values():
            for key, holder in queue.unique.items():
                assert state.jobs[holder].unique_key == key
                assert state.jobs[holder].queue == queue.name


def story(tmp_path: Path, shards: int, seed: int) -> None:
    """Jobs are pushed, fail, and are moved about while shards die; nothing is missing at the end."""
    with closing(World(tmp_path, shards, seed, crash_rate=0.03, cut_rate=0.03)) as world:
        movers = Movers(world)
        for number in range(40):
            movers.push(number)
            if movers.rng.random() < 0.2:
                movers.fail_one()
            if movers.rng.random() < 0.5:
                movers.move()
        world.calm()
        for shard in world.shards:  # what was pulled and never reported
            shard.engine.disconnect(CONN, world.now, severed=False)
            shard.commit()
            shard.peer_messages()
        world.settle()
        check(world, movers)
        for number in range(world.count):  # and all of it is on disk
            world.crash(number)
        world.settle()
        check(world, movers)


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_or_doubled(tmp_path: Path, shards: int, seed: int) -> None:
    story(tmp_path, shards, seed)


def forget_what_leaves(state: State, key: str, value: str) -> None:
    """A restart does not know that jobs are on their way."""


def forget_what_arrived(state: State, key: str, value: str) -> None:
    """A restart does not know that jobs have arrived, and takes them a second time."""


def stories(tmp_path: Path) -> None:
    for seed in range(30):
        folder = tmp_path / str(seed)
        folder.mkdir()
        story(folder, 2, seed)


@pytest.mark.parametrize(
    ("record", "bug"), [(moves.LEAVING, forget_what_leaves), (moves.ARRIVED, forget_what_arrived)]
)
def test_a_broken_move_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str, bug: Callable[[State, str, str], None]
) -> None:
    monkeypatch.setitem(RECORDS, record, RECORDS[record]._replace(recover=bug))
    with pytest.raises(AssertionError):
        stories(tmp_path)


@pytest.mark.parametrize("shards", [1, 4])
def test_a_moved_job_is_what_it_was(tmp_path: Path, shards: int) -> None:
    world = World(tmp_path, shards, 1, crash_rate=0.0)

    def ask(**request: Any) -> dict[str, Any]:
        reply = world.ask(**request)
        assert reply is not None
        assert reply["ok"], reply
        return reply

    ids = [
        ask(cmd="PUSH", queue="alpha", data=n, priority=n, maxAttempts=2, backoff=1)["id"] for n in range(3)
    ]
    taken = ask(cmd="PULL", queue="alpha", owner="w")
    ask(cmd="AddLog", id=ids[2], message="line")
    ask(cmd="FAIL", id=ids[2], token=taken["token"], error="once")
    before = [ask(cmd="GetJob", id=job_id)["job"] for job_id in ids]
    reply = ask(cmd="ChangeJobs", queue="alpha", action="move", to="delta")
    assert reply["data"] == {"changed": 3, "skipped": {}, "examples": ids}
    world.settle()
    for was, job_id in zip(before, ids, strict=True):
        job = ask(cmd="GetJob", id=job_id)["job"]
        moving = ("queue", "runAt", "timeline", "state")
        assert {**job, **dict.fromkeys(moving)} == {**was, **dict.fromkeys(moving)}
        assert job["queue"] == "delta"
    assert [line["message"] for line in ask(cmd="GetLogs", id=ids[2])["data"]["logs"]] == ["line"]
    (attempt,) = ask(cmd="GetAttempts", id=ids[2])["data"]["attempts"]
    assert attempt["error"] == "once"
    world.now += 1000
    for shard in world.shards:
        shard.engine.tick(world.now)
        shard.commit()
    order = [ask(cmd="PULL", queue="delta", owner="w")["job"]["id"] for _ in range(3)]
    assert order == [ids[2], ids[1], ids[0]]
    assert world.ask(cmd="PULL", queue="alpha") == {"ok": True, "job": None}
    world.close()


def test_what_cannot_move_stays_and_says_why(tmp_path: Path) -> None:
    world = World(tmp_path, 4, 2, crash_rate=0.0)

    def ask(**request: Any) -> dict[str, Any]:
        reply = world.ask(**request)
        assert reply is not None
        assert reply["ok"], reply
        return reply

    ask(cmd="PUSH", queue="delta", data=0, uniqueKey="k")
    active = ask(cmd="PUSH", queue="alpha", data=1, priority=9)["id"]
    ask(cmd="PULL", queue="alpha", owner="w")
    keyed = ask(cmd="PUSH", queue="alpha", data=2, uniqueKey="k", priority=1)["id"]
    child = ask(cmd="PUSH", queue="alpha", data=3)["id"]
    parent = ask(cmd="PUSH", queue="alpha", data=4, dependsOn=[child])["id"]
    free = ask(cmd="PUSH", queue="alpha", data=5, delay=1000)["id"]
    reply = ask(cmd="ChangeJobs", queue="alpha", action="move", to="delta")
    assert reply["data"]["changed"] == 1
    assert reply["data"]["skipped"] == {"active": 1, "unique-key": 1, "flow": 1, "waiting-children": 1}
    world.settle()
    queues = {
        job_id: ask(cmd="GetJob", id=job_id)["job"]["queue"] for job_id in (active, keyed, child, parent)
    }
    assert set(queues.values()) == {"alpha"}
    assert ask(cmd="GetJob", id=free)["job"]["queue"] == "delta"
    assert ask(cmd="PULL", queue="alpha", owner="w")["job"]["id"] == keyed
    world.close()


@pytest.mark.parametrize("shards", [1, 4])
def test_keys_that_outlast_their_job_go_with_it(tmp_path: Path, shards: int) -> None:
    world = World(tmp_path, shards, 3, crash_rate=0.0)

    def ask(**request: Any) -> dict[str, Any]:
        reply = world.ask(**request)
        assert reply is not None
        assert reply["ok"], reply
        return reply

    def push(queue: str, key: str) -> dict[str, Any]:
        dedup = {"ttl": 3_600_000, "onConflict": "keep"}
        return ask(cmd="PUSH", queue=queue, data=1, uniqueKey=key, dedup=dedup)

    waiting = push("alpha", "w")["id"]
    dead = push("alpha", "d")["id"]
    for job_id in (waiting, dead):
        taken = ask(cmd="PULL", queue="alpha", owner="w")
        if job_id == dead:
            ask(cmd="FAIL", id=dead, token=taken["token"], error="no", unrecoverable=True)
        else:
            ask(cmd="MoveToDelayed", id=waiting, token=taken["token"], delay=1000)
    ended = push("delta", "d")["id"]  # its key is held there, too
    ask(cmd="ACK", id=ended, token=ask(cmd="PULL", queue="delta", owner="w")["token"])
    moved = ask(cmd="ChangeJobs", queue="alpha", action="move", to="delta")["data"]
    assert (moved["changed"], moved["skipped"]) == (1, {"unique-key": 1})
    world.settle()
    assert push("alpha", "d")["id"] == dead, "it is still a dead letter there, and has its key"
    assert push("delta", "w")["id"] == waiting
    assert push("alpha", "w")["id"] != waiting
    moved = ask(cmd="ChangeJobs", queue="alpha", action="move", to="gamma", state="failed")["data"]
    assert (moved["changed"], moved["skipped"]) == (1, {})
    world.settle()
    assert push("gamma", "d")["id"] == dead
    assert push("alpha", "d")["id"] != dead
    world.close()
