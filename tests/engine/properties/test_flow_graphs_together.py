"""Flows with names over several shards, with crashes at every step: each addition is there as a whole or not
at all, no job runs before what it waits for, none waits for ever, and a retry brings all of a flow to an end.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engine.shard_world import QUEUES, World
from support.budget import budget

SEEDS = budget(4, 200)
ENDED = {"completed", "failed", "cancelled"}
POLICIES = ("fail", "ignore", "continue", "remove")


class Flows:
    """Adds random graphs, has them grow, works them off, fails, cancels and retries."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng
        self.additions: list[tuple[str, list[str], bool]] = []  # flow, names, acknowledged
        self.fragile: dict[str, set[str]] = {}  # node -> what must have completed when it runs

    def add(self, number: int) -> None:
        grow = number > 2 and self.rng.random() < 0.3
        flow = f"f{self.rng.randrange(number) if grow else number}"
        known = self.names(flow) if grow else []
        if grow and not known:
            return
        names = [f"n{number}-{place}" for place in range(self.rng.randrange(1, 7))]
        nodes = []
        for place, name in enumerate(names):
            before = [*known, *names[:place]]
            after = self.rng.sample(before, min(len(before), self.rng.randrange(4)))
            policy = self.rng.choice(POLICIES)
            if policy == "fail":
                self.fragile[f"{flow}:{name}"] = {f"{flow}:{other}" for other in after}
            fields = {"data": {}, "maxAttempts": 1, "onDeadDependency": policy}
            nodes.append({"name": name, "queue": self.rng.choice(QUEUES), "after": after, "input": fields})
        self.rng.shuffle(nodes)
        reply = self.world.ask(cmd="AddFlow", flow=flow, nodes=nodes, grow=grow)
        assert reply is None or reply["ok"] or "removed" in reply["error"], reply
        self.additions.append((flow, names, reply is not None))

    def view(self, flow: str) -> list[dict[str, Any]]:
        reply = self.world.ask(cmd="GetFlow", flow=flow)
        return list(reply["data"]["nodes"]) if reply is not None and reply["ok"] else []

    def names(self, flow: str) -> list[str]:
        return [node["name"] for node in self.view(flow)]

    def work(self, *, fails: float) -> bool:
        """Take one job and end it; False when there is none."""
        for queue in self.rng.sample(QUEUES, len(QUEUES)):
            taken = self.world.ask(cmd="PULL", queue=queue)
            if taken is not None and taken["job"] is not None:
                self.check(taken["job"]["id"])
                self.end(taken["job"]["id"], fails=fails)
                return True
        return False

    def check(self, job_id: str) -> None:
        """A job that was just taken: what it cannot run without has completed."""
        states = {node["id"]: node["state"] for node in self.view(job_id.partition(":")[0])}
        early = {dep for dep in self.fragile.get(job_id, ()) if states.get(dep, "completed") != "completed"}
        assert not early, f"{job_id} runs before {early}: {states}"

    def end(self, job_id: str, *, fails: float) -> None:
        if self.rng.random() < fails:
            self.world.ask(cmd="FAIL", id=job_id, error="broken")
        else:
            self.world.ask(cmd="ACK", id=job_id, result=job_id)

    def meddle(self) -> None:
        flow = self.rng.choice(self.additions)[0]
        nodes = self.view(flow)
        chance = self.rng.random()
        if chance < 0.3:
            self.world.ask(cmd="CancelFlow", flow=flow, grace=0)
        elif chance < 0.6:
            self.world.ask(cmd="RetryFlow", flow=flow)
        elif nodes:
            self.world.ask(cmd="RetryFlow", flow=flow, node=self.rng.choice(nodes)["name"])

    def drain(self, *, fails: float) -> None:
        """Work everything off, also what was pulled when the answer got lost."""
        for flow in {flow for flow, _, _ in self.additions}:
            for node in self.view(flow):
                if node["state"] == "active":
                    self.end(node["id"], fails=fails)
        self.world.settle()
        while self.work(fails=fails):
            self.world.settle()


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("cut_rate", [0.0, 0.03])
def test_graphs_with_crashes(tmp_path: Path, shards: int, seed: int, cut_rate: float) -> None:
    with closing(World(tmp_path, shards, seed, crash_rate=0.03, cut_rate=cut_rate)) as world:
        flows = Flows(world)
        for number in range(1, 16):
            flows.add(number)
            for _ in range(world.rng.randrange(5)):
                flows.work(fails=0.2)
            if world.rng.random() < 0.3:
                flows.meddle()
        world.calm()
        flows.drain(fails=0.2)
        for flow, names, acknowledged in flows.additions:
            found = flows.view(flow)
            there = {node["name"] for node in found} & set(names)
            assert there == (set(names) if acknowledged else there and set(names)), (flow, names)
            stuck = [node for node in found if node["state"] not in ENDED]
            assert not stuck, f"they wait for ever: {stuck}"
        for flow in {flow for flow, _, _ in flows.additions}:
            world.ask(cmd="RetryFlow", flow=flow)
            world.settle()
        flows.drain(fails=0.0)
        for flow in {flow for flow, _, _ in flows.additions}:
            states = {node["id"]: node["state"] for node in flows.view(flow)}
            assert set(states.values()) <= {"completed"}, states
