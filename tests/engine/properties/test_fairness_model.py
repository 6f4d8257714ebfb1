"""Fair pulls against the definition of fairness: between two groups that have jobs and no limit all the time,
the shares that they got differ by no more than one turn of each."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from engine.shard_driver import Driver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.budget import budget

NAMES = ["a", "b", "c", ""]  # the last one: no group
names = st.sampled_from(NAMES)
LIMITS = st.one_of(st.none(), st.none(), st.integers(1, 30))


class FairnessMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.driver = Driver()
        self.driver.versions = {1: 3}
        self.waiting: dict[str, list[str]] = {name: [] for name in NAMES}
        self.active: dict[str, list[str]] = {name: [] for name in NAMES}
        self.weights = dict.fromkeys(NAMES, 1)
        self.own: dict[str, int | None] = dict.fromkeys(NAMES)
        self.usual: int | None = None
        self.forget()
        for name in NAMES[1:]:
            self.push(name, 60)

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.close()

    def forget(self) -> None:
        """Weights or limits are other ones: shares are counted anew."""
        self.pairs = {(one, two): [Fraction(0), Fraction(0)] for one in NAMES for two in NAMES if one < two}

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        reply = self.driver.ask(1, cmd=command, queue="q", **fields)
        assert reply["ok"], reply
        return reply

    def free(self, name: str) -> bool:
        most = None if name == "" else self.own[name] or self.usual
        return bool(self.waiting[name]) and (most is None or len(self.active[name]) < most)

    def restart_pairs(self) -> None:
        """Two groups are compared as long as both are free without a pause."""
        for (one, two), got in self.pairs.items():
            if not (self.free(one) and self.free(two)):
                got[:] = [Fraction(0), Fraction(0)]

    @rule(name=names, count=st.sampled_from([1, 1, 20, 60]))
    def push(self, name: str, count: int) -> None:
        job = {"groupId": name} if name else {}
        self.waiting[name] += self.ask("PUSHB", jobs=[job] * count)["ids"]

    @rule(count=st.integers(1, 40))
    def pull(self, count: int) -> None:
        jobs = self.ask("PULLB", count=count, group={"fair": True})["jobs"]
        for job in jobs:
            name = job["groupId"] or ""
            assert self.free(name)
            assert job["id"] == self.waiting[name].pop(0)
            self.active[name].append(job["id"])
            for pair, got in self.pairs.items():
                if name in pair:
                    got[pair.index(name)] += Fraction(1, self.weights[name])
            self.shares_are_fair()
            self.restart_pairs()
        assert len(jobs) == count or not any(map(self.free, NAMES))

    @precondition(lambda self: any(self.active.values()))
    @rule(name=names)
    def ack(self, name: str) -> None:
        ids, self.active[name] = self.active[name], []
        self.driver.ask(1, cmd="ACKB", ids=ids)

    @rule(name=st.sampled_from(["a", "b", "c"]), weight=st.integers(1, 5))
    def weigh(self, name: str, weight: int) -> None:
        self.weights[name] = weight
        self.ask("SetGroupWeight", groupId=name, weight=weight)
        self.forget()

    @rule(most=LIMITS)
    def limit_all(self, most: int | None) -> None:
        self.usual = most
        self.ask("SetGroupDefaults", config={"concurrency": most})
        self.restart_pairs()

    @rule(name=st.sampled_from(["a", "b", "c"]), most=LIMITS)
    def limit_one(self, name: str, most: int | None) -> None:
        self.own[name] = most
        if most is None:
            self.ask("RemoveGroupConcurrency", groupId=name)
        else:
            self.ask("SetGroupConcurrency", groupId=name, concurrency=most)
        self.restart_pairs()

    def shares_are_fair(self) -> None:
        for (one, two), got in self.pairs.items():
            # A turn of each; of weight 1, as a group may have had another weight when its turn was planned.
            assert abs(got[0] - got[1]) <= 2, (one, two, got)


TestFairness = FairnessMachine.TestCase
TestFairness.settings = settings(max_examples=budget(15, 300), stateful_step_count=30, deadline=None)
