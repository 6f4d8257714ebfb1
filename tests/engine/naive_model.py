"""What a shard must do, the slow and obvious way.

Written from the description of the reference server, not from the engine: plain lists, a sort at every look,
no index, no heap, no laziness.  Where that is silent the line says so.  Ids, tokens and random delays, which
the model cannot know, are read from the answers of the real shard and only checked for plausibility.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

SWEEP_MS = 5_000
STALL_MS = 30_000
HOUR_MS = 3_600_000
MAX_STALLS = 3
FREE_DROPS = 2
SETTLE_MS = 2_000
RECONNECT_MS = 15_000

QUEUED, ACTIVE, COMPLETED, FAILED, GONE = "queued", "active", "completed", "failed", "gone"
NO_RESULT = Ellipsis  # the ack named none; a singleton, also after a copy


class Refused(Exception):
    """The command is an error with this text."""


@dataclass(eq=False)
class Job:
    """A job and all that is known about it."""

    number: int  # order of arrival, which ids follow
    queue: str
    data: Any
    created_at: int
    run_at: int | None  # None: a random delay, not yet read from the shard
    options: dict[str, Any]  # as they were in the push
    id: str = ""
    state: str = QUEUED
    attempts: int = 0
    stalls: int = 0
    drops: int = 0  # not in the reference server: a job that ends its workers again and again has to end, too
    has_key: bool = False
    started_at: int | None = None
    finished_at: int | None = None
    conn: int = 0  # who holds it; 0: nobody that is connected
    owner: str = ""
    token: str = ""  # "" without owner, and until it is read from the reply
    lock_ttl: int = 0
    until: int = 0
    heartbeat_at: int = 0
    renewed: bool = False
    suspect: bool = False
    lost_token: str | None = None
    patience: int | None = None  # its connection broke: until when its worker may come back
    timed_out: bool = False
    error: str | None = None
    reason: str | None = None
    stacktrace: list[str] | None = None
    progress: float = 0
    message: str | None = None
    last_report: dict[str, Any] | None = None  # of a run that has ended
    result: Any = None

    def option(self, name: str, default: Any = None) -> Any:
        value = self.options.get(name)
        return default if value is None else value

    @property
    def locked(self) -> bool:
        return bool(self.owner)

    def is_ready(self, now: int) -> bool:
        return self.state == QUEUED and self.run_at is not None and self.run_at <= now

    def name_of_state(self, now: int, version: int) -> str:
        if self.state == GONE:
            return "unknown"
        if self.state != QUEUED:
            return self.state
        if not self.is_ready(now):
            return "delayed"
        return "prioritized" if version >= 3 and self.option("priority", 0) > 0 else "waiting"

    def place(self) -> tuple[Any, ...]:
        """the reference server, "Order of delivery"."""
        priority = self.option("priority", 0)
        if self.option("lifo", False):
            return (-priority, 0, -self.number)
        return (-priority, 1, self.run_at, self.number)

    def view(self) -> dict[str, Any]:
        """The job object, all fields of the reference server's table but the timeline."""
        backoff = self.option("backoff", 1000)
        config = None
        if isinstance(backoff, dict):
            config = {"type": backoff.get("type", "exponential"), "delay": backoff.get("delay", 1000)}
            backoff = config["delay"]
        never = dict.fromkeys(
            "customId parentId groupId repeat stallTimeout keepLogs sizeLimit deduplicationTtl"
            " debounceId debounceTtl".split()
        )
        no = dict.fromkeys(
            "failParentOnFailure removeDependencyOnFailure continueParentOnFailure ignoreDependencyOnFailure"
            " deduplicationExtend deduplicationReplace".split(),
            False,
        )
        return {
            **never,
            "stacktrace": self.stacktrace,
            **no,
            "id": self.id,
            "queue": self.queue,
            "name": self.option("name", "default"),
            "data": self.data,
            "priority": self.option("priority", 0),
            "createdAt": self.created_at,
            "runAt": self.run_at,
            "startedAt": self.started_at,
            "completedAt": self.finished_at if self.state == COMPLETED else None,
            "attempts": self.attempts,
            "maxAttempts": self.option("maxAttempts", 3),
            "backoff": backoff,
            "backoffConfig": config,
            "stallCount": self.stalls,
            "stackTraceLimit": 10,
            "ttl": self.option("ttl"),
            "timeout": self.option("timeout"),
            "uniqueKey": self.option("uniqueKey"),
            "dependsOn": [],
            "childrenIds": [],
            "childrenCompleted": 0,
            "tags": self.option("tags", []),
            "progress": 100 if self.state == COMPLETED else self.progress,
            "progressMessage": self.message,
            "removeOnComplete": self.option("removeOnComplete", False),
            "removeOnFail": self.option("removeOnFail", False),
            "lifo": self.option("lifo", False),
            "durable": self.option("durable", False),
            "lastHeartbeat": self.heartbeat_at if self.state == ACTIVE else self.created_at,
        }

    def queried(self, now: int, version: int) -> dict[str, Any]:
        """The job object of GetJob, GetJobs and Dlq."""
        found = {**self.view(), "state": self.name_of_state(now, version)}
        if self.state == COMPLETED and self.result is not NO_RESULT:
            found["returnvalue"] = self.result
        if self.error is not None and self.state != COMPLETED:
            found["failedReason"] = self.error
        if self.last_report is not None and self.state not in (ACTIVE, COMPLETED):
            found["lastReport"] = self.last_report
        return found


@dataclass(eq=False)
class Poll:
    """A pull that waits."""

    conn: int
    req_id: int
    queue: str
    count: int | None
    owner: str
    lock_ttl: int
    deadline: int


@dataclass
class Exactly:
    """An answer that is known to the last field."""

    conn: int
    req_id: int
    reply: dict[str, Any]


@dataclass
class Delivery:
    """An answer to a pull; tokens are to be learned from the real one."""

    conn: int
    req_id: int
    jobs: list[Job]
    views: list[dict[str, Any]]
    owner: str
    batch: bool


@dataclass
class Pushed:
    """An answer to a push: ids are to be learned."""

    conn: int
    req_id: int
    jobs: list[Job]
    new: list[bool]
    batch: bool


Expected = Exactly | Delivery | Pushed


@dataclass
class Model:
    """The naive shard."""

    now: int
    next_sweep: int = 0
    settled_at: int = 0  # nothing is taken from who is silent before: nobody could be heard
    jobs: list[Job] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)  # in order of their first push
    polls: list[Poll] = field(default_factory=list)
    versions: dict[int, int] = field(default_factory=dict)  # open connections
    answers: list[Expected] = field(default_factory=list)  # of the running step
    delays: list[tuple[Job, float, float]] = field(default_factory=list)  # to be learned: job, bounds

    def __post_init__(self) -> None:
        self.next_sweep = self.now + SWEEP_MS

    # -- looking ------------------------------------------------------------------------------

    def find(self, job_id: str) -> Job | None:
        """The job of that id, unless it is gone."""
        found = [job for job in self.jobs if job.id == job_id and job.state != GONE]
        return found[0] if found else None

    def of(self, queue: str, *states: str) -> list[Job]:
        """Jobs of a queue in some states, by creation."""
        return [job for job in self.jobs if job.queue == queue and job.state in states]

    def ready(self, queue: str) -> list[Job]:
        """Jobs in the order in which they are delivered."""
        return sorted((job for job in self.of(queue, QUEUED) if job.is_ready(self.now)), key=Job.place)

    def dead(self, queue: str) -> list[Job]:
        """Dead messages, oldest first."""
        return sorted(self.of(queue, FAILED), key=lambda job: (job.finished_at, job.number))

    def key_holder(self, queue: str, key: str | None) -> Job | None:
        """The job that has the unique key."""
        jobs = self.of(queue, QUEUED, ACTIVE)
        found = [job for job in jobs if key is not None and job.has_key and job.option("uniqueKey") == key]
        assert len(found) <= 1
        return found[0] if found else None

    def held(self) -> dict[int, set[str]]:
        """Active jobs by the connection that holds them."""
        found: dict[int, set[str]] = {}
        for job in self.jobs:
            if job.state == ACTIVE:
                found.setdefault(job.conn, set()).add(job.id)
        return found

    def counts(self, queue: str, version: int) -> dict[str, int]:
        """GetJobCounts."""
        names = [job.name_of_state(self.now, version) for job in self.jobs if job.queue == queue]
        states = "waiting delayed active completed failed prioritized waiting-children paused".split()
        return {name: names.count(name) for name in states}

    def page(
        self, queue: str, version: int, wanted: list[str], limit: int, offset: int, ascending: bool
    ) -> list[dict[str, Any]]:
        """GetJobs; ``wanted`` empty: all states.  Version 2: waiting is every ready job."""
        jobs = [job for job in self.jobs if job.queue == queue and job.state != GONE]
        if wanted:
            jobs = [job for job in jobs if job.name_of_state(self.now, version) in wanted]
        ordered = sorted(jobs, key=lambda job: (job.created_at, job.number), reverse=not ascending)
        return [job.queried(self.now, version) for job in ordered[offset : offset + limit]]

    def next_event(self) -> int:
        """The next instant at which something happens by itself."""
        times = [self.next_sweep, *(poll.deadline for poll in self.polls)]
        for job in self.jobs:
            if job.state == QUEUED and job.run_at is not None and job.run_at > self.now:
                times.append(job.run_at)
            if (at := self.timeout_at(job)) is not None:
                times.append(max(at, self.settled_at))
            if self.is_stray(job):
                times.append(max(job.patience or 0, self.settled_at))
        return min(times)

    @staticmethod
    def is_stray(job: Job) -> bool:
        """Whether its worker is waited for after a connection broke."""
        return job.state == ACTIVE and job.patience is not None and job.conn == 0 and not job.renewed

    def timeout_at(self, job: Job) -> int | None:
        """When the running attempt has taken too long."""
        timeout = job.option("timeout")
        if job.state != ACTIVE or not timeout or job.started_at is None:
            return None
        return job.started_at + int(timeout)

    # -- answers ------------------------------------------------------------------------------

    def say(self, conn: int, req_id: int, **reply: Any) -> None:
        self.answers.append(Exactly(conn, req_id, {"ok": True, **reply}))

    def refuse(self, conn: int, req_id: int, text: str) -> None:
        self.answers.append(Exactly(conn, req_id, {"ok": False, "error": text}))

    def deliver(self, conn: int, req_id: int, jobs: list[Job], owner: str, batch: bool) -> None:
        views = [job.view() for job in jobs]
        self.answers.append(Delivery(conn, req_id, jobs, views, owner, batch))

    # -- coming and going ---------------------------------------------------------------------

    def push(self, conn: int, req_id: int, queue: str, jobs: list[dict[str, Any]], *, batch: bool) -> None:
        """PUSH and PUSHB."""
        if jobs and queue not in self.queues:
            self.queues.append(queue)
        found = [self._push(queue, options) for options in jobs]
        pushed = [job for job, _ in found], [new for _, new in found]
        self.answers.append(Pushed(conn, req_id, *pushed, batch))
        self.serve()

    def _push(self, queue: str, options: dict[str, Any]) -> tuple[Job, bool]:
        holder = self.key_holder(queue, options.get("uniqueKey"))
        if holder is not None:
            return holder, False
        run_at = self.now + int(options.get("delay", 0))
        job = Job(len(self.jobs), queue, options.get("data"), self.now, run_at, options)
        job.has_key = job.option("uniqueKey") is not None
        self.jobs.append(job)
        return job, True

    def take(self, queue: str, count: int, conn: int, owner: str, lock_ttl: int) -> list[Job]:
        """The next jobs; those whose ttl is over are dropped when a pull meets them."""
        taken: list[Job] = []
        for job in self.ready(queue):
            if len(taken) == count:
                break
            ttl = job.option("ttl")
            # At the very instant created_at + ttl the reference server allows both.
            if ttl is not None and self.now >= job.created_at + ttl:
                self._leave(job, GONE)
                continue
            job.state = ACTIVE
            job.started_at = job.heartbeat_at = self.now
            job.conn, job.owner, job.token = conn, owner, ""
            job.lock_ttl, job.until = lock_ttl, self.now + lock_ttl
            job.renewed = job.suspect = job.timed_out = False
            job.lost_token = job.patience = None
            taken.append(job)
        return taken

    def pull(
        self,
        conn: int,
        req_id: int,
        queue: str,
        *,
        count: int | None = None,
        timeout: float = 0,
        owner: str = "",
        lock_ttl: int = 30_000,
    ) -> None:
        """PULL (count None) and PULLB."""
        jobs = self.take(queue, 1 if count is None else count, conn, owner, lock_ttl)
        if jobs or not timeout:
            self.deliver(conn, req_id, jobs, owner, count is not None)
            return
        deadline = self.now + max(1, int(timeout))
        self.polls.append(Poll(conn, req_id, queue, count, owner, lock_ttl, deadline))

    def serve(self) -> None:
        """Whatever is ready goes to who has waited longest."""
        for poll in list(self.polls):
            count = 1 if poll.count is None else poll.count
            jobs = self.take(poll.queue, count, poll.conn, poll.owner, poll.lock_ttl)
            if jobs:
                self.polls.remove(poll)
                self.deliver(poll.conn, poll.req_id, jobs, poll.owner, poll.count is not None)

    # -- the end of an attempt -------------------------------------------------------------------

    def _leave(self, job: Job, state: str) -> None:
        """The job is no longer alive; its key is free."""
        job.state, job.has_key, job.conn = state, False, 0
        job.lost_token = None

    def _requeue(self, job: Job) -> None:
        job.state, job.started_at, job.conn = QUEUED, None, 0
        self._forget_progress(job)

    def _forget_progress(self, job: Job) -> None:
        """the reference server does not say; a new run starts at nothing."""
        if job.progress or job.message is not None:
            job.last_report = {"progress": job.progress, "message": job.message}
        job.progress, job.message = 0, None

    def _bury(self, job: Job, reason: str) -> None:
        self._forget_progress(job)
        if job.option("removeOnFail", False):
            self._leave(job, GONE)
            return
        self._leave(job, FAILED)
        job.finished_at, job.reason = self.now, reason

    def _complete(self, job: Job, result: Any) -> None:
        if job.option("removeOnComplete", False):
            self._leave(job, GONE)
            return
        self._leave(job, COMPLETED)
        job.finished_at, job.result = self.now, result

    def _fail(self, job: Job, error: str | None, reason: str, *, final: bool = False) -> None:
        job.attempts += 1
        job.error = error
        job.has_key = False
        if final or job.attempts >= job.option("maxAttempts", 3):
            self._bury(job, reason)
            return
        self._requeue(job)
        view = job.view()
        low, high = backoff_bounds(view["backoff"], view["backoffConfig"], job.attempts)
        if high < 1:
            job.run_at = self.now
        else:
            job.run_at = None
            self.delays.append((job, self.now + low, self.now + high))

    def _lose(self, job: Job, error: str) -> None:
        """Its holder fell silent."""
        job.attempts += 1
        job.stalls += 1
        job.error = error
        if job.stalls >= MAX_STALLS:
            self._bury(job, "stalled")
        elif job.attempts >= job.option("maxAttempts", 3):
            self._bury(job, "max_attempts_exceeded")
        else:
            token = job.token
            self._requeue(job)
            job.run_at = self.now
            job.lost_token = token or None

    def _decidable(self, job_id: str, token: str | None) -> Job | None:
        """The job that an ACK or FAIL is about; None when a timeout was faster."""
        job = self.find(job_id)
        if job is not None and job.state == ACTIVE:
            if job.locked and token != job.token:
                if not token:
                    raise Refused(f"Lock token required for job {job_id}")
                raise Refused(f"Invalid or expired lock token for job {job_id}")
            return job
        if job is not None and job.timed_out and (job.state == QUEUED or job.reason == "timeout"):
            return None
        if job is not None and job.is_ready(self.now) and token and token == job.lost_token:
            return job
        raise Refused(f"Job not found or not in processing state: {job_id}")

    def ack(self, conn: int, req_id: int, job_id: str, token: str | None, result: Any) -> None:
        try:
            job = self._decidable(job_id, token)
        except Refused as error:
            self.refuse(conn, req_id, str(error))
            return
        if job is None:
            self.say(conn, req_id, data={"applied": False, "reason": "already-finalized"})
            return
        self._complete(job, result)
        self.say(conn, req_id)

    def ack_batch(
        self,
        conn: int,
        req_id: int,
        ids: list[str],
        tokens: list[str | None] | None,
        results: list[Any] | None,
    ) -> None:
        """A wrong token refuses everything, an unknown id only itself."""
        wrong: list[str] = []
        for name, values in (("results", results), ("tokens", tokens)):
            if values is not None and len(values) != len(ids):
                self.refuse(conn, req_id, f"ACKB {name} length must match ids length")
                return
        found: list[tuple[int, Job]] = []
        late: list[int] = []
        for index, job_id in enumerate(ids):
            try:
                job = self._decidable(job_id, tokens[index] if tokens else None)
            except Refused as error:
                if "token" in str(error):
                    self.refuse(conn, req_id, str(error))
                    return
                wrong.append(str(error))
                continue
            if job is None:
                late.append(index)
            else:
                found.append((index, job))
        for index, job in found:
            if job.state in (COMPLETED, GONE):  # named twice
                wrong.append(f"Job not found or not in processing state: {job.id}")
            else:
                self._complete(job, results[index] if results else NO_RESULT)
        if wrong:
            self.refuse(conn, req_id, wrong[0])
        elif late:
            ignored = {"ignoredIds": [ids[index] for index in late], "ignoredIndices": late}
            self.say(conn, req_id, data=ignored)
        else:
            self.say(conn, req_id)

    def fail(
        self, conn: int, req_id: int, job_id: str, token: str | None, error: str | None, how: str
    ) -> None:
        """``how``: retriable, unrecoverable or interrupted; the first two have a stack of one line."""
        try:
            job = self._decidable(job_id, token)
            if job is not None and job.state != ACTIVE:  # only an ACK may still come late
                raise Refused(f"Job not found or not in processing state: {job_id}")
        except Refused as refusal:
            self.refuse(conn, req_id, str(refusal))
            return
        if job is None:
            self.say(conn, req_id, data={"applied": False, "reason": "already-finalized"})
            return
        if how == "interrupted":
            self._requeue(job)
        else:
            job.stacktrace = ["at line 1"]
            self._fail(job, error, "max_attempts_exceeded", final=how == "unrecoverable")
        self.say(conn, req_id)
        self.serve()

    # -- signs of life ------------------------------------------------------------------------

    def _beat(self, job_id: str, token: str | None, duration: int | None) -> bool:
        job = self.find(job_id)
        if job is None:
            return False
        if token and token == job.lost_token and job.is_ready(self.now):
            # Not in the reference server: the worker goes on with it, and nobody else has taken it.
            job.state, job.started_at, job.timed_out, job.lost_token = ACTIVE, self.now, False, None
            job.drops = 0
        if job.state != ACTIVE:
            return False
        if token and job.locked:
            if token != job.token:
                return False
            job.until = self.now + (duration or job.lock_ttl)
            job.renewed = True
            job.drops = 0
        job.heartbeat_at = self.now
        job.suspect = False
        return True

    def heartbeat(self, conn: int, req_id: int, job_id: str, token: str | None, duration: int | None) -> None:
        if self._beat(job_id, token, duration):
            self.say(conn, req_id, data={"ok": True})
        else:
            self.refuse(conn, req_id, "Job not found or not active (or invalid token)")

    def heartbeat_batch(
        self, conn: int, req_id: int, ids: list[str], tokens: list[str | None] | None
    ) -> None:
        if tokens is not None and len(tokens) != len(ids):
            self.refuse(conn, req_id, "JobHeartbeatB tokens length must match ids length")
            return
        count = sum(
            self._beat(job_id, tokens[index] if tokens else None, None) for index, job_id in enumerate(ids)
        )
        self.say(conn, req_id, data={"ok": True, "count": count})

    def progress(self, conn: int, req_id: int, job_id: str, progress: float, message: str | None) -> None:
        job = self.find(job_id)
        if job is None:
            self.refuse(conn, req_id, "Job not found")
            return
        if job.state != ACTIVE:
            state = job.name_of_state(self.now, 2)
            self.refuse(conn, req_id, f"Job is not active (current state: {state})")
            return
        job.progress = min(100, max(0, progress))
        if message is not None:
            job.message = message
        self.say(conn, req_id)

    def retry_dlq(self, conn: int, req_id: int, queue: str, job_id: str | None) -> None:
        jobs = [job for job in self.dead(queue) if job_id in (None, job.id)]
        for job in jobs:
            self._requeue(job)
            job.last_report = None
            job.run_at, job.finished_at = self.now, None
            job.attempts = job.stalls = job.drops = 0
            job.error = job.reason = job.stacktrace = None
            job.timed_out = False
            # the reference server does not say whether it has its key again: it does when nobody else has it.
            key = job.option("uniqueKey")
            job.has_key = key is not None and self.key_holder(queue, key) is None
        self.say(conn, req_id, count=len(jobs))
        self.serve()

    # -- time, connections, restarts ---------------------------------------------------------------

    def tick(self, now: int) -> None:
        """All that happens by itself until ``now``, at once."""
        self.now = now
        for job in self.jobs if now >= self.settled_at else ():
            at = self.timeout_at(job)
            if at is not None and at <= now:
                self._fail(job, "Job timeout exceeded", "timeout")
                job.timed_out = True
        for job in self.jobs if now >= self.settled_at else ():
            if self.is_stray(job) and (job.patience or 0) <= now:
                self._drop(job)
        if now >= self.next_sweep:
            self.next_sweep = now + SWEEP_MS
            self._sweep()
        self.serve()
        for poll in list(self.polls):
            if poll.deadline <= now:
                self.polls.remove(poll)
                self.deliver(poll.conn, poll.req_id, [], poll.owner, poll.count is not None)

    def _sweep(self) -> None:
        for job in self.jobs:
            if job.state != ACTIVE:
                continue
            if job.locked and job.until <= self.now:
                if job.conn == 0 and not job.renewed:  # the delivery may have been lost: nothing counts
                    self._requeue(job)
                    job.lost_token = job.token
                else:
                    self._lose(job, "Lock expired")
            elif not job.locked and job.heartbeat_at <= self.now - STALL_MS:
                # A lock that still runs protects its job from the stall check (docstring of locks.py).
                if job.suspect:
                    self._lose(job, "Job stalled")
                job.suspect = True

    def returned(self, now: int) -> None:
        """Nobody could be heard until ``now``: all locks run anew (docstring of locks.py)."""
        self.now = now
        self.settled_at = now + SETTLE_MS
        self.next_sweep = max(self.next_sweep, self.settled_at)
        for job in self.jobs:
            if self.is_stray(job):
                job.patience = now + max(1, min(job.lock_ttl // 2, RECONNECT_MS))
            if job.state == ACTIVE:
                job.until = max(job.until, now + job.lock_ttl)
                job.heartbeat_at, job.suspect = now, False

    def disconnect(self, conn: int, *, severed: bool = False, broken: bool = False) -> None:
        """A connection ends; ``severed``: by the server; ``broken``: by what is in between (docstrings of
        partings.py)."""
        self.versions.pop(conn, None)
        self.polls = [poll for poll in self.polls if poll.conn != conn]
        for job in self.jobs:
            if job.state == ACTIVE and job.conn == conn:
                if job.locked and (severed or broken or job.renewed):
                    job.conn = 0
                    if not severed:
                        job.patience = self.now + max(1, min(job.lock_ttl // 2, RECONNECT_MS))
                else:
                    self._drop(job)
        self.serve()

    def _drop(self, job: Job) -> None:
        """Its connection has ended, and nobody comes back to it."""
        job.drops += 1
        if job.drops > FREE_DROPS:
            self._lose(job, f"Whoever held the job has gone at once, {job.drops} times by now")
        else:
            self._requeue(job)  # no attempt lost, its place in the queue kept
            job.lost_token = job.token or None

    def restart(self, now: int, live: Iterable[int]) -> None:
        """The shard process was replaced; ``live``: connections that survived it.

        Active jobs stay active and their locks run anew (docstrings of engine.py and locks.py).
        """
        self.now = now
        self.next_sweep = now + SWEEP_MS
        self.settled_at = 0
        self.polls = []
        for job in self.jobs:
            job.patience = None
            if job.state != ACTIVE:
                continue
            job.until = max(job.until, now + job.lock_ttl)
            job.heartbeat_at, job.suspect = now, False
            if job.conn not in live:
                job.conn = 0
                if not job.locked:
                    self._requeue(job)
        self.versions = {conn: version for conn, version in self.versions.items() if conn in live}

    # -- what only the shard can know ------------------------------------------------------------

    def learn_delays(self, run_at: Callable[[str], int]) -> None:
        """Read the random delays, and check that they are within their bounds."""
        for job, low, high in self.delays:
            if job.state == QUEUED and job.run_at is None:
                job.run_at = run_at(job.id)
                assert low - 1 <= job.run_at <= high, (job.run_at - self.now, low - self.now, high - self.now)
        self.delays.clear()


def backoff_bounds(backoff: float, config: dict[str, Any] | None, attempts: int) -> tuple[float, float]:
    """the reference server, "Backoff": the smallest and the largest delay."""
    if config is not None and config["type"] == "fixed":
        low, high = backoff * 0.8, backoff * 1.2
    else:
        low, high = backoff * 2**attempts * 0.5, backoff * 2**attempts * 1.5
    return min(low, HOUR_MS), min(high, HOUR_MS)
