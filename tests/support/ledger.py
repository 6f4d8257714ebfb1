"""The books of a test under kills: what was asked, what was promised, what was delivered, and what is left.

Everything is entered when it happens and judged from what the server itself has said: a reply is a promise,
and the times in job objects are the server's.  `Ledger.problems` gathers every broken promise as a sentence.
All times are wall clock ms, as the server's are.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from .wire import Wire, now_ms

SEEN_LATE_MS = 2000.0  # by how much we may notice the end of a connection later than the server
ACKED, REFUSED, UNKNOWN = "acked", "refused", "unknown"


def payload(nonce: str, size: int) -> dict[str, Any]:
    """Job data that can be checked by itself."""
    filler = (nonce * (size // len(nonce) + 1))[:size]
    return {"n": nonce, "fill": filler, "crc": zlib.crc32((nonce + filler).encode())}


def _is_whole(data: Any) -> bool:
    return isinstance(data, dict) and data.get("crc") == zlib.crc32((data["n"] + data["fill"]).encode())


@dataclass(eq=False)
class Lease:
    """One delivery: a job in the hands of a worker."""

    job_id: str
    queue: str
    worker: str
    token: str | None  # None: pulled without an owner
    ttl: float
    wire: Wire
    started_at: float  # as the server says in the job
    received_at: float
    attempts: int
    renewed_at: float = 0.0  # when the last heartbeat that was answered had been sent
    failed_at: float = 0.0  # when a FAIL was first sent
    ack_open: bool = False  # an ACK was sent whose fate is not known
    decided_at: float = float("inf")  # when an ACK or FAIL of its worker was answered for good

    @property
    def lock_until(self) -> float:
        """Before this moment the lock has not run out."""
        return max(self.started_at, self.renewed_at) + self.ttl

    @property
    def wire_lost_at(self) -> float:
        return self.wire.ended_at if self.wire.ended.is_set() else float("inf")

    def may_end_before(self, moment: float) -> bool:
        """Whether the server may have taken the job back before ``moment``, by what it has promised."""
        if self.failed_at and self.failed_at <= moment + 1:
            return True
        if self.wire.closing_at and self.wire.closing_at <= moment + 1:
            return True
        if self.token is None:
            return self.wire_lost_at <= moment + SEEN_LATE_MS
        return self.lock_until <= moment + 1


@dataclass(eq=False)
class Answer:
    """An ACK or FAIL that was sent."""

    lease: Lease
    wire: Wire
    sent_at: float
    repeats: bool  # a FAIL that was sent before for the same lease
    answered_at: float = 0.0

    @property
    def until(self) -> float:
        """After this moment the server does not act on it any more."""
        if self.answered_at:
            return self.answered_at
        return self.wire.ended_at + SEEN_LATE_MS if self.wire.ended.is_set() else float("inf")

    def may_decide(self, lease: Lease, moment: float = float("inf")) -> bool:
        """Whether it may, before ``moment``, have decided about a job in the hands of somebody else.

        Only about one that was pulled without an owner: any token is ignored for it, so what a former
        holder says late, or again, counts there.
        """
        if lease is self.lease or lease.token is not None:
            return False
        held_until = min(lease.decided_at, lease.wire_lost_at + SEEN_LATE_MS, moment)
        return self.sent_at <= held_until + 1 and lease.started_at - 1 <= self.until


class Acked(NamedTuple):
    """A completion that was acknowledged."""

    result: Any
    at: float  # when the reply came
    lease: Lease


@dataclass
class Ledger:
    """Everything that happened in one run."""

    pushes: dict[str, str] = field(default_factory=dict)  # nonce -> ACKED, REFUSED or UNKNOWN
    queue_of: dict[str, str] = field(default_factory=dict)  # nonce -> queue
    ids: dict[str, str] = field(default_factory=dict)  # acknowledged id -> nonce
    leases: defaultdict[str, list[Lease]] = field(default_factory=lambda: defaultdict(list))
    results_sent: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    acked: dict[str, Acked] = field(default_factory=dict)
    answers: defaultdict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    fails_sent: Counter[str] = field(default_factory=Counter)
    fails_acked: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)  # found while it happened
    doomed: set[str] = field(default_factory=set)  # ids of jobs that are to fail before their last attempt
    backlog: int = 0  # how many jobs were live when somebody last looked

    @property
    def progress(self) -> int:
        """Grows with all that is acknowledged."""
        return len(self.ids) + len(self.acked) + self.fails_acked.total()

    # What happens

    def pushing(self, nonce: str, queue: str) -> None:
        self.pushes[nonce] = UNKNOWN
        self.queue_of[nonce] = queue

    def pushed(self, nonce: str, job_id: str) -> None:
        self.pushes[nonce] = ACKED
        if job_id in self.ids:
            self.broken.append(f"the pushes {self.ids[job_id]} and {nonce} both got the id {job_id}")
        self.ids[job_id] = nonce

    def push_refused(self, nonce: str) -> None:
        self.pushes[nonce] = REFUSED

    def delivered(
        self, job: dict[str, Any], queue: str, worker: str, token: str | None, ttl: float, wire: Wire
    ) -> Lease:
        """A job came in the reply to a pull."""
        lease = Lease(
            job["id"], queue, worker, token, ttl, wire, job["startedAt"], now_ms(), int(job["attempts"])
        )
        self.events["deliveries"] += 1
        if not _is_whole(job["data"]) or self.queue_of.get(job["data"]["n"]) != queue:
            self.broken.append(f"{job['id']} came out of {queue} with data that nobody pushed there")
        self.leases[job["id"]].append(lease)
        return lease

    def answering(self, lease: Lease, wire: Wire, *, repeats: bool = False) -> Answer:
        """An ACK or FAIL is about to be sent."""
        answer = Answer(lease, wire, now_ms(), repeats)
        self.answers[lease.job_id].append(answer)
        return answer

    def answered(self, answer: Answer, *, decided: bool = True) -> None:
        """The server has acted on it, or will not; ``decided``: the job is no longer in those hands."""
        answer.answered_at = now_ms()
        if decided:
            answer.lease.decided_at = answer.answered_at

    def _may_have_ended(self, lease: Lease, moment: float) -> bool:
        """Whether the server may have taken a job from its holder, or let another one decide about it."""
        return lease.may_end_before(moment) or any(
            answer.may_decide(lease, moment) for answer in self.answers[lease.job_id]
        )

    def ack_answered(self, lease: Lease, result: Any, error: str | None) -> None:
        """An ACK was answered for good."""
        moment = now_ms()
        if error is None:
            if lease.job_id in self.acked:
                self.broken.append(f"{lease.job_id} was acknowledged as completed twice")
            self.acked[lease.job_id] = Acked(result, moment, lease)
            return
        self.events["acks refused"] += 1
        if not lease.ack_open and not self._may_have_ended(lease, moment):
            self.broken.append(
                f"{lease.worker} held {lease.job_id} since {lease.started_at:.0f}, its lock runs until"
                f" {lease.lock_until:.0f}, and at {moment:.0f} its ACK was refused: {error}"
            )

    def batch_refused(self, leases: list[Lease], error: str) -> None:
        """An ACKB was refused for another reason than that a shard is down."""
        moment = now_ms()
        self.events["batches refused"] += 1
        if not any(lease.ack_open or self._may_have_ended(lease, moment) for lease in leases):
            self.broken.append(
                f"{leases[0].worker} held {len(leases)} jobs and its ACKB was refused: {error}"
            )

    def fail_answered(self, lease: Lease, error: str | None, *, first: bool) -> None:
        """A FAIL was answered for good; ``first`` when no earlier one was sent for this lease."""
        if error is None:
            self.fails_acked[lease.job_id] += 1
            return
        self.events["fails refused"] += 1
        failed_at, lease.failed_at = lease.failed_at, 0.0
        if first and not self._may_have_ended(lease, now_ms()):
            self.broken.append(
                f"{lease.worker} held {lease.job_id} since {lease.started_at:.0f}, its lock runs until"
                f" {lease.lock_until:.0f}, and its FAIL was refused: {error}"
            )
        lease.failed_at = failed_at

    # What is left

    def problems(self, found: list[dict[str, Any]]) -> list[str]:
        """Every broken promise, given all jobs that the server has in the end."""
        out = list(self.broken)
        out += self._of_pushes(found)
        by_id = {job["id"]: job for job in found}
        for job in found:
            out += self._of_job(job)
        for job_id in self.acked.keys() - by_id.keys():
            out.append(f"{job_id} was acknowledged as completed and is gone")
        for job_id, leases in self.leases.items():
            out += self._of_leases(job_id, leases)
        return out

    def _of_pushes(self, found: list[dict[str, Any]]) -> list[str]:
        out = []
        times = Counter(job["data"]["n"] for job in found)
        ids = Counter(job["id"] for job in found)
        out += [f"id {job_id} is listed {count} times" for job_id, count in ids.items() if count > 1]
        out += [f"push {nonce} made {count} jobs" for nonce, count in times.items() if count > 1]
        out += [f"nobody pushed {nonce}" for nonce in times if nonce not in self.pushes]
        for nonce, outcome in self.pushes.items():
            if outcome == REFUSED and times[nonce]:
                out.append(f"push {nonce} was refused and made a job all the same")
        nonces = {job["id"]: job["data"]["n"] for job in found}
        for job_id, nonce in self.ids.items():
            if job_id not in nonces:
                out.append(f"{job_id} (push {nonce}) was acknowledged and is gone")
            elif nonces[job_id] != nonce:
                out.append(f"{job_id} was acknowledged for push {nonce} and is that of {nonces[job_id]}")
        return out

    def _of_job(self, job: dict[str, Any]) -> list[str]:
        job_id, state = job["id"], job["state"]
        out = []
        if not _is_whole(job["data"]):
            out.append(f"the data of {job_id} is damaged")
        if state not in ("completed", "failed"):
            out.append(f"{job_id} is {state} in the end")
        if state == "completed" and job.get("returnvalue") not in self.results_sent[job_id]:
            out.append(f"{job_id} is completed with {job.get('returnvalue')!r}, which nobody sent")
        if job_id in self.acked:
            result = self.acked[job_id].result
            if state != "completed":
                out.append(f"{job_id} was acknowledged as completed and is {state}")
            elif job.get("returnvalue") != result:
                out.append(f"{job_id} was completed with {result!r} and shows {job.get('returnvalue')!r}")
        attempts, stalls = job["attempts"], job["stallCount"]
        if attempts < self.fails_acked[job_id]:
            out.append(f"{job_id}: {self.fails_acked[job_id]} FAILs were acknowledged, it counts {attempts}")
        again = self._repeats_that_may_count(job_id)
        if attempts > self.fails_sent[job_id] + stalls:
            self.events["repeated FAILs that counted"] += 1
        if attempts > self.fails_sent[job_id] + stalls + again:
            out.append(
                f"{job_id} counts {attempts} attempts, but {self.fails_sent[job_id]} FAILs were sent, {again}"
                f" of them again while somebody held it without a lock, and it stalled {stalls} times"
            )
        if stalls > len(self.leases.get(job_id, ())):
            out.append(f"{job_id} stalled {stalls} times, more often than it was delivered")
        given_up = attempts < job["maxAttempts"] and stalls < 3
        if state == "failed" and given_up and job_id not in self.doomed:
            out.append(f"{job_id} is failed after {attempts} of {job['maxAttempts']} attempts")
        return out

    def _repeats_that_may_count(self, job_id: str) -> int:
        """How many FAILs that were sent again may have met the job in the hands of another one."""
        repeats = [answer for answer in self.answers[job_id] if answer.repeats]
        return sum(any(map(answer.may_decide, self.leases[job_id])) for answer in repeats)

    def _of_leases(self, job_id: str, leases: list[Lease]) -> list[str]:
        out = []
        leases.sort(key=lambda lease: (lease.started_at, lease.received_at))
        for earlier, later in pairwise(leases):
            self.events["redeliveries"] += 1
            if self._may_have_ended(earlier, later.started_at):
                continue
            out.append(
                f"{job_id} was given to {later.worker} at {later.started_at:.0f} while {earlier.worker} had"
                f" it since {earlier.started_at:.0f} ({earlier.ttl:.0f} ms"
                f" {'unlocked' if earlier.token is None else 'lock'}, connection"
                f" {'alive' if earlier.wire.alive else f'lost at {earlier.wire_lost_at:.0f}'})"
            )
        if job_id in self.acked:
            done = self.acked[job_id]
            out += [
                f"{job_id} was completed by {done.at:.0f}, given to {lease.worker} at {lease.started_at:.0f}"
                for lease in leases
                if lease is not done.lease and lease.started_at > done.at + 1
            ]
        tokens = Counter(lease.token for lease in leases if lease.token)
        out += [f"{job_id} was given twice with token {token}" for token, n in tokens.items() if n > 1]
        return out
