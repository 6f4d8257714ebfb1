"""A shard with schedules and a naive model of them, through random lives with crashes and restarts.

After every step both must agree on all schedules and on the jobs that these have pushed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from engine.shard_driver import START, Driver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

QUEUES = ("q", "r")
NAMES = st.sampled_from(("a", "b", "c"))
TIMES = st.one_of(st.integers(0, 50), st.integers(50, 2000))


@dataclass
class Schedule:
    name: str
    queue: str
    every: int
    alone: bool  # no overlap
    limit: int
    skip: bool
    next: int
    executions: int = 0


@dataclass
class Model:
    now: int = START
    schedules: dict[str, Schedule] = field(default_factory=dict)
    jobs: list[tuple[str, str, bool]] = field(default_factory=list)  # queue, name, holds the key

    def put(self, new: Schedule, immediately: bool) -> None:
        old = self.schedules.get(new.name)
        if old is not None and old.queue == new.queue:
            new.executions = old.executions
            if old.every == new.every:
                new.next = old.next
        elif immediately:
            new.next = self.now
        self.schedules[new.name] = new

    def run_late(self, down: bool) -> None:
        """All that is due runs once; what was missed while the whole server was down may be left out."""
        for schedule in list(self.schedules.values()):
            if schedule.next <= self.now:
                self._run(schedule, left_out=down and schedule.skip and schedule.next < self.now)

    def advance(self, to: int) -> None:
        while due := [one for one in self.schedules.values() if one.next <= to]:
            self.now = max(self.now, min(one.next for one in due))
            self.run_late(down=False)
        self.now = to

    def _run(self, one: Schedule, *, left_out: bool) -> None:
        if 0 < one.limit <= one.executions:
            del self.schedules[one.name]
            return
        if not left_out:
            one.executions += 1
            if not (one.alone and (one.queue, one.name, True) in self.jobs):
                self.jobs.append((one.queue, one.name, one.alone))
        while one.next <= self.now:
            one.next += one.every


class Schedules(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.driver = Driver(str(self.folder / "shard.db"))
        self.model = Model()

    def teardown(self) -> None:
        self.driver.close()
        shutil.rmtree(self.folder)

    @rule(
        name=NAMES,
        queue=st.sampled_from(QUEUES),
        every=st.sampled_from((100, 300, 1000)),
        alone=st.booleans(),
        limit=st.sampled_from((0, 0, 1, 3)),
        skip=st.booleans(),
        immediately=st.booleans(),
    )
    def put(
        self, name: str, queue: str, every: int, alone: bool, limit: int, skip: bool, immediately: bool
    ) -> None:
        reply = self.driver.ask(
            cmd="Cron",
            name=name,
            queue=queue,
            data=name,
            repeatEvery=every,
            preventOverlap=alone,
            maxLimit=limit,
            skipMissedOnRestart=skip,
            immediately=immediately,
        )
        assert reply["ok"]
        new = Schedule(name, queue, every, alone, limit, skip, self.model.now + every)
        self.model.put(new, immediately)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        known = self.model.schedules.pop(name, None)
        assert self.driver.ask(cmd="CronDelete", name=name)["ok"] == (known is not None)

    @rule(passed=TIMES)
    def wait(self, passed: int) -> None:
        self._advance(self.model.now + passed, commit=True)
        self.model.advance(self.model.now + passed)

    @rule(queue=st.sampled_from(QUEUES))
    def work(self, queue: str) -> None:
        job = self.driver.ask(cmd="PULL", queue=queue)["job"]
        assert (job is not None) == any(where == queue for where, _, _ in self.model.jobs)
        if job is not None:
            assert self.driver.ask(cmd="ACK", id=job["id"])["ok"]
            self.model.jobs.remove((queue, job["data"], job["uniqueKey"] is not None))

    @rule(passed=TIMES, down=st.booleans())
    def crash(self, passed: int, down: bool) -> None:
        """What happens in that time is lost, with the shard or the whole server."""
        self._advance(self.model.now + passed, commit=False)
        if down:
            self.driver.epoch += "+"
        self.driver.restart()
        self.driver.tick(self.driver.now)
        self.driver.commit()
        self.model.now += passed
        self.model.run_late(down)

    def _advance(self, to: int, *, commit: bool) -> None:
        engine = self.driver.shard.engine
        while (at := engine.next_deadline()) <= to:
            self.driver.tick(max(at, self.driver.now))
            if commit:
                self.driver.commit()
        self.driver.now = to

    @invariant()
    def schedules_agree(self) -> None:
        shown = {
            cron["name"]: (cron["queue"], cron["executions"], cron["nextRun"], cron["maxLimit"] or 0)
            for cron in self.driver.ask(cmd="CronList")["crons"]
        }
        assert shown == {
            one.name: (one.queue, one.executions, one.next, one.limit)
            for one in self.model.schedules.values()
        }

    @invariant()
    def jobs_agree(self) -> None:
        for queue in QUEUES:
            jobs = self.driver.ask(cmd="GetJobs", queue=queue, state="waiting", limit=1000)["jobs"]
            expected = Counter(name for where, name, _ in self.model.jobs if where == queue)
            assert Counter(job["data"] for job in jobs) == expected


def test_schedules_do_as_the_model_does() -> None:
    steps = 25
    run_state_machine_as_test(Schedules, settings=settings(stateful_step_count=steps))  # type: ignore[no-untyped-call]
