"""Searches against a naive reading of all jobs, whatever happened to these: with blocks of eight numbers, so
that each search crosses many of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from engine.shard_driver import START, Driver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import budget

from shardproc.engine.handlers.search import plan, walk
from shardproc.storage.search import blocks, index

EXAMPLES = budget(15, 400)
NAMES, TAGS, GROUPS = ["a", "b", "rare"], ["x", "y"], ["g", "h"]
QUEUES = ["q", "other"]
MINUTE = 60_000

job_fields = st.fixed_dictionaries(
    {"queue": st.sampled_from(QUEUES), "data": st.sampled_from([1, {"n": 1}, {"n": "1", "m": [{"k": 2}]}])},
    optional={
        "name": st.sampled_from(NAMES),
        "tags": st.lists(st.sampled_from(TAGS), max_size=2, unique=True),
        "groupId": st.sampled_from(GROUPS),
        "priority": st.integers(0, 2),
        "delay": st.sampled_from([0, MINUTE]),
        "maxAttempts": st.just(1),
        "timestamp": st.sampled_from([START - MINUTE, START + 30 * MINUTE]),
        "jobId": st.uuids().map(str),
    },
)
steps = st.one_of(
    st.tuples(st.just("push"), st.lists(job_fields, min_size=1, max_size=12)),
    st.tuples(st.just("work"), st.integers(1, 6), st.sampled_from(QUEUES), st.booleans()),
    st.tuples(st.just("time"), st.sampled_from([1, 500, MINUTE, 5 * MINUTE])),
    st.tuples(st.just("remove"), st.integers(0, 50)),
    st.tuples(st.just("retry"), st.sampled_from(QUEUES)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("sum up"), st.integers(1, 4)),
)
moments = st.integers(-2, 40).map(lambda minutes: START + minutes * MINUTE)

Meets = Callable[[dict[str, Any]], bool]


def text(job: dict[str, Any], name: str) -> str:
    return str(job.get(name) or "")


def finished(job: dict[str, Any]) -> float | None:
    """When a job ended, from its history."""
    if job["state"] not in ("completed", "failed"):
        return None
    return float(job["timeline"][-1]["timestamp"])


CONDITIONS: list[
    tuple[st.SearchStrategy[Any], Callable[[Any], dict[str, Any]], Callable[[Any, Any], bool]]
] = [
    (st.sampled_from(NAMES), lambda v: {"name": v}, lambda job, v: job["name"] == v),
    (
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=2),
        lambda v: {"name": v},
        lambda job, v: job["name"] in v,
    ),
    (st.sampled_from(NAMES), lambda v: {"where": f"name != {v}"}, lambda job, v: job["name"] != v),
    (st.sampled_from(TAGS), lambda v: {"tag": v}, lambda job, v: v in job["tags"]),
    (st.sampled_from(TAGS), lambda v: {"where": f"tag != {v}"}, lambda job, v: v not in job["tags"]),
    (st.sampled_from(GROUPS), lambda v: {"group": v}, lambda job, v: job["groupId"] == v),
    (st.sampled_from(QUEUES), lambda v: {"queue": v}, lambda job, v: job["queue"] == v),
    (st.sampled_from(QUEUES), lambda v: {"where": f"queue = {v}"}, lambda job, v: job["queue"] == v),
    (moments, lambda v: {"createdAfter": v}, lambda job, v: job["createdAt"] >= v),
    (moments, lambda v: {"createdBefore": v}, lambda job, v: job["createdAt"] < v),
    (moments, lambda v: {"finishedAfter": v}, lambda job, v: (finished(job) or 0) >= v),
    (moments, lambda v: {"finishedBefore": v}, lambda job, v: 0 < (finished(job) or 0) < v),
    (
        st.sampled_from(["completed", "failed", "delayed"]),
        lambda v: {"state": v},
        lambda job, v: job["state"] == v,
    ),
    (st.just("waiting"), lambda v: {"state": v}, lambda job, v: job["state"] in ("waiting", "prioritized")),
    (st.just("w1"), lambda v: {"worker": v}, lambda job, v: job["test worker"] == v),
    (st.just("BOOM"), lambda v: {"error": v}, lambda job, v: "boom" in text(job, "failedReason")),
    (st.integers(0, 2), lambda v: {"where": f"priority >= {v}"}, lambda job, v: job["priority"] >= v),
    (
        st.just(1),
        lambda v: {"data": {"n": v}},
        lambda job, v: isinstance(job["data"], dict) and job["data"]["n"] == v,
    ),
    (st.just(2), lambda v: {"where": f"data.m.0.k = {v}"}, lambda job, v: "m" in str(job["data"])),
]
conditions = st.lists(
    st.integers(0, len(CONDITIONS) - 1).flatmap(lambda n: st.tuples(st.just(n), CONDITIONS[n][0])), max_size=3
)


class World:
    """A shard, its jobs in the order in which they came, and who worked on them."""

    def __init__(self, path: Path) -> None:
        self.driver = Driver(str(path))
        self.driver.versions[1] = 3
        self.order: list[str] = []
        self.workers: dict[str, str] = {}

    def step(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("push", jobs):
                for queue in QUEUES:
                    mine = [{**job, "queue": None} for job in jobs if job["queue"] == queue]
                    mine = [{name: value for name, value in job.items() if name != "queue"} for job in mine]
                    if mine:
                        self.order += self.driver.ask(cmd="PUSHB", queue=queue, jobs=mine)["ids"]
            case ("work", count, queue, well):
                self.work(count, queue, well=well)
            case ("time", ms):
                self.driver.tick(self.driver.now + ms)
            case ("remove", place):
                if place < len(self.order):
                    self.driver.ask(cmd="RemoveJob", id=self.order[place])
            case ("retry", queue):
                self.driver.ask(cmd="RetryDlq", queue=queue)
            case ("restart",):
                self.driver.restart()
                self.driver.versions[1] = 3
            case ("sum up", count):
                for _ in range(count):
                    self.driver.shard.store.prepare_searches(self.driver.now)
                self.driver.commit()

    def work(self, count: int, queue: str, *, well: bool) -> None:
        owner = f"w{count % 2}"
        taken = self.driver.ask(cmd="PULLB", queue=queue, count=count, owner=owner)
        for job, token in zip(taken["jobs"], taken["tokens"], strict=True):
            self.workers[job["id"]] = owner
            if well:
                self.driver.ask(cmd="ACK", id=job["id"], token=token)
            else:
                self.driver.ask(cmd="FAIL", id=job["id"], token=token, error="a Boom")

    def jobs(self) -> list[dict[str, Any]]:
        """All that are there."""
        found = []
        for job_id in dict.fromkeys(self.order):
            reply = self.driver.ask(cmd="GetJob", id=job_id)
            if reply["ok"]:
                job = reply["job"]
                held = job["state"] in ("completed", "failed", "active")
                job["test worker"] = self.workers.get(job_id) if held else None
                found.append(job)
        return found

    def find(self, wanted: dict[str, Any], limit: int, scan: int, asc: bool) -> list[str]:
        found: list[str] = []
        cursor = None
        for _ in range(500):
            page = self.driver.ask(cmd="FindJobs", **wanted, limit=limit, scan=scan, asc=asc, cursor=cursor)
            assert page["ok"], page
            assert len(page["jobs"]) <= limit
            found += map(itemgetter("id"), page["jobs"])
            cursor = page["cursor"]
            if cursor is None:
                return found
        raise AssertionError("the pages do not end")


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Small blocks, and small steps."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (index, blocks):
            patch.setattr(module, "BITS", 3)
        for name in ("CHUNK", "SPARSE", "SLOW"):
            patch.setattr(walk, name, 16)
        yield


def wanted_of(chosen: list[tuple[int, Any]]) -> tuple[dict[str, Any], Meets]:
    """A command's fields, and what they mean.  Two conditions on one field are written as text."""
    fields: dict[str, Any] = {}
    where: list[str] = []
    tests: list[Meets] = []
    for number, value in chosen:
        _, given_as, meets = CONDITIONS[number]
        given_fields = given_as(value)
        if "where" in given_fields:
            where.append(given_fields["where"])
        elif fields.keys() & given_fields.keys():
            continue
        else:
            fields |= given_fields
        tests.append(lambda job, meets=meets, value=value: meets(job, value))
    if where:
        fields["where"] = " and ".join(where)
    return fields, lambda job: all(test(job) for test in tests)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(steps, max_size=14),
    st.lists(st.tuples(conditions, st.sampled_from([1, 3, 100]), st.sampled_from([5, 1000]), st.booleans()),
             min_size=1, max_size=5),
    st.booleans(),
)  # fmt: skip
def test_a_search_finds_what_a_look_at_all_jobs_finds(
    done: list[tuple[Any, ...]], searches: list[tuple[Any, int, int, bool]], disk: bool
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if disk:  # live jobs are found by their rows, as if they were many
            patch.setattr(plan, "FEW_LIVE", 0)
            patch.setattr(plan, "_SMALL", {})
        world = World(Path(folder) / "jobs.db")
        try:
            for step in done:
                world.step(step)
            jobs = world.jobs()
            for chosen, limit, scan, asc in searches:
                wanted, meets = wanted_of(chosen)
                expected = [job["id"] for job in jobs if meets(job)]
                found = world.find(wanted, limit, scan, asc)
                assert found == (expected if asc else expected[::-1]), wanted
                count = world.driver.ask(cmd="FindJobs", **wanted, limit=0)["progress"]["found"]
                assert count == len(expected)
        finally:
            world.driver.close()


def test_the_model_sees_a_block_that_is_left_out(tmp_path: Path) -> None:
    """A seeded error: the words of a job are forgotten."""
    world = World(tmp_path / "jobs.db")
    world.step(("push", [{"queue": "q", "data": 1, "name": "rare"}] + [{"queue": "q", "data": 1}] * 20))
    assert world.find({"name": "rare"}, 10, 1000, False) == world.order[:1]
    world.driver.tamper("update search_blocks set words = x''")
    assert world.find({"name": "rare"}, 10, 1000, False) == []
    world.driver.close()
