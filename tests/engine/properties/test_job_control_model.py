"""Jobs that are taken out of their course, against a list that is sorted at every look."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.shard_driver import START, Driver
from engine.watched_job import watched_jobs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.budget import budget

DELAYS = st.sampled_from([0, 1, 50, 5000])
PRIORITIES = st.sampled_from([-3, 0, 0, 7])


@dataclass
class Known:
    """What the model knows of a job."""

    number: int
    id: str
    priority: int
    lifo: bool
    run_at: int
    data: int
    state: str = "queued"  # or active, failed, completed, cancelled, gone
    until: int | None = None  # of an active one: when it ends as cancelled, as somebody asked for that

    def place(self) -> tuple[int, ...]:
        if self.lifo:
            return (-self.priority, 0, -self.number)
        return (-self.priority, 1, self.run_at, self.number)


class JobControl(RuleBasedStateMachine):
    """One queue and one client."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.watch = watched_jobs()
        self.watch.__enter__()
        self.driver = Driver(str(Path(self.folder.name) / "shard.db"))
        self.jobs: list[Known] = []
        self.paused = False

    def teardown(self) -> None:
        self.driver.close()
        self.watch.__exit__(None, None, None)
        self.folder.cleanup()

    # -- the model ------------------------------------------------------------------------------

    def name(self, job: Known) -> str:
        if job.state == "queued":
            return "delayed" if job.run_at > self.driver.now else "waiting"
        return {"gone": "unknown"}.get(job.state, job.state)

    def ready(self) -> list[Known]:
        return sorted((job for job in self.jobs if self.name(job) == "waiting"), key=Known.place)

    def any(self, data: st.DataObject) -> Known:
        return data.draw(st.sampled_from(self.jobs))

    def ask(self, ok: bool, **request: Any) -> dict[str, Any]:
        answer = self.driver.ask(**request)
        assert answer["ok"] == ok, (request, answer)
        return answer

    # -- the usual life -------------------------------------------------------------------------

    @initialize(count=st.integers(0, 120))
    def a_queue(self, count: int) -> None:
        """Long enough for entries of jobs that left to be cleared away."""
        for _ in range(count):
            self.push(0, False, 0)

    @rule(priority=PRIORITIES, lifo=st.booleans(), delay=DELAYS)
    def push(self, priority: int, lifo: bool, delay: int) -> None:
        number = len(self.jobs)
        fields = {"priority": priority, "lifo": lifo, "delay": delay, "data": number}
        answer = self.ask(True, cmd="PUSH", queue="q", maxAttempts=9, **fields)
        self.jobs.append(Known(number, answer["id"], priority, lifo, self.driver.now + delay, number))

    @rule()
    def pull(self) -> None:
        job = self.ask(True, cmd="PULL", queue="q")["job"]
        best = None if self.paused else next(iter(self.ready()), None)
        assert (job and (job["id"], job["data"], job["priority"])) == (
            best and (best.id, best.data, best.priority)
        )
        if best is not None:
            best.state = "active"

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        job = self.any(data)
        ended = job.state in ("active", "cancelled")
        answer = self.ask(ended, cmd="ACK", id=job.id)
        if ended:
            counts = job.state == "active" and job.until is None
            assert answer.get("data") == (None if counts else {"applied": False, "reason": "cancelled"})
        if job.state == "active":
            self.end(job, "completed")

    def end(self, job: Known, state: str) -> None:
        """An active job leaves its worker."""
        job.state, job.until = "cancelled" if job.until is not None else state, None

    @rule(ms=st.sampled_from([1, 49, 1000]))
    def time_passes(self, ms: int) -> None:
        self.driver.tick(self.driver.now + ms)
        self.driver.commit()
        for job in self.jobs:
            if job.until is not None and job.until <= self.driver.now:
                self.end(job, "cancelled")

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), interrupted=st.booleans())
    def fail(self, data: st.DataObject, interrupted: bool) -> None:
        job = self.any(data)
        ended = job.state in ("active", "cancelled")
        self.ask(ended, cmd="FAIL", id=job.id, interrupted=interrupted, unrecoverable=not interrupted)
        if job.state == "active":
            self.end(job, "queued" if interrupted else "failed")

    @rule()
    def crash(self) -> None:
        """What was answered holds; the client's unlocked jobs are still its own."""
        self.driver.close()
        self.driver = Driver(self.driver.path, now=self.driver.now, live=(1,))

    @rule()
    def pause(self) -> None:
        self.paused = not self.paused
        self.ask(True, cmd="Pause" if self.paused else "Resume", queue="q")

    # -- out of course --------------------------------------------------------------------------

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = self.any(data)
        self.ask(job.state == "queued", cmd="Cancel", id=job.id)
        if job.state == "queued":
            job.state = "gone"

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), grace=DELAYS)
    def cancel_also_when_it_runs(self, data: st.DataObject, grace: int) -> None:
        job = self.any(data)
        live = job.state in ("queued", "active")
        answer = self.ask(live, cmd="Cancel", id=job.id, running=True, grace=grace)
        if live:
            assert answer.get("running") == (True if job.state == "active" and grace else None)
        if job.state == "queued":
            job.state = "gone"
        elif job.state == "active":
            end = self.driver.now + grace
            job.until = end if job.until is None else min(job.until, end)
            if not grace:
                self.end(job, "cancelled")

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), priority=PRIORITIES, lifo=st.sampled_from([None, True, False]))
    def change_priority(self, data: st.DataObject, priority: int, lifo: bool | None) -> None:
        job = self.any(data)
        self.ask(job.state == "queued", cmd="ChangePriority", id=job.id, priority=priority, lifo=lifo)
        if job.state == "queued":
            job.priority = priority
            job.lifo = job.lifo if lifo is None else lifo

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), delay=DELAYS, command=st.sampled_from(["MoveToDelayed", "ChangeDelay"]))
    def delay(self, data: st.DataObject, delay: int, command: str) -> None:
        job = self.any(data)
        movable = job.state in ("queued", "active") and job.until is None
        self.ask(movable, cmd=command, id=job.id, delay=delay)
        if movable:
            job.state, job.run_at = "queued", self.driver.now + delay

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        job = self.any(data)
        delayed = self.name(job) == "delayed"
        self.ask(delayed, cmd="Promote", id=job.id)
        if delayed:
            job.run_at = self.driver.now

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def move_to_wait(self, data: st.DataObject) -> None:
        job = self.any(data)
        movable = job.state not in ("completed", "gone") and job.until is None
        self.ask(movable, cmd="MoveToWait", id=job.id)
        if movable and self.name(job) != "waiting":
            job.state, job.run_at = "queued", self.driver.now

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        job = self.any(data)
        live = job.state in ("queued", "active")
        self.ask(live, cmd="Discard", id=job.id)
        if live:
            self.end(job, "failed")

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), value=st.integers(1000, 2000))
    def update(self, data: st.DataObject, value: int) -> None:
        job = self.any(data)
        live = job.state in ("queued", "active")
        self.ask(live, cmd="Update", id=job.id, data=value)
        if live:
            job.data = value

    @rule(count=st.sampled_from([None, 1, 3]))
    def promote_jobs(self, count: int | None) -> None:
        delayed = [job for job in self.jobs if self.name(job) == "delayed"][:count]
        assert self.ask(True, cmd="PromoteJobs", queue="q", count=count)["count"] == len(delayed)
        for job in delayed:
            job.run_at = self.driver.now

    @rule()
    def drain(self) -> None:
        queued = [job for job in self.jobs if job.state == "queued"]
        assert self.ask(True, cmd="Drain", queue="q")["count"] == len(queued)
        for job in queued:
            job.state = "gone"

    # -- what must hold -------------------------------------------------------------------------

    @invariant()
    def every_job_is_where_the_model_has_it(self) -> None:
        now = {job.id: self.name(job) for job in self.jobs[-40:]}
        assert {job_id: self.ask(True, cmd="GetState", id=job_id)["state"] for job_id in now} == now

    @invariant()
    def the_counts_are_right(self) -> None:
        counts = Counter(self.name(job) for job in self.jobs)
        counts["failed"] += counts["cancelled"]
        answer = self.ask(True, cmd="GetJobCounts", queue="q")["counts"]
        for name in ("waiting", "delayed", "active", "completed", "failed"):
            assert answer[name] == counts[name], name
        priorities = Counter(str(job.priority) for job in self.jobs if job.state == "queued")
        assert self.ask(True, cmd="GetCountsPerPriority", queue="q")["counts"] == priorities

    @invariant()
    def nothing_is_kept_for_jobs_that_left(self) -> None:
        state = self.driver.shard.engine.state
        true = sum(1 for job in self.jobs if self.name(job) == "delayed")
        assert len(state.delays) <= 2 * true + 65


JobControl.TestCase.settings = settings(
    max_examples=budget(15, 500),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestJobControl = JobControl.TestCase


def test_delays_that_were_taken_back_do_not_pile_up() -> None:
    driver = Driver()
    for _ in range(1000):
        job_id = driver.ask(cmd="PUSH", queue="q", delay=86_400_000)["id"]
        driver.ask(cmd="ChangeDelay", id=job_id, delay=80_000_000)
        driver.ask(cmd="Cancel", id=job_id)
    state = driver.shard.engine.state
    assert len(state.delays) <= 66
    driver.tick(START + 90_000_000)
    assert state.delays.entries == []
    driver.close()
