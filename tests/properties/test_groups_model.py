"""Groups against a naive model: every pull may get exactly what the rules say, over time and restarts.

For version 2 the model knows the job.  For version 3 it knows which groups are free; that these take turns
has tests of its own (`test_groups.py`).
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from typing import Any

import msgpack
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from properties.shard_driver import Driver

NAMES = ["a", "b", "c"]
WORKER = {"owner": "w", "lockTtl": 86_400_000}


@dataclass(eq=False)
class Job:
    id: str
    group: str | None
    priority: int
    lifo: bool
    run_at: int
    number: int
    active: bool = False
    token: str = ""

    def in_queue(self) -> tuple[int, ...]:
        rest = (0, -self.number) if self.lifo else (1, self.run_at, self.number)
        return (-self.priority, *rest)

    def in_group(self) -> tuple[int, ...]:
        return (self.priority, self.run_at, self.number)


@dataclass
class Group:
    paused: bool = False
    concurrency: int | None = None
    rate: tuple[int, int] | None = None
    held_until: int = 0
    window_until: int = 0
    started: int = 0


@dataclass
class Model:
    jobs: list[Job] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=lambda: {name: Group() for name in NAMES})

    def active(self, name: str) -> int:
        return sum(job.active for job in self.jobs if job.group == name)

    def free(self, name: str, rule: dict[str, Any] | None, version: int, now: int) -> bool:
        group, asked = self.groups[name], rule or {}
        most = group.concurrency or asked.get("concurrency") or (1 if version == 2 else None)
        if group.paused or now < group.held_until or (most is not None and self.active(name) >= most):
            return False
        rate = self.rate(group, asked)
        return rate is None or now >= group.window_until or group.started < rate[0]

    def rate(self, group: Group, asked: dict[str, Any]) -> tuple[int, int] | None:
        limit = asked.get("limit")
        return group.rate or ((limit["max"], limit["duration"]) if limit else None)

    def start(self, job: Job, rule: dict[str, Any] | None, now: int) -> None:
        job.active = True
        if job.group is None:
            return
        group = self.groups[job.group]
        rate = self.rate(group, rule or {})
        if rate is not None:
            if now >= group.window_until:
                group.window_until, group.started = now + rate[1], 0
            group.started += 1

    def may_be_next(self, rule: dict[str, Any] | None, version: int, now: int) -> list[Job]:
        """The jobs that a pull may get; empty: none."""
        ready = [job for job in self.jobs if not job.active and job.run_at <= now]
        free = {name for name in NAMES if self.free(name, rule, version, now)}
        allowed = [job for job in ready if job.group is None or job.group in free]
        if version == 2:
            return sorted(allowed, key=Job.in_queue)[:1]
        alone = [job for job in allowed if job.group is None]
        if alone:
            return sorted(alone, key=Job.in_queue)[:1]
        firsts = [sorted((job for job in allowed if job.group == name), key=Job.in_group) for name in free]
        return [jobs[0] for jobs in firsts if jobs]


names = st.sampled_from(NAMES)
rules = st.one_of(
    st.none(),
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "concurrency": st.integers(1, 2),
            "limit": st.fixed_dictionaries(
                {"max": st.integers(1, 2), "duration": st.sampled_from([50, 500])}
            ),
        },
    ),
)
versions = st.sampled_from([2, 3])
settings_of_groups = st.one_of(
    st.tuples(st.just("concurrency"), st.integers(1, 3)),
    st.tuples(st.just("rate"), st.tuples(st.integers(1, 3), st.sampled_from([40, 400]))),
    st.tuples(st.just("held"), st.integers(1, 300)),
    st.tuples(st.just("paused"), st.none()),
)


class GroupsMachine(RuleBasedStateMachine):
    """One queue.  Connection 2 speaks version 2, connection 3 version 3."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.driver = Driver(f"{self.folder}/q.db")
        self.driver.versions = {2: 2, 3: 3}
        self.model = Model()
        self.numbers = 0
        self.parked: dict[str, tuple[int, dict[str, Any] | None]] = {}
        for name in NAMES:
            self.push(name, 0, False, 0, 3)

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.close()
            shutil.rmtree(self.folder)

    @property
    def now(self) -> int:
        return self.driver.now

    def send(self, conn: int = 2, **request: Any) -> dict[str, Any]:
        """A command; polls that it serves are booked after what it does itself is."""
        fields = {name: value for name, value in request.items() if value is not None}
        answers = self.driver.execute(conn, msgpack.packb({**fields, "reqId": "me"}))
        self.driver.commit()
        (mine,) = [reply for _, reply in answers if reply.get("reqId") == "me"]
        assert mine["ok"], mine
        self.late = [reply for _, reply in answers if reply.get("reqId") != "me"]
        return mine

    def book(self, replies: list[dict[str, Any]]) -> None:
        """Parked pulls were answered."""
        for reply in replies:
            version, asked = self.parked.pop(reply["reqId"])
            self.take(reply, version, asked)

    def take(self, reply: dict[str, Any], version: int, asked: dict[str, Any] | None) -> None:
        expected = self.model.may_be_next(asked, version, self.now)
        if reply["job"] is None:
            assert expected == []
            return
        (job,) = [job for job in expected if job.id == reply["job"]["id"]]
        job.token = reply["token"]
        self.model.start(job, asked, self.now)

    @rule(
        group=st.one_of(st.none(), names, names, names),
        priority=st.sampled_from([0, 0, 0, 1, 5]),
        lifo=st.sampled_from([False, False, True]),
        delay=st.sampled_from([0, 0, 0, 30]),
        count=st.integers(1, 3),
    )
    def pushed(self, group: str | None, priority: int, lifo: bool, delay: int, count: int) -> None:
        self.push(group, priority, lifo, delay, count)

    def push(self, group: str | None, priority: int, lifo: bool, delay: int, count: int) -> None:
        entry = {"data": 0, "groupId": group, "priority": priority, "lifo": lifo, "delay": delay}
        ids = self.send(cmd="PUSHB", queue="q", jobs=[entry] * count)["ids"]
        for job_id in ids:
            self.numbers += 1
            self.model.jobs.append(Job(job_id, group, priority, lifo, self.now + delay, self.numbers))
        self.book(self.late)

    @rule(version=versions, asked=rules, times=st.integers(1, 4))
    def pull(self, version: int, asked: dict[str, Any] | None, times: int) -> None:
        for _ in range(times):
            self.take(self.send(version, cmd="PULL", queue="q", group=asked, **WORKER), version, asked)

    @rule(version=versions, asked=rules)
    def park(self, version: int, asked: dict[str, Any] | None) -> None:
        if self.model.may_be_next(asked, version, self.now):
            return
        self.numbers += 1
        pull = {"cmd": "PULL", "queue": "q", "timeout": 60_000, "reqId": f"p{self.numbers}", **WORKER}
        if asked is not None:
            pull["group"] = asked
        assert self.driver.execute(version, msgpack.packb(pull)) == []
        self.parked[f"p{self.numbers}"] = (version, asked)

    def some_active(self, data: st.DataObject) -> Job:
        return data.draw(st.sampled_from([job for job in self.model.jobs if job.active]))

    @precondition(lambda self: any(job.active for job in self.model.jobs))
    @rule(data=st.data(), how=st.sampled_from(["ACK", "ACK", "FAIL"]), times=st.integers(1, 3))
    def end(self, data: st.DataObject, how: str, times: int) -> None:
        active = [job for job in self.model.jobs if job.active]
        for job in data.draw(st.permutations(active))[:times]:
            last = {"unrecoverable": True} if how == "FAIL" else {}
            self.send(cmd=how, id=job.id, token=job.token, **last)
            self.model.jobs.remove(job)
            self.book(self.late)

    @rule(name=names, setting=settings_of_groups)
    def configure(self, name: str, setting: tuple[str, Any]) -> None:
        what, value = setting
        group, to = self.model.groups[name], {"queue": "q", "groupId": name}
        if what == "concurrency":
            group.concurrency = value
            self.send(cmd="SetGroupConcurrency", concurrency=value, **to)
        elif what == "rate":
            group.rate = value
            self.send(cmd="SetGroupRateLimit", max=value[0], duration=value[1], **to)
        elif what == "held":
            group.held_until = self.now + value
            self.send(cmd="RateLimitGroup", duration=value, **to)
        elif what == "paused":
            assert self.send(cmd="PauseGroup", **to)["data"] == {"changed": not group.paused}
            group.paused = True
        self.book(self.late)

    @rule(name=names)
    def relieve(self, name: str) -> None:
        """Take all limits of a group away."""
        group, to = self.model.groups[name], {"queue": "q", "groupId": name}
        changed, group.paused = group.paused, False
        assert self.send(cmd="ResumeGroup", **to)["data"] == {"changed": changed}
        self.book(self.late)
        removed, group.concurrency = group.concurrency is not None, None
        assert self.send(cmd="RemoveGroupConcurrency", **to)["data"] == {"removed": int(removed)}
        self.book(self.late)
        removed, group.rate = group.rate is not None, None
        assert self.send(cmd="RemoveGroupRateLimit", **to)["data"] == {"removed": int(removed)}
        self.book(self.late)

    @rule(wait=st.integers(1, 200))
    def wait(self, wait: int) -> None:
        """Time passes as for a server that sleeps: it wakes at its own deadlines only."""
        end = self.now + wait
        while (at := min(self.driver.shard.engine.next_deadline(), end)) <= end:
            self.book([reply for _, reply in self.driver.tick(max(at, self.now))])
            self.driver.commit()
            if at == end:
                break
        self.nobody_waits_in_vain()

    @rule()
    def restart(self) -> None:
        self.driver.restart()
        self.parked.clear()

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        if hasattr(self, "parked"):
            for version, asked in self.parked.values():
                assert self.model.may_be_next(asked, version, self.now) == []

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "model"):
            return
        queued = 0
        for name in NAMES:
            mine = [job for job in self.model.jobs if job.group == name]
            queued += (waiting := sum(not job.active for job in mine))
            for command, count in (
                ("GetGroupJobsCount", waiting),
                ("GetGroupActiveCount", len(mine) - waiting),
            ):
                assert self.send(cmd=command, queue="q", groupId=name)["data"] == {"count": count}
        assert self.send(cmd="GetGroupsJobsCount", queue="q")["data"] == {"count": queued}

    @invariant()
    def idle_groups_are_forgotten(self) -> None:
        queue = self.driver.shard.engine.state.queues.get("q") if hasattr(self, "driver") else None
        groups = queue.gate.groups if queue is not None and queue.gate is not None else None
        for name, group in ({} if groups is None else groups.by_id).items():
            known = self.model.groups[name]
            limited = known.paused or known.concurrency or known.rate
            assert limited or any(job.group == name for job in self.model.jobs) or group.timer


TestGroups = GroupsMachine.TestCase
TestGroups.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
