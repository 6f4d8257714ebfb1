"""Groups against a naive model: every pull may get exactly what the rules say, over time and restarts.

For version 2 the model knows the job.  For version 3 it knows which groups are free, and that one which was
free all the time is not passed over twice.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgpack
from engine.shard_driver import Driver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.budget import budget

NAMES = ["a", "b", "c"]
RETRIES = {"maxAttempts": 100, "backoff": 0}
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
    holder: int = 0  # the connection that pulled it last

    def in_queue(self) -> tuple[int, ...]:
        rest = (0, -self.number) if self.lifo else (1, self.run_at, self.number)
        return (-self.priority, *rest)

    def in_group(self) -> tuple[int, ...]:
        return (self.priority, self.number)


@dataclass
class Group:
    paused: bool = False
    concurrency: int | None = None
    rate: tuple[int, int] | None = None
    held_until: int = 0
    window_until: int = 0
    started: int = 0

    def window_end(self) -> int:
        return max(self.held_until, self.window_until)

    def limited(self, now: int) -> bool:
        """Whether something of it must outlive its jobs, and a restart."""
        return self.paused or bool(self.concurrency or self.rate) or self.window_end() > now


@dataclass
class Turns:
    """Who was served when, and has been free since when, by pulls of version 3 that ask for the same."""

    served: dict[str, int] = field(default_factory=dict)
    free_since: dict[str, int] = field(default_factory=dict)

    def look(self, free: set[str], step: int) -> None:
        self.free_since = {name: self.free_since.get(name, step) for name in free}

    def passed_over(self, served: str) -> list[str]:
        """The groups whose turn it was before ``served`` had another one."""
        before = self.served.get(served)
        return [
            name
            for name, since in self.free_since.items()
            if before is not None and since <= before and self.served.get(name, -1) < before
        ]


@dataclass
class Model:
    jobs: list[Job] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=lambda: {name: Group() for name in NAMES})

    def active(self, name: str) -> int:
        return sum(job.active for job in self.jobs if job.group == name)

    def free(self, name: str, rule: dict[str, Any] | None, version: int, now: int) -> bool:
        group, asked = self.groups[name], rule or {}
        usual = asked.get("concurrency") or (1 if version == 2 else None)
        most = usual and (group.concurrency or usual)
        if group.paused or now < group.held_until or (most is not None and self.active(name) >= most):
            return False
        rate = self.rate(group, asked, version)
        return rate is None or now >= group.window_until or group.started < rate[0]

    def rate(self, group: Group, asked: dict[str, Any], version: int) -> tuple[int, int] | None:
        limit = asked.get("limit")
        if limit:
            return group.rate or (limit["max"], limit["duration"])
        return group.rate if version == 2 else None

    def start(self, job: Job, rule: dict[str, Any] | None, version: int, now: int) -> None:
        job.active = True
        if job.group is None:
            return
        group = self.groups[job.group]
        rate = self.rate(group, rule or {}, version)
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

    def queued(self, name: str | None) -> int:
        """The jobs of a group, or of all, that are not active."""
        groups = NAMES if name is None else [name]
        return sum(job.group in groups and not job.active for job in self.jobs)


names = st.sampled_from(NAMES)
few, many = {"max": 1, "duration": 50}, {"max": 2, "duration": 500}
rules = st.sampled_from(
    [None] * 5
    + [{"concurrency": 1}, {"concurrency": 2}, {"limit": few}, {"limit": many}]
    + [{"concurrency": 2, "limit": many}, {"concurrency": 1, "limit": few}]
)
versions = st.sampled_from([2, 3])
MAX_LANES = 8  # policies whose order the server keeps
settings_of_groups = st.sampled_from(
    [("concurrency", most) for most in (1, 2, 2, 3, 3)]
    + [("rate", rate) for rate in ((1, 40), (2, 40), (2, 400), (3, 400))]
    + [("held", 30), ("held", 200), ("paused", None)]
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
        self.forget_turns()
        for name in NAMES:
            self.push(name, 0, False, 0, 3)

    def forget_turns(self) -> None:
        self.steps = 0
        self.turns: dict[str, Turns] = {}
        self.policies: set[str] = set()
        self.asked: dict[str, dict[str, Any] | None] = {}

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.close()
            shutil.rmtree(self.folder)

    @property
    def now(self) -> int:
        return self.driver.now

    def send(self, conn: int = 2, refused: bool = False, **request: Any) -> dict[str, Any]:
        """A command; polls that it serves are booked after what it does itself is."""
        fields = {name: value for name, value in request.items() if value is not None}
        answers = self.driver.execute(conn, msgpack.packb({**fields, "reqId": "me"}))
        self.driver.commit()
        (mine,) = [reply for _, reply in answers if reply.get("reqId") == "me"]
        assert mine["ok"] or refused, mine
        self.late = [reply for _, reply in answers if reply.get("reqId") != "me"]
        return mine

    def book(self, replies: list[dict[str, Any]]) -> None:
        """Parked pulls were answered."""
        for reply in replies:
            version, asked = self.parked.pop(reply["reqId"])
            self.take(reply, version, asked)

    def take(self, reply: dict[str, Any], version: int, asked: dict[str, Any] | None) -> None:
        expected = self.model.may_be_next(asked, version, self.now)
        self.policies.add(f"{version} {asked}")
        if reply["job"] is None:
            assert expected == []
            return
        (job,) = [job for job in expected if job.id == reply["job"]["id"]]
        job.token, job.holder = reply["token"], version
        if version == 3 and job.group is not None:
            self.serve(job.group, asked)
        self.model.start(job, asked, version, self.now)
        self.look_at_turns()

    def serve(self, name: str, asked: dict[str, Any] | None) -> None:
        """A group has its turn."""
        self.look_at_turns()
        turns = self.turns.setdefault(str(asked), Turns())
        if len(self.policies) <= MAX_LANES:
            assert turns.passed_over(name) == []
        turns.served[name] = self.steps
        self.asked[str(asked)] = asked

    def look_at_turns(self) -> None:
        """Something has happened."""
        self.steps += 1
        for key, turns in self.turns.items():
            first = self.model.may_be_next(self.asked.get(key), 3, self.now)
            turns.look({job.group for job in first if job.group is not None}, self.steps)

    @rule(
        group=st.one_of(st.none(), names, names, names),
        priority=st.sampled_from([0, 0, 0, 1, 5]),
        lifo=st.sampled_from([False, False, True]),
        delay=st.sampled_from([0, 0, 0, 30]),
        count=st.integers(1, 3),
        most=st.one_of(st.none(), st.none(), st.integers(1, 6)),
    )
    def pushed(
        self, group: str | None, priority: int, lifo: bool, delay: int, count: int, most: int | None
    ) -> None:
        self.push(group, priority, lifo, delay, count, most)

    def push(
        self, group: str | None, priority: int, lifo: bool, delay: int, count: int, most: int | None = None
    ) -> None:
        entry = {"data": 0, "groupId": group, "priority": priority, "lifo": lifo, "delay": delay}
        if most is not None and group is not None:
            entry["groupMaxSize"] = most
            if self.model.queued(group) + count > most:
                reply = self.send(refused=True, cmd="PUSHB", queue="q", jobs=[entry] * count)
                assert reply["error"] == f"Group {group} has reached its maximum size of {most}"
                return
        ids = self.send(cmd="PUSHB", queue="q", jobs=[entry | RETRIES] * count)["ids"]
        for job_id in ids:
            self.numbers += 1
            self.model.jobs.append(Job(job_id, group, priority, lifo, self.now + delay, self.numbers))
        self.book(self.late)

    @rule(version=versions, asked=rules, times=st.sampled_from([1, 2, 4]))
    def pull_some(self, version: int, asked: dict[str, Any] | None, times: int) -> None:
        self.pull(version, asked, times)

    @rule(version=versions, asked=rules)
    def pull_all(self, version: int, asked: dict[str, Any] | None) -> None:
        self.pull(version, asked, len(self.model.jobs) + 1)

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
    @rule(data=st.data(), how=st.sampled_from(["ACK", "ACK", "bury", "retry"]), times=st.integers(1, 3))
    def end(self, data: st.DataObject, how: str, times: int) -> None:
        active = [job for job in self.model.jobs if job.active]
        for job in data.draw(st.permutations(active))[:times]:
            if how == "ACK":
                self.send(cmd="ACK", id=job.id, token=job.token)
            else:
                self.send(cmd="FAIL", id=job.id, token=job.token, unrecoverable=how == "bury")
            if how == "retry":
                job.active, job.run_at = False, self.now
            else:
                self.model.jobs.remove(job)
            self.book(self.late)
            self.look_at_turns()

    @precondition(lambda self: any(not job.active for job in self.model.jobs))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from([job for job in self.model.jobs if not job.active]))
        self.send(cmd="Cancel", id=job.id)
        self.model.jobs.remove(job)
        self.book(self.late)

    @rule(kind=st.sampled_from(["disconnect"] * 3 + ["restart"] * 3 + ["obliterate", "idle"]), data=st.data())
    def upheaval(self, kind: str, data: st.DataObject) -> None:
        """One rule for all that takes much away, so that there is enough left for the others."""
        if kind == "disconnect":
            self.disconnect(data.draw(versions))
        elif kind == "idle":
            self.nothing_is_left_of_idle_groups(data.draw(names))
        elif kind == "restart":
            self.restart()
        else:
            self.obliterate()

    def disconnect(self, version: int) -> None:
        """Its polls end, and its jobs return to their places."""
        self.parked = {key: poll for key, poll in self.parked.items() if poll[0] != version}
        replies = [reply for _, reply in self.driver.disconnect(version)]
        for job in self.model.jobs:
            job.active = job.active and job.holder != version
        self.book(replies)
        self.driver.commit()

    def obliterate(self) -> None:
        self.send(cmd="Obliterate", queue="q")
        self.model = Model()
        self.forget_turns()

    def nothing_is_left_of_idle_groups(self, name: str) -> None:
        """When the last job is done, no limit is set, and all windows have passed."""
        self.send(cmd="Drain", queue="q")
        self.model.jobs = [job for job in self.model.jobs if job.active]
        for job in list(self.model.jobs):
            self.send(cmd="ACK", id=job.id, token=job.token)
            self.model.jobs.remove(job)
        for other in NAMES:
            self.relieve(other)
        self.parked.clear()
        self.driver.disconnect(2)
        self.driver.disconnect(3)
        self.wait(1000)
        self.push(name, 0, False, 0, 1)
        self.pull(3, None, 1)
        self.send(cmd="ACK", id=self.model.jobs[0].id, token=self.model.jobs[0].token)
        self.model.jobs.clear()
        self.wait(1000)
        assert self.records() == set()

    def records(self) -> set[str]:
        found = self.driver.rows("select key from records where kind = 'group'")
        return {key.partition("/")[2] for (key,) in found}

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

    def restart(self) -> None:
        self.driver.restart()
        self.parked.clear()
        self.forget_turns()
        for job in self.model.jobs:  # nobody is connected any more
            job.holder = 0

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
            group = self.model.groups[name]
            left = group.window_end() - self.now
            rate = group.rate and dict(zip(("max", "duration"), group.rate, strict=True))
            for command, told in (
                ("GetGroupJobsCount", {"count": waiting}),
                ("GetGroupActiveCount", {"count": len(mine) - waiting}),
                ("GetGroupConcurrency", {"concurrency": group.concurrency}),
                ("GetGroupRateLimit", {"limit": rate}),
                ("GetGroupRateLimitTtl", {"ttl": left if left > 0 else -2}),
                ("IsGroupPaused", {"paused": group.paused}),
            ):
                assert self.send(cmd=command, queue="q", groupId=name)["data"] == told, command
        assert self.send(cmd="GetGroupsJobsCount", queue="q")["data"] == {"count": queued}

    @invariant()
    def priorities_are_counted(self) -> None:
        if not hasattr(self, "model"):
            return
        queued = [job for job in self.model.jobs if not job.active]
        ready = [job for job in queued if job.run_at <= self.now]
        counts = self.send(3, cmd="GetJobCounts", queue="q")["counts"]
        prioritized = sum(job.priority > 0 for job in ready)
        shown = counts["waiting"], counts["prioritized"], counts["delayed"]
        assert shown == (len(ready) - prioritized, prioritized, len(queued) - len(ready))
        told = self.send(cmd="GetCountsPerPriority", queue="q")["counts"]
        assert told == {str(priority): n for priority, n in Counter(job.priority for job in queued).items()}

    @invariant()
    def what_limits_a_group_is_stored(self) -> None:
        if hasattr(self, "model"):
            limited = {name for name, group in self.model.groups.items() if group.limited(self.now)}
            assert limited <= self.records()

    @invariant()
    def idle_groups_are_forgotten(self) -> None:
        queue = self.driver.shard.engine.state.queues.get("q") if hasattr(self, "driver") else None
        groups = queue.limits.groups if queue is not None and queue.limits is not None else None
        for name, group in ({} if groups is None else groups.by_id).items():
            known = self.model.groups[name]
            limited = known.paused or known.concurrency or known.rate
            assert limited or any(job.group == name for job in self.model.jobs) or group.timer


TestGroups = GroupsMachine.TestCase
TestGroups.settings = settings(max_examples=budget(30, 1000), stateful_step_count=40)
