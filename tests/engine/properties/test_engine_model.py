"""The real shard and the naive model of it, driven side by side by the same random life.

After every step they must agree on all replies, on every job as clients see it, on counts, dead letters,
holders, and on when something happens next; at the end, on the full order of delivery.
"""

from __future__ import annotations

import copy
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import pytest
from engine.naive_model import (
    ACTIVE,
    COMPLETED,
    FAILED,
    NO_RESULT,
    QUEUED,
    Delivery,
    Exactly,
    Expected,
    Job,
    Model,
    Pushed,
)
from engine.shard_driver import EPOCH, Answer, Driver
from engine.watched_job import watched_jobs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.budget import budget

from bunqueue.model.ids import slot_of_id, slot_of_queue

QUEUES = ("a", "b", "mail.out")
OBSERVERS = {2: 1_000_000, 3: 1_000_001}  # connections of the test itself, by protocol version

# -- what may come -----------------------------------------------------------------------------------------

OPTIONS: dict[str, list[Any]] = {
    "data": [None, 0, "x", {"to": "a@b", "n": [1, 2.5, None]}],
    "name": ["resize"],
    "priority": [-5, 0, 1, 7],
    "delay": [0, 1, 40, 700, 6000],
    "lifo": [True, True, False],
    "ttl": [0, 1, 50, 5000, 60_000],
    "uniqueKey": ["k1", "k2"],
    "maxAttempts": [1, 1, 2, 4],
    "backoff": [0, 0, 1, 100, 3_000, {"type": "fixed", "delay": 500}, {"type": "exponential", "delay": 10}],
    "removeOnComplete": [True, False],
    "removeOnFail": [True, False],
    "timeout": [1, 60, 2000, 40_000],
    "durable": [True, False],
    "tags": [[], ["red", "blue"]],
}
pairs = st.one_of([st.tuples(st.just(name), st.sampled_from(values)) for name, values in OPTIONS.items()])
options = st.lists(pairs, max_size=3).map(dict)  # most jobs have few options
queues = st.sampled_from(QUEUES)
owners = st.sampled_from(["", "", "worker-1", "worker-2"])
lock_ttls = st.sampled_from([1, 300, 4000, 30_000, 100_000])
poll_timeouts = st.sampled_from([0, 0, 0, 1, 90, 5000, 60_000])
errors = st.sampled_from([None, "boom", ""])
results = st.sampled_from([None, 0, {"done": True}, "text"])
picks = st.integers(0, 50)
# Which job: one that is held (mostly), any known one, or none at all.
targets = st.tuples(st.sampled_from([ACTIVE, ACTIVE, ACTIVE, QUEUED, "any", "unknown"]), picks)
tokens = st.sampled_from(["right", "right", "right", "none", "wrong", "old", "empty"])


class ShardMachine(RuleBasedStateMachine):
    """One shard on a file, several connections and queues."""

    def __init__(self) -> None:
        super().__init__()
        self.watch = ExitStack()
        self.watch.enter_context(watched_jobs())
        self.folder = Path(tempfile.mkdtemp(prefix="bunqueue-model-"))
        self.driver = Driver(str(self.folder / "shard-00.db"))
        self.model = Model(self.driver.now)
        self.expected_frames: list[Answer] = []  # replies that wait for the commit
        self.pipelined = 0  # commands still to come in the running batch
        self.next_conn = 1
        self.next_req_id = 1
        self.epoch = EPOCH
        self.old_tokens: dict[str, list[str]] = {}
        self.unread_tokens: set[str] = set()  # in replies that wait for the commit
        self.long_renewed: set[str] = set()  # jobs renewed with a duration
        self.last_ids: dict[str, str] = {}

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # nothing failed so far
                self.drain()
        finally:
            self.driver.close()
            self.watch.close()
            shutil.rmtree(self.folder)

    # -- plumbing ---------------------------------------------------------------------------

    def ask(self, conn: int, **request: Any) -> int:
        """Send a command to the shard; its replies wait in ``self.actual``."""
        req_id, self.next_req_id = self.next_req_id, self.next_req_id + 1
        payload = msgpack.packb({**request, "reqId": req_id})
        self.driver.versions = {**self.model.versions, **{conn: v for v, conn in OBSERVERS.items()}}
        self.actual = self.driver.execute(conn, payload)
        return req_id

    def look(self, version: int, **request: Any) -> dict[str, Any]:
        self.driver.versions[OBSERVERS[version]] = version
        return self.driver.look(OBSERVERS[version], **request)

    def compare(self) -> None:
        """The replies of this step, whatever their order, against what the model expects."""
        model = self.model
        expected, model.answers = model.answers, []
        self.expected_frames += self.actual
        replies = {(conn, reply["reqId"]): reply for conn, reply in self.actual}
        assert len(replies) == len(self.actual)
        assert replies.keys() == {(answer.conn, answer.req_id) for answer in expected}
        for answer in sorted(expected, key=lambda answer: not isinstance(answer, Pushed)):
            reply = dict(replies[answer.conn, answer.req_id])
            del reply["reqId"]
            self.settle(answer, reply)
        model.learn_delays(self.real_run_at)

    def settle(self, answer: Expected, reply: dict[str, Any]) -> None:
        if isinstance(answer, Exactly):
            assert reply == answer.reply
        elif isinstance(answer, Pushed):
            self.settle_push(answer, reply)
        else:
            self.settle_delivery(answer, reply)

    def settle_push(self, answer: Pushed, reply: dict[str, Any]) -> None:
        met = [place for place, new in enumerate(answer.new) if not new]
        assert reply.pop("existing", None) == ((met if answer.batch else True) if met else None)
        assert reply.keys() == ({"ok", "ids"} if answer.batch else {"ok", "id"})
        assert reply["ok"] is True
        ids = reply["ids"] if answer.batch else [reply["id"]]
        assert len(ids) == len(answer.jobs)
        for job_id, job, new in zip(ids, answer.jobs, answer.new, strict=True):
            if new:
                assert job_id > self.last_ids.get(job.queue, "")
                assert job_id[14] == "7"
                assert slot_of_id(job_id) == slot_of_queue(job.queue)
                job.id = self.last_ids[job.queue] = job_id
            else:
                assert job_id == job.id

    def settle_delivery(self, answer: Delivery, reply: dict[str, Any]) -> None:
        keys = {"ok", "jobs" if answer.batch else "job"}
        if answer.owner:
            keys.add("tokens" if answer.batch else "token")
        assert reply.keys() == keys
        jobs = reply["jobs"] if answer.batch else [reply["job"]]
        given = reply.get("tokens") if answer.batch else [reply.get("token")]
        if not answer.jobs and not answer.batch:
            assert reply["job"] is None
            assert reply.get("token") is None
            return
        assert len(jobs) == len(answer.jobs)
        for shown, job, view in zip(jobs, answer.jobs, answer.views, strict=True):
            check_timeline(shown["timeline"], job)
            assert shown == {**view, "id": job.id, "timeline": shown["timeline"]}
        if not answer.owner:
            return
        assert given is not None
        assert len(given) == len(answer.jobs)
        for token, job in zip(given, answer.jobs, strict=True):
            assert token
            assert slot_of_id(token) == slot_of_queue(job.queue)
            before = self.old_tokens.setdefault(job.id, [])
            assert token not in before, "a token is never given twice"
            before.append(token)
            job.token = token
            self.unread_tokens.add(token)
            self.long_renewed.discard(job.id)

    def real_run_at(self, job_id: str) -> int:
        return int(self.look(2, cmd="GetJob", id=job_id)["job"]["runAt"])

    def pick(self, which: tuple[str, int]) -> str:
        kind, number = which
        jobs = [job for job in self.model.jobs if kind in ("any", job.state)]
        if kind == "unknown" or not jobs:
            return "018bcfe5-6800-7000-8000-00000000ffff"
        return jobs[-1 - number % len(jobs)].id

    def token(self, job_id: str, kind: str) -> str | None:
        given = self.old_tokens.get(job_id, [])
        if kind == "right":
            job = self.model.find(job_id)
            return given[-1] if given and job is not None and job.locked else None
        return {"none": None, "wrong": "nope", "empty": "", "old": given[0] if given else "nope"}[kind]

    def beat_token(self, job_id: str, kind: str) -> str | None:
        """A token for a heartbeat: nobody can renew a lock before the reply to the pull has left."""
        token = self.token(job_id, kind)
        return None if token in self.unread_tokens else token

    def conn(self, number: int) -> int:
        """An open connection."""
        if not self.model.versions:
            self.connect(2)
        conns = sorted(self.model.versions)
        return conns[number % len(conns)]

    # -- commands ---------------------------------------------------------------------------

    @initialize(version=st.sampled_from([2, 3]), jobs=st.lists(options, min_size=1, max_size=9), queue=queues)
    def first_connections(self, version: int, jobs: list[dict[str, Any]], queue: str) -> None:
        for one in (2, version, 2):
            self.connect(one)
        self.push_batch(0, queue, jobs)

    @rule(
        conn=picks,
        queue=queues,
        jobs=st.lists(options, min_size=1, max_size=5),
        owner=owners,
        lock_ttl=lock_ttls,
        outcomes=st.lists(
            st.sampled_from(["ack", "fail", "bury", "lose", "late", "beat", "gone"]), max_size=5
        ),
    )
    def shift(
        self,
        conn: int,
        queue: str,
        jobs: list[dict[str, Any]],
        owner: str,
        lock_ttl: int,
        outcomes: list[str],
    ) -> None:
        """Jobs come, some are taken, and something becomes of these: what mostly happens."""
        self.push_batch(conn, queue, jobs)
        if not outcomes:
            return
        self.pull_batch(conn, queue, len(outcomes), owner, 0, lock_ttl)
        for outcome in outcomes:
            which = (ACTIVE, len(outcomes))
            if outcome == "ack":
                self.ack(conn, which, "right", {"n": len(outcomes)})
            elif outcome in ("fail", "bury"):
                self.fail(conn, which, "right", "boom", outcome == "bury")
            elif outcome == "lose":
                self.advance(7000)
            elif outcome == "late":
                self.ack(conn, (QUEUED, 0), "old", "late")
            elif outcome == "beat":
                self.heartbeat(conn, which, "right", None)
            else:
                self.disconnect(conn, "closed")

    @rule(conn=picks, queue=queues, owner=owners, times=st.integers(1, 3))
    def silence(self, conn: int, queue: str, owner: str, times: int) -> None:
        """Somebody takes the next job and is not heard of again; a few times over."""
        for _ in range(times):
            self.pull(conn, queue, owner, 0, 1)
            self.advance(7000 if owner else 45_000)

    @rule(conn=picks, queue=queues, options=options)
    def push(self, conn: int, queue: str, options: dict[str, Any]) -> None:
        who = self.conn(conn)
        req_id = self.ask(who, cmd="PUSH", queue=queue, **options)
        self.model.push(who, req_id, queue, [options], batch=False)
        self.compare()

    @rule(conn=picks, queue=queues, jobs=st.lists(options, max_size=7))
    def push_batch(self, conn: int, queue: str, jobs: list[dict[str, Any]]) -> None:
        who = self.conn(conn)
        req_id = self.ask(who, cmd="PUSHB", queue=queue, jobs=jobs)
        self.model.push(who, req_id, queue, jobs, batch=True)
        self.compare()

    @rule(conn=picks, queue=queues, owner=owners, timeout=poll_timeouts, lock_ttl=lock_ttls)
    def pull(self, conn: int, queue: str, owner: str, timeout: int, lock_ttl: int) -> None:
        who = self.conn(conn)
        options = {"timeout": timeout, "owner": owner, "lockTtl": lock_ttl}
        req_id = self.ask(who, cmd="PULL", queue=queue, **options)
        self.model.pull(who, req_id, queue, timeout=timeout, owner=owner, lock_ttl=lock_ttl)
        self.compare()

    @rule(
        conn=picks,
        queue=queues,
        count=st.sampled_from([1, 2, 3, 5, 1000]),
        owner=owners,
        timeout=poll_timeouts,
        lock_ttl=lock_ttls,
    )
    def pull_batch(self, conn: int, queue: str, count: int, owner: str, timeout: int, lock_ttl: int) -> None:
        who = self.conn(conn)
        options = {"timeout": timeout, "owner": owner, "lockTtl": lock_ttl}
        req_id = self.ask(who, cmd="PULLB", queue=queue, count=count, **options)
        self.model.pull(who, req_id, queue, count=count, timeout=timeout, owner=owner, lock_ttl=lock_ttl)
        self.compare()

    @rule(conn=picks, which=targets, token=tokens, result=results)
    def ack(self, conn: int, which: tuple[str, int], token: str, result: Any) -> None:
        who, job_id = self.conn(conn), self.pick(which)
        value = self.token(job_id, token)
        req_id = self.ask(who, cmd="ACK", id=job_id, token=value, result=result)
        self.model.ack(who, req_id, job_id, value, result)
        self.compare()

    @rule(
        conn=picks,
        many=st.lists(st.tuples(targets, tokens), max_size=6),
        with_tokens=st.booleans(),
        with_results=st.booleans(),
        length=st.sampled_from([0, 0, 0, 0, 1]),
    )
    def ack_batch(
        self, conn: int, many: list[Any], with_tokens: bool, with_results: bool, length: int
    ) -> None:
        who = self.conn(conn)
        ids = [self.pick(one) for one, _ in many]
        duplicates = len(set(ids)) < len(ids)
        if duplicates:  # among several wrong ids, it is open which one is told
            ids = [job_id for job_id in ids if (job := self.model.find(job_id)) and job.state == ACTIVE]
        values = [self.token(job_id, kind) for job_id, (_, kind) in zip(ids, many, strict=False)]
        tokens = values + [None] * length if with_tokens else None
        results = list(range(len(ids) + length)) if with_results else None
        req_id = self.ask(who, cmd="ACKB", ids=ids, tokens=tokens, results=results)
        self.model.ack_batch(who, req_id, ids, tokens, results)
        self.compare()

    @rule(
        conn=picks,
        which=targets,
        token=tokens,
        error=errors,
        how=st.sampled_from(["retriable", "retriable", "unrecoverable", "interrupted"]),
    )
    def fail(self, conn: int, which: tuple[str, int], token: str, error: str | None, how: str) -> None:
        who, job_id = self.conn(conn), self.pick(which)
        value = self.token(job_id, token)
        req_id = self.ask(
            who,
            cmd="FAIL",
            id=job_id,
            token=value,
            error=error,
            stack=" at line 1\n",
            unrecoverable=how == "unrecoverable" or None,
            interrupted=how == "interrupted" or None,
        )
        self.model.fail(who, req_id, job_id, value, error, how)
        self.compare()

    @rule(conn=picks, which=targets, token=tokens, duration=st.sampled_from([None, 1, 50_000]))
    def heartbeat(self, conn: int, which: tuple[str, int], token: str, duration: int | None) -> None:
        who, job_id = self.conn(conn), self.pick(which)
        value = self.beat_token(job_id, token)
        if value and job_id in self.long_renewed:
            duration = duration or 50_000  # known bug: test_a_shorter_renewal_counts_after_a_restart
        if value and duration:
            self.long_renewed.add(job_id)
        req_id = self.ask(who, cmd="JobHeartbeat", id=job_id, token=value, duration=duration)
        self.model.heartbeat(who, req_id, job_id, value, duration)
        self.compare()

    @rule(conn=picks, many=st.lists(st.tuples(targets, tokens), max_size=5), with_tokens=st.booleans())
    def heartbeat_batch(self, conn: int, many: list[Any], with_tokens: bool) -> None:
        who = self.conn(conn)
        ids = [self.pick(one) for one, _ in many]
        values = [
            None if job_id in self.long_renewed else self.beat_token(job_id, kind)
            for job_id, (_, kind) in zip(ids, many, strict=True)
        ]
        req_id = self.ask(who, cmd="JobHeartbeatB", ids=ids, tokens=values if with_tokens else None)
        self.model.heartbeat_batch(who, req_id, ids, values if with_tokens else None)
        self.compare()

    @rule(
        conn=picks,
        which=targets,
        progress=st.sampled_from([-5, 0, 33, 66.5, 100, 150]),
        message=st.sampled_from([None, "half", ""]),
    )
    def progress(self, conn: int, which: tuple[str, int], progress: float, message: str | None) -> None:
        who, job_id = self.conn(conn), self.pick(which)
        req_id = self.ask(who, cmd="Progress", id=job_id, progress=progress, message=message)
        self.model.progress(who, req_id, job_id, progress, message)
        self.compare()

    @rule(conn=picks, queue=queues, one=st.one_of(st.none(), picks))
    def retry_dlq(self, conn: int, queue: str, one: int | None) -> None:
        who = self.conn(conn)
        dead = self.model.dead(queue)
        job_id = None
        if one is not None:
            job_id = dead[one % len(dead)].id if dead else self.pick(("any", one))
        req_id = self.ask(who, cmd="RetryDlq", queue=queue, jobId=job_id)
        self.model.retry_dlq(who, req_id, queue, job_id)
        self.compare()

    # -- time -------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 1, 7, 60, 1000, 5000, 12_000, 40_000]))
    def advance(self, ms: int) -> None:
        """Time passes, and the server wakes up whenever the engine says so."""
        end = self.driver.now + ms
        while True:
            due = self.driver.shard.engine.next_deadline()
            assert due <= self.model.next_event(), "the engine would sleep through something"
            if due > end:
                break
            assert due > self.model.now, "what was due has been done"
            self.wake(due)
        self.wake(end)

    @rule(ms=st.sampled_from([10, 3000, 31_000, 200_000]), away=st.booleans())
    def jump(self, ms: int, away: bool) -> None:
        """Everything is due at once; ``away``: because the process was stopped, and heard nobody."""
        now = self.driver.now + ms
        if away:
            self.driver.returned(now)
            self.model.returned(now)
        self.wake(now)

    def wake(self, now: int) -> None:
        self.actual = self.driver.tick(now)
        self.model.tick(now)
        self.compare()

    # -- connections and restarts ----------------------------------------------------------------

    @rule(version=st.sampled_from([2, 2, 3]))
    @precondition(lambda self: len(self.model.versions) < 6)
    def connect(self, version: int) -> None:
        self.model.versions[self.next_conn] = version
        self.next_conn += 1

    @rule(conn=picks, how=st.sampled_from(["closed", "severed", "broken"]))
    def disconnect(self, conn: int, how: str) -> None:
        who = self.conn(conn)
        severed, broken = how == "severed", how == "broken"
        self.actual = self.driver.disconnect(who, severed=severed, broken=broken)
        self.model.disconnect(who, severed=severed, broken=broken)
        self.compare()

    @rule(commands=st.integers(2, 8))
    def pipeline(self, commands: int) -> None:
        """The next commands come in one read: one transaction, replies at its end."""
        self.pipelined = commands

    @rule(away=st.sampled_from([1, 500, 20_000]), router_too=st.booleans(), survivors=st.integers(0, 63))
    def restart(self, away: int, router_too: bool, survivors: int) -> None:
        """The shard's process is replaced; connections that waited for it are closed by the router."""
        self.finish_batch()
        model = self.model
        waiting = {poll.conn for poll in model.polls}
        conns = sorted(model.versions.keys() - waiting)
        live = [conn for bit, conn in enumerate(conns) if survivors >> bit & 1]
        if router_too:
            live, self.epoch = [], f"router-{self.next_req_id}"
        self.driver.close()
        self.driver = Driver(self.driver.path, now=self.driver.now + away, epoch=self.epoch, live=live)
        model.restart(self.driver.now, live)
        self.wake(self.driver.now)

    @rule(router_too=st.booleans(), away=st.sampled_from([1, 500]))
    def kill(self, router_too: bool, away: int) -> None:
        """What a kill right now would leave on disk: a copy of it recovers to the same state."""
        self.finish_batch()
        copy = self.folder / "copy"
        copy_database(Path(self.driver.path), copy)
        live = [] if router_too else sorted(self.model.versions)
        now = self.driver.now + away
        epoch = "another router" if router_too else self.epoch
        with_copy = Driver(str(copy / "shard-00.db"), now=now, epoch=epoch, live=live)
        expected = model_after_restart(self.model, now, live)
        real, self.driver = self.driver, with_copy
        try:
            with_copy.tick(now)
            expected.tick(now)
            expected.learn_delays(self.real_run_at)
            self.check_everything(expected)
        finally:
            self.driver = real
            with_copy.close()
            shutil.rmtree(copy)

    # -- what must hold after every step -----------------------------------------------------------

    @invariant()
    def agree(self) -> None:
        if self.pipelined > 1:
            self.pipelined -= 1  # reads would have the writes so far written
            return
        self.finish_batch()
        self.check_everything(self.model)

    def finish_batch(self) -> None:
        self.pipelined = 0
        self.unread_tokens.clear()
        frames = self.driver.commit()
        assert [frame for frame in frames if frame[0] not in OBSERVERS.values()] == self.expected_frames
        self.expected_frames = []

    def check_everything(self, model: Model) -> None:
        shown: dict[str, dict[str, Any]] = {}
        for queue in QUEUES:
            for version in (2, 3):
                found = self.look(version, cmd="GetJobCounts", queue=queue)["counts"]
                assert found == model.counts(queue, version), queue
            jobs = self.look(2, cmd="GetJobs", queue=queue, limit=10_000)["jobs"]
            timelines = [job.pop("timeline") for job in jobs]
            assert jobs == model.page(queue, 2, [], 10_000, 0, True)
            for job, timeline in zip(jobs, timelines, strict=True):
                shown[job["id"]] = job
                check_timeline(timeline, model.find(job["id"]))
            ends: dict[str, Any] = {"state": ["completed", "failed"], "limit": 2, "asc": False}
            newest = self.look(2, cmd="GetJobs", queue=queue, **ends)["jobs"]
            assert [job["id"] for job in newest] == [
                job["id"] for job in model.page(queue, 2, ends["state"], 2, 0, False)
            ]
            dead = self.look(2, cmd="Dlq", queue=queue)["jobs"]
            assert [job["id"] for job in dead] == [job.id for job in model.dead(queue)]
        for job in model.jobs:
            assert self.look(2, cmd="GetState", id=job.id)["state"] == job.name_of_state(model.now, 2)
        assert self.driver.held() == model.held()
        self.check_totals(model)
        deadline = self.driver.shard.engine.next_deadline()
        assert model.now < deadline <= model.next_event()

    def check_totals(self, model: Model) -> None:
        listed: list[dict[str, Any]] = [
            {
                "name": queue,
                "waiting": len(model.ready(queue)),
                "delayed": model.counts(queue, 2)["delayed"],
                "active": model.counts(queue, 2)["active"],
                "paused": False,
            }
            for queue in model.queues
        ]
        found = self.look(2, cmd="ListQueues")["queues"]
        names = {queue["name"] for queue in found}  # the server drops one that is unused for a minute
        unused = {"waiting": 0, "delayed": 0, "active": 0, "paused": False}
        listed = [queue for queue in listed if queue["name"] in names or unused.items() - queue.items()]
        assert sorted(found, key=lambda queue: queue["name"]) == sorted(
            listed, key=lambda queue: queue["name"]
        )
        stats = self.look(2, cmd="Stats")["stats"]
        assert stats["queued"] == sum(queue["waiting"] for queue in listed)
        assert stats["processing"] == sum(queue["active"] for queue in listed)
        assert stats["delayed"] == sum(queue["delayed"] for queue in listed)
        for name, state in (("completed", COMPLETED), ("dlq", FAILED)):
            assert stats[name] == sum(len(model.of(queue, state)) for queue in model.queues)

    @rule(
        queue=queues,
        version=st.sampled_from([2, 3]),
        wanted=st.lists(
            st.sampled_from(["waiting", "prioritized", "delayed", "active", "completed", "failed"]),
            max_size=3,
        ),
        limit=st.sampled_from([0, 1, 2, 5, 100]),
        offset=st.sampled_from([0, 0, 1, 3, 200]),
        ascending=st.booleans(),
    )
    def page(
        self, queue: str, version: int, wanted: list[str], limit: int, offset: int, ascending: bool
    ) -> None:
        """Any page of any states, in both directions."""
        if version == 2:
            wanted = [name for name in wanted if name != "prioritized"]
        request = {"state": wanted or None, "limit": limit, "offset": offset, "asc": ascending}
        jobs = self.look(version, cmd="GetJobs", queue=queue, **request)["jobs"]
        for job in jobs:
            del job["timeline"]
        assert jobs == self.model.page(queue, version, wanted, limit, offset, ascending)

    @rule(which=targets, queue=queues, version=st.sampled_from([2, 3]))
    def question(self, which: tuple[str, int], queue: str, version: int) -> None:
        """The remaining questions."""
        job_id = self.pick(which)
        job = self.model.find(job_id)
        state = "unknown" if job is None else job.name_of_state(self.model.now, version)
        assert self.look(version, cmd="GetState", id=job_id)["state"] == state
        result = self.look(version, cmd="GetResult", id=job_id)
        if job is not None and job.state == COMPLETED and job.result is not NO_RESULT:
            assert result["result"] == job.result
        else:
            assert "result" not in result
        if job is not None and job.state == ACTIVE:
            shown = self.look(version, cmd="GetProgress", id=job_id)
            assert (shown["progress"], shown["message"]) == (job.progress, job.message)
        counts = self.model.counts(queue, version)
        names = ["waiting", "prioritized", "delayed"] if version == 3 else list(counts)
        assert self.look(version, cmd="Count", queue=queue)["count"] == sum(counts[name] for name in names)

    def drain(self) -> None:
        """In the end: all that is ready leaves in exactly the model's order, then all that was delayed."""
        self.finish_batch()
        for _ in range(2):
            for queue in QUEUES:
                while self.model.ready(queue):
                    self.pull(0, queue, "", 0, 30_000)
            self.jump(3_700_000, False)
            self.finish_batch()


def copy_database(path: Path, folder: Path) -> None:
    """The files as a kill at this moment would leave them."""
    folder.mkdir()
    for name in (path.name, f"{path.name}-wal"):
        if (path.parent / name).exists():
            shutil.copy(path.parent / name, folder / name)


def model_after_restart(model: Model, now: int, live: list[int]) -> Model:
    """A copy of the model that went through a restart."""
    twin = copy.deepcopy(model)
    twin.restart(now, live)
    return twin


def check_timeline(timeline: list[dict[str, Any]], job: Job | None) -> None:
    """the reference server, "timeline"; what it says of every job's life."""
    assert job is not None
    assert 1 <= len(timeline) <= 20
    first = "waiting" if int(job.option("delay", 0)) == 0 else "delayed"
    assert timeline[0] == {"state": first, "timestamp": job.created_at}
    stamps = [moment["timestamp"] for moment in timeline]
    assert stamps == sorted(stamps)
    for moment in timeline:
        assert moment.keys() <= {"state", "timestamp", "error", "attempt"}
        assert moment["state"] in {"waiting", "delayed", "active", "completed", "failed"}
    if len(timeline) < 20:
        failures = [moment["attempt"] for moment in timeline if moment["state"] == "failed"]
        assert job.attempts in (0, *failures)
        assert (timeline[-1]["state"] == "completed") == (job.state == COMPLETED)


quick = settings(max_examples=budget(25, 500), stateful_step_count=budget(50, 80))


def test_the_shard_is_the_naive_model() -> None:
    run_state_machine_as_test(ShardMachine, settings=quick)


# -- a kill between two commits ----------------------------------------------------------------------------

steps = st.lists(
    st.sampled_from(
        ["push", "delayed", "pull", "locked", "ack", "fail", "bury", "retry", "progress", "commit"]
    ),
    max_size=40,
)


def one_step(driver: Driver, step: str) -> None:
    """A command on the queue's oldest job that fits."""
    engine = driver.shard.engine
    active = [job for job in engine.state.jobs.values() if job.lock is not None]
    target = (
        {"id": active[0].id, "token": active[0].lock.token} if active and active[0].lock else {"id": "none"}
    )
    requests: dict[str, dict[str, Any]] = {
        "push": {"cmd": "PUSH", "queue": "q", "data": "x", "uniqueKey": "k", "backoff": 0},
        "delayed": {"cmd": "PUSHB", "queue": "q", "jobs": [{"delay": 50}, {"priority": 3, "maxAttempts": 1}]},
        "pull": {"cmd": "PULL", "queue": "q"},
        "locked": {"cmd": "PULLB", "queue": "q", "count": 2, "owner": "w"},
        "ack": {"cmd": "ACK", **target, "result": 5},
        "fail": {"cmd": "FAIL", **target, "error": "e"},
        "bury": {"cmd": "FAIL", **target, "unrecoverable": True},
        "retry": {"cmd": "RetryDlq", "queue": "q"},
        "progress": {"cmd": "Progress", **target, "progress": 40, "message": "m"},
    }
    driver.execute(1, msgpack.packb(requests[step]))


def picture(driver: Driver, *, timeline: bool) -> dict[str, Any]:
    """All that a client can see of queue q."""
    jobs = driver.look(9, cmd="GetJobs", queue="q", limit=10_000)["jobs"]
    for job in jobs:
        del job["lastHeartbeat"]  # locks run anew
        if not timeline:
            del job["timeline"]
    return {
        "jobs": jobs,
        "dead": [job["id"] for job in driver.look(9, cmd="Dlq", queue="q")["jobs"]],
        "counts": driver.look(9, cmd="GetJobCounts", queue="q"),
        "tokens": {job.id: job.lock.token for job in driver.shard.engine.state.jobs.values() if job.lock},
        "keys": {name: dict(queue.unique) for name, queue in driver.shard.engine.state.queues.items()},
        "held": driver.held(),
    }


def kill_after(steps: list[str], tail: list[str], *, timeline: bool) -> None:
    """Batches, a commit, then commands that are never committed: a kill leaves the state of the commit."""
    folder = Path(tempfile.mkdtemp(prefix="bunqueue-kill-"))
    driver = Driver(str(folder / "one.db"))
    try:
        for step in steps:
            if step == "commit":
                driver.tick(driver.now + 1)
                driver.commit()
            else:
                one_step(driver, step)
        driver.tick(driver.now + 1)
        driver.commit()
        before = picture(driver, timeline=timeline)
        for step in tail:
            if step != "commit":
                one_step(driver, step)
        copy_database(folder / "one.db", folder / "copy")
        again = Driver(str(folder / "copy" / "one.db"), now=driver.now, live=[1])
        try:
            assert picture(again, timeline=timeline) == before
            (check,) = again.rows("pragma integrity_check")
            assert check == ("ok",)
        finally:
            again.close()
    finally:
        driver.close()
        shutil.rmtree(folder)


@given(steps, steps)
def test_a_kill_leaves_the_state_of_the_last_commit(steps: list[str], tail: list[str]) -> None:
    kill_after(steps, tail, timeline=False)


def test_a_kill_leaves_the_timeline_of_the_last_commit() -> None:
    kill_after(["push", "pull", "fail", "commit", "pull"], [], timeline=True)


# -- what once went wrong ----------------------------------------------------------------------------------


def test_retry_and_pull_within_one_millisecond() -> None:
    """PUSH with timeout, PULL, FAIL, RetryDlq, PULL in one read: the second watch of the timeout."""
    driver = Driver()
    job_id = driver.ask(cmd="PUSH", queue="q", timeout=1000, maxAttempts=1)["id"]
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=job_id)
    assert driver.ask(cmd="RetryDlq", queue="q")["count"] == 1
    assert driver.ask(cmd="PULL", queue="q")["job"]["id"] == job_id


def retried_and_done(path: str) -> Driver:
    """A dead letter that was retried, pulled and completed within one batch."""
    driver = Driver(path)
    job_id = driver.ask(cmd="PUSH", queue="q", maxAttempts=1)["id"]
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=job_id)
    driver.batch(
        [
            {"cmd": "RetryDlq", "queue": "q", "jobId": job_id},
            {"cmd": "PULL", "queue": "q"},
            {"cmd": "ACK", "id": job_id},
        ]
    )
    assert driver.ask(cmd="GetState", id=job_id)["state"] == "completed"
    return driver


def test_a_retried_job_is_no_dead_letter(tmp_path: Path) -> None:
    driver = retried_and_done(str(tmp_path / "one.db"))
    driver.close()
    driver = Driver(str(tmp_path / "one.db"))
    counts = driver.ask(cmd="GetJobCounts", queue="q")["counts"]
    dead = driver.ask(cmd="Dlq", queue="q")["jobs"]
    driver.close()
    assert (counts["completed"], counts["failed"], dead) == (1, 0, [])


def test_a_completed_job_is_not_retried() -> None:
    driver = retried_and_done(":memory:")
    other = driver.ask(cmd="PUSH", queue="q", maxAttempts=1)["id"]
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=other)
    assert driver.ask(cmd="RetryDlq", queue="q")["count"] == 1


def lost_lock(path: str) -> tuple[Driver, str, str]:
    """A job whose lock ran out, and the token it was lost with."""
    driver = Driver(path)
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    token = driver.ask(cmd="PULL", queue="q", owner="w", lockTtl=1)["token"]
    driver.tick(driver.now + 5000)
    assert driver.ask(cmd="GetState", id=job_id)["state"] == "waiting"
    return driver, job_id, token


def test_the_token_of_a_lost_lock_completes_the_waiting_job() -> None:
    driver, job_id, token = lost_lock(":memory:")
    assert driver.ask(cmd="ACK", id=job_id, token=token)["ok"]
    driver.close()


def test_the_token_of_a_lost_lock_completes_the_waiting_job_after_a_restart(tmp_path: Path) -> None:
    driver, job_id, token = lost_lock(str(tmp_path / "one.db"))
    driver.close()
    driver = Driver(str(tmp_path / "one.db"), now=driver.now)
    reply = driver.ask(cmd="ACK", id=job_id, token=token)
    driver.close()
    assert reply["ok"]


def test_a_late_answer_after_a_timeout_is_ignored_after_a_restart(tmp_path: Path) -> None:
    driver = Driver(str(tmp_path / "one.db"))
    job_id = driver.ask(cmd="PUSH", queue="q", timeout=10)["id"]
    driver.ask(cmd="PULL", queue="q")
    driver.tick(driver.now + 10)
    ignored = {"ok": True, "data": {"applied": False, "reason": "already-finalized"}}
    assert driver.ask(cmd="ACK", id=job_id) == ignored
    driver.close()
    driver = Driver(str(tmp_path / "one.db"), now=driver.now)
    reply = driver.ask(cmd="ACK", id=job_id)
    driver.close()
    assert reply == ignored


@pytest.mark.parametrize(
    ("second", "state"),
    [
        ({"duration": 600_000}, "active"),
        ({}, "waiting"),
    ],
    ids=["long", "short"],
)
def test_a_shorter_renewal_counts_after_a_restart(tmp_path: Path, second: dict[str, Any], state: str) -> None:
    """A lock of a second is renewed for ten minutes, then again; half a minute later it counts how."""
    driver = Driver(str(tmp_path / "one.db"))
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    token = driver.ask(cmd="PULL", queue="q", owner="w", lockTtl=1000)["token"]
    driver.ask(cmd="JobHeartbeat", id=job_id, token=token, duration=600_000)
    driver.ask(cmd="JobHeartbeat", id=job_id, token=token, **second)
    driver.close()
    driver = Driver(str(tmp_path / "one.db"), now=driver.now, live=[1])
    for _ in range(6):
        driver.tick(driver.now + 5000)
    found = driver.ask(cmd="GetState", id=job_id)["state"]
    driver.close()
    assert found == state


def test_a_renewed_lock_survives_its_connection_after_a_restart(tmp_path: Path) -> None:
    driver = Driver(str(tmp_path / "one.db"))
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    token = driver.ask(cmd="PULL", queue="q", owner="w")["token"]
    driver.ask(2, cmd="JobHeartbeat", id=job_id, token=token)
    driver.close()
    driver = Driver(str(tmp_path / "one.db"), now=driver.now, live=[1, 2])
    driver.disconnect(1)
    state = driver.ask(2, cmd="GetState", id=job_id)["state"]
    driver.close()
    assert state == "active"
