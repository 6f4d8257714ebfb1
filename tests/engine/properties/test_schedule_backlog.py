"""A schedule whose runs wait for each other, through random lives with crashes.

Each due time has one run, none runs beside another, and none is lost, whether the shard or the whole server
was away.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from engine.shard_driver import START, Driver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

TIMES = st.one_of(st.integers(0, 50), st.integers(50, 2000))
BOUND = 1000  # more than comes together here


class Backlog(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.driver = Driver(str(self.folder / "shard.db"))
        self.every = 0
        self.active: tuple[str, str] | None = None  # id and token

    def teardown(self) -> None:
        self.driver.close()
        shutil.rmtree(self.folder)

    @initialize(every=st.sampled_from((100, 300, 1000)), attempts=st.integers(1, 2))
    def begin(self, every: int, attempts: int) -> None:
        self.every = every
        policy = {"overlap": "queue", "onMissed": "all", "maxBacklog": BOUND}
        options = {"maxAttempts": attempts, "backoff": 70}
        command = {"cmd": "Cron", "name": "c", "queue": "q", "repeatEvery": every, "jobOptions": options}
        assert self.driver.ask(**command, **policy)["ok"]

    @rule(passed=TIMES)
    def wait(self, passed: int) -> None:
        self._advance(passed, commit=True)

    @rule()
    def take(self) -> None:
        if self.active is None:
            reply = self.driver.ask(cmd="PULL", queue="q", owner="w", lockTtl=10_000_000)
            if reply["job"] is not None:
                self.active = reply["job"]["id"], reply["token"]

    @rule(fails=st.booleans())
    def end(self, fails: bool) -> None:
        if self.active is not None:
            (job, token), self.active = self.active, None
            verb = {"cmd": "FAIL", "error": "e"} if fails else {"cmd": "ACK"}
            assert self.driver.ask(id=job, token=token, **verb)["ok"]

    @rule(passed=TIMES, down=st.booleans())
    def crash(self, passed: int, down: bool) -> None:
        """What happens in that time is lost, with the shard or the whole server."""
        self._advance(passed, commit=False)
        if down:
            self.driver.epoch += "+"
        self.driver.restart()
        self._advance(0, commit=True)

    @rule()
    def set_again(self) -> None:
        """As every start of a program does."""
        cron = self.driver.ask(cmd="CronGet", name="c")["cron"]
        fields = ("name", "queue", "repeatEvery", "overlap", "onMissed", "maxBacklog", "jobOptions")
        assert self.driver.ask(cmd="Cron", **{name: cron[name] for name in fields})["ok"]

    def _advance(self, passed: int, *, commit: bool) -> None:
        driver, to = self.driver, self.driver.now + passed
        while (at := driver.shard.engine.next_deadline()) <= to:
            driver.tick(max(at, driver.now))
            if commit:
                driver.commit()
        driver.now = to
        if commit:
            driver.commit()

    @invariant()
    def each_time_has_one_run(self) -> None:
        if not self.every:
            return
        self._advance(0, commit=True)
        driver = self.driver
        cron = driver.ask(cmd="CronGet", name="c")["cron"]
        assert cron["executions"] == (driver.now - START) // self.every
        jobs = driver.ask(cmd="GetJobs", queue="q", limit=1000)["jobs"]
        live = [job for job in jobs if job["state"] in ("waiting", "delayed", "active")]
        backlog = cron.get("backlog", 0)
        assert len(jobs) + backlog == cron["executions"]
        assert len(live) <= 1
        assert live or not backlog


def test_runs_that_wait_for_each_other() -> None:
    run_state_machine_as_test(Backlog, settings=settings(stateful_step_count=30))  # type: ignore[no-untyped-call]
