"""Unique keys against a naive model: a list of jobs, of which each push looks for the one with the key."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from typing import Any

from engine.shard_driver import Driver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.budget import budget

KEYS = ["k", "l"]
UNFINISHED = {"waiting", "delayed", "active", "waiting-children"}
WORKER = {"owner": "w", "lockTtl": 86_400_000}
HOUR = 3_600_000
keys = st.sampled_from(["k", "k", "k", "l"])
dedups = st.fixed_dictionaries(
    {"onConflict": st.sampled_from(["keep", "keep", "replace", "extend", "reject", "supersede"])},
    optional={
        "ttl": st.sampled_from([500, 20_000, HOUR]),
        "states": st.sampled_from(
            [["waiting"], ["waiting", "delayed", "active", "completed"], ["active", "failed"]]
        ),
    },
)


@dataclass(eq=False)
class Job:
    id: str
    key: str
    state: str
    holds: bool = True
    until: int | None = None
    states: frozenset[str] = frozenset(UNFINISHED)
    token: str = ""
    after: Job | None = None
    stopping: bool = False

    def is_holder(self, now: int) -> bool:
        over = self.until is not None and self.until <= now
        return self.holds and not over and self.state in self.states


class UniqueMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.driver = Driver(f"{self.folder}/q.db")
        self.jobs: list[Job] = []

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.close()
            shutil.rmtree(self.folder)

    def holder(self, key: str) -> Job | None:
        holders = [job for job in self.jobs if job.key == key and job.is_holder(self.driver.now)]
        assert len(holders) <= 1
        return holders[0] if holders else None

    @rule(key=keys, dedup=dedups)
    def push(self, key: str, dedup: dict[str, Any]) -> None:
        request = {"cmd": "PUSH", "queue": "q", "uniqueKey": key, "backoff": 0}
        reply = self.driver.ask(**request, dedup={**dedup, "grace": HOUR})
        holder, policy = self.holder(key), dedup["onConflict"]
        if policy == "extend" and "ttl" not in dedup:
            assert "needs a ttl" in reply["error"]
        elif holder is None:
            assert reply.keys() == {"ok", "id"}
            self.add(reply["id"], key, dedup)
        elif policy == "reject":
            assert holder.id in reply["error"]
        elif policy in ("keep", "extend"):
            action = "kept" if policy == "keep" else "extended"
            said = {"ok": True, "id": holder.id, "existing": True}
            assert reply == {**said, "conflict": {"action": action, "holder": holder.id}}
            if policy == "extend" and not (holder.state not in UNFINISHED and holder.until is None):
                holder.until = self.driver.now + dedup["ttl"]
        else:
            action = "replaced" if policy == "replace" else "superseded"
            assert (reply["conflict"], "existing" in reply) == (
                {"action": action, "holder": holder.id},
                False,
            )
            self.add(reply["id"], key, dedup)
            self.give_way(holder, self.jobs[-1], stop=policy == "supersede")

    def add(self, job_id: str, key: str, dedup: dict[str, Any]) -> None:
        job = Job(job_id, key, "waiting")
        if "ttl" in dedup:
            job.until, job.states = self.driver.now + dedup["ttl"], job.states | {"completed", "failed"}
        job.states = frozenset(dedup.get("states", job.states))
        for other in self.jobs:
            other.holds &= other.key != key
        self.jobs.append(job)

    def give_way(self, holder: Job, new: Job, *, stop: bool) -> None:
        if holder.state in ("waiting", "delayed", "waiting-children"):
            holder.state, new.after = "gone", holder.after
        elif holder.state == "active" and stop:
            holder.stopping, new.after = True, holder
        if new.after is not None:
            new.state = "waiting-children"

    @rule(times=st.integers(1, 3))
    def pull(self, times: int) -> None:
        for _ in range(times):
            pulled = self.driver.ask(cmd="PULL", queue="q", **WORKER)
            ready = [job for job in self.jobs if job.state == "waiting"]
            assert (pulled["job"] is None) == (not ready)
            if pulled["job"] is not None:
                (job,) = [job for job in ready if job.id == pulled["job"]["id"]]
                job.state, job.token = "active", pulled["token"]

    @precondition(lambda self: any(job.state == "active" for job in self.jobs))
    @rule(data=st.data(), how=st.sampled_from(["ACK", "ACK", "retry", "die"]))
    def end_one(self, data: st.DataObject, how: str) -> None:
        self.end(data.draw(st.sampled_from([job for job in self.jobs if job.state == "active"])), how)

    @rule(how=st.sampled_from(["ACK", "die"]))
    def run_all(self, how: str) -> None:
        """What waits runs and ends, so that there are enough jobs that have ended."""
        self.pull(3)
        for job in [job for job in self.jobs if job.state == "active"]:
            self.end(job, how)

    def end(self, job: Job, how: str) -> None:
        command = "ACK" if how == "ACK" else "FAIL"
        extra = {} if command == "ACK" else {"unrecoverable": how == "die"}
        self.driver.ask(cmd=command, id=job.id, token=job.token, **extra)
        if job.stopping:
            job.state = "cancelled"
        elif how == "retry":
            job.state = str(self.driver.state(job.id))
            assert job.state in ("waiting", "failed")  # of an attempt too many
        else:
            job.state = "completed" if how == "ACK" else "failed"
        for other in self.jobs:
            if other.after is job and job.state not in UNFINISHED:
                other.after, other.state = None, "waiting" if other.state != "gone" else "gone"

    @precondition(lambda self: any(job.state == "waiting" for job in self.jobs))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from([job for job in self.jobs if job.state == "waiting"]))
        assert self.driver.ask(cmd="Cancel", id=job.id)["ok"]
        job.state = "gone"

    @rule(ms=st.sampled_from([1, 499, 10_000]))
    def wait(self, ms: int) -> None:
        self.driver.tick(self.driver.now + ms)
        self.driver.commit()

    @rule()
    def maintenance(self) -> None:
        """All keys whose time is over are forgotten, and no others."""
        self.driver.tick(self.driver.now + 11_000)
        self.driver.commit()
        held = {key for key in KEYS if (job := self.holder(key)) is not None and job.state not in UNFINISHED}
        found = self.driver.rows("select key from records where kind = 'key'")
        assert {key.removeprefix("q/") for (key,) in found} == held

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @invariant()
    def the_holder_is_known(self) -> None:
        for key in KEYS if hasattr(self, "jobs") else ():
            job = self.holder(key)
            found = self.driver.ask(cmd="GetDeduplicationJobId", queue="q", deduplicationId=key)
            assert found["data"]["jobId"] == (None if job is None else job.id)


TestUnique = UniqueMachine.TestCase
TestUnique.settings = settings(max_examples=budget(20, 500), stateful_step_count=30, deadline=None)
