"""What the numbers of a report must be: from docs/analytics.md, with sqlite3 and plain Python.

Shares nothing with the analytics, nor with the reading of shards: it counts one by one where those add up.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
from history import shards_of

# As docs/http.md lists them.
KINDS = (
    "pushed pulled completed failed retried removed delayed waiting waiting-children progress duplicated"
    " stalled paused resumed ready released revived discarded dropped obliterated purged"
).split()
DUE = ("pushed", "ready", "retried", "revived", "released", "waiting")


@dataclass
class Job:
    """A job; times in epoch ms."""

    host: str
    queue: str
    name: str
    id: str
    created: int
    due: int | None = None
    started: int | None = None
    ended: int | None = None
    outcome: str | None = None
    failures: int = 0
    worker: str = ""


@dataclass
class Attempt:
    host: str
    queue: str
    name: str
    id: str
    worker: str
    started: int | None
    ended: int
    outcome: str
    error: str | None = None


@dataclass
class Known:
    """All that is known of some servers."""

    jobs: list[Job] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)


def look_at(folders: dict[str, Path]) -> Known:
    """Read data folders by host."""
    known = Known()
    for host, folder in folders.items():
        ready: dict[str, int] = {}
        let_go: dict[str, int] = {}
        for database in shards_of(folder):
            _watch(known, host, database, ready, let_go)
        for database in shards_of(folder):
            _read_jobs(known, host, database, ready, let_go)
            _read_attempts(known, host, database)
    return known


def halfway(known: Known) -> int:
    """The moment at which half of the jobs had ended."""
    ends = sorted(job.ended for job in known.jobs if job.ended is not None)
    return ends[len(ends) // 2]


def _read_jobs(known: Known, host: str, database: Any, ready: dict[str, int], let_go: dict[str, int]) -> None:
    query = """
        select j.id, q.name, j.name, j.created_at, j.run_at, j.attempts, j.extra,
               c.started_at, c.finished_at, c.attempts, c.worker,
               d.started_at, d.finished_at, d.attempts, d.worker, d.reason, l.started_at, l.owner
        from jobs j join queues q on q.id = j.queue_id left join completed c on c.seq = j.seq
        left join dead_letters d on d.seq = j.seq left join locks l on l.seq = j.seq
    """
    for row in database.execute(query):
        job = Job(host, row[1], row[2], row[0], row[3], row[4], failures=row[5])
        extra = msgpack.unpackb(row[6]) if row[6] else {}
        if extra.get("dependsOn"):
            job.due = None if extra.get("pending") else max(row[4], ready.get(job.id, 0))
        if job.due is not None:
            job.due = max(job.due, let_go.get(job.id, 0))
        if row[8] is not None:
            job.started, job.ended, job.failures, job.worker = row[7:11]
            job.outcome = "completed"
            if job.started is not None:
                known.attempts.append(
                    Attempt(
                        host, job.queue, job.name, job.id, job.worker, job.started, job.ended, "completed"
                    )
                )
        elif row[12] is not None:
            job.started, job.ended, job.failures, job.worker = row[11:15]
            job.outcome = "cancelled" if row[15] == "cancelled" else "failed"
        elif row[16] is not None:
            job.started, job.worker = row[16:18]
        known.jobs.append(job)


def _read_attempts(known: Known, host: str, database: Any) -> None:
    query = """
        select q.name, j.name, j.id, a.worker, a.started_at, a.ended_at, a.outcome, a.error
        from attempts a join jobs j on j.seq = a.seq join queues q on q.id = j.queue_id
    """
    for queue, name, job, worker, *rest in database.execute(query):
        known.attempts.append(Attempt(host, queue, name, job, worker or "", *rest))


def _watch(known: Known, host: str, database: Any, ready: dict[str, int], let_go: dict[str, int]) -> None:
    """Go through a shard's events: those of jobs that leave tell all that is known of them."""
    names = dict(database.execute("select id, name from queues"))
    alive: dict[str, tuple[Job, list[Attempt]]] = {}
    at_work: dict[str, int] = {}
    for at, payload in database.execute("select at, payload from events order by first_seq"):
        for number, queue, job_id, *more in msgpack.unpackb(payload):
            kind, fields = KINDS[number], more[0] if more else {}
            if kind == "purged":
                _purge(known, names.get(queue), alive, fields)
            if kind == "ready":
                ready[job_id] = at
            if kind in ("released", "waiting"):
                let_go[job_id] = at
            if kind == "pushed":
                alive[job_id] = Job(host, names[queue], "", job_id, at), []
            if job_id not in alive:
                continue
            job, attempts = alive[job_id]
            if kind in DUE:
                job.due = at
            if kind == "pulled":
                at_work[job_id] = job.started = at
            elif kind == "released":
                at_work.pop(job_id, None)
            elif kind == "revived":
                job.outcome = job.ended = None
            elif kind == "completed":
                job.outcome, job.ended = kind, at
                attempts.append(_attempt(job, at_work.pop(job_id), at, kind))
            elif kind in ("failed", "stalled"):
                if fields.get("terminal"):
                    job.outcome = "cancelled" if fields.get("reason") == "cancelled" else "failed"
                    job.ended = at
                if job_id in at_work:
                    how = "cancelled" if fields.get("reason") == "cancelled" else kind
                    attempts.append(_attempt(job, at_work.pop(job_id), at, how, fields.get("error")))
                    job.failures += how != "cancelled"
            elif kind in ("removed", "dropped"):
                _gone(job, kind, fields.get("reason"), at)
                known.jobs.append(job)
                known.attempts += attempts
                del alive[job_id]


def _purge(known: Known, queue: str | None, alive: dict[str, tuple[Job, list[Attempt]]], told: Any) -> None:
    """Finished jobs are gone: by the numbers at the end of their ids, or their whole ids."""
    for job, attempts in list(alive.values()):
        number = int(job.id[24:], 16) if job.id[14:15] == "7" else None
        if job.queue == queue and (number in told["seqs"] or job.id in told.get("ids", ())):
            known.jobs.append(job)
            known.attempts += attempts
            del alive[job.id]


def _attempt(job: Job, started: int, ended: int, outcome: str, error: str | None = None) -> Attempt:
    return Attempt(job.host, job.queue, "", job.id, "", started, ended, outcome, error)


def _gone(job: Job, kind: str, reason: str | None, at: int) -> None:
    if job.outcome is None:
        job.started, job.ended = None, at
        job.outcome = "expired" if reason == "expired" else "cancelled" if kind == "removed" else "removed"
        if job.outcome != "expired":
            job.due = None  # nobody knows whether its time had come


class Clock:
    """How time is cut."""

    def __init__(self, unit: str, zone: str, since: int, until: int) -> None:
        self.unit, self.zone, self.since, self.until = unit, ZoneInfo(zone), since, until

    def bucket(self, ms: int) -> int:
        local = datetime.fromtimestamp(ms / 1000, self.zone)
        if self.unit == "day":
            return round(datetime(local.year, local.month, local.day, tzinfo=self.zone).timestamp() * 1000)
        offset = local.utcoffset()
        assert offset is not None
        size, shift = {"minute": 60_000, "hour": 3_600_000}[self.unit], round(offset.total_seconds() * 1000)
        return (ms + shift) // size * size - shift

    def after(self, bucket: int) -> int:
        """Look for the next bucket, a quarter of an hour at a time, or a minute."""
        step = 60_000 if self.unit == "minute" else 900_000
        at = bucket
        while self.bucket(at) == bucket:
            at += step
        return self.bucket(at)

    def all(self) -> list[int]:
        found = [self.bucket(self.since)]
        while (after := self.after(found[-1])) < self.until:
            found.append(after)
        return found

    def covers(self, ms: int | None) -> bool:
        return ms is not None and self.since <= ms < self.until

    def length(self, bucket: int | None) -> int:
        if bucket is None:
            return self.until - self.since
        return min(self.after(bucket), self.until) - max(bucket, self.since)


def percentile(values: Iterable[float], part: float) -> float | None:
    """Between neighbours in proportion."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = part * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def activity(
    known: Known, clock: Clock, key: Callable[[Any, int], Any], length: Callable[[Any], int]
) -> dict[Any, Any]:
    """The numbers of groups; ``key`` tells the group of a job or attempt at a moment."""
    groups: dict[Any, dict[str, Any]] = defaultdict(lambda: defaultdict(list))
    for job in known.jobs:
        if clock.covers(job.created):
            groups[key(job, job.created)]["created"].append(job)
        if clock.covers(job.ended):
            assert job.ended is not None
            groups[key(job, job.ended)]["ended"].append(job)
    for attempt in known.attempts:
        if clock.covers(attempt.ended):
            groups[key(attempt, attempt.ended)]["attempts"].append(attempt)
    return {
        group: numbers(found["created"], found["ended"], found["attempts"], length(group) / 1000)
        for group, found in groups.items()
    }


def numbers(created: list[Job], ended: list[Job], attempts: list[Attempt], seconds: float) -> dict[str, Any]:
    """The numbers of one group."""
    outcomes = Counter(job.outcome for job in ended)
    found: dict[str, Any] = {
        name: outcomes[name] for name in ("completed", "failed", "cancelled", "expired", "removed")
    }
    decided = [job for job in ended if job.outcome in ("completed", "failed")]
    retried = [job for job in decided if job.failures + (job.outcome == "completed") > 1]
    bad = [each for each in attempts if is_failure(each)]
    runs = [(each.ended - each.started, each.outcome) for each in attempts if each.started is not None]
    total, wasted = sum(ms for ms, _ in runs), sum(ms for ms, outcome in runs if outcome != "completed")
    found |= {
        "created": len(created),
        "retried": len(retried),
        "attempts": len(attempts),
        "failed_attempts": len(bad),
        "failure_rate": outcomes["failed"] / len(decided) if decided else None,
        "attempt_failure_rate": len(bad) / len(attempts) if attempts else None,
        "retry_rate": len(retried) / len(decided) if decided else None,
        "throughput": outcomes["completed"] / seconds,
        "run_total": total,
        "run_wasted": wasted,
        "waste_rate": wasted / total if total else None,
    }
    waits = [job.started - job.due for job in ended if job.started is not None and job.due is not None]
    lasted = [
        job.ended - job.started
        for job in ended
        if job.outcome == "completed" and job.started is not None and job.ended is not None
    ]
    totals = [job.ended - job.created for job in decided if job.ended is not None]
    for what, values in (("wait", waits), ("run", lasted), ("total", totals)):
        for part in (50, 95, 99):
            found[f"{what}_p{part}"] = percentile(values, part / 100)
        found[f"{what}_max"] = max(values, default=None)
    return found


def is_failure(attempt: Attempt) -> bool:
    return attempt.outcome not in ("completed", "cancelled", "interrupted")


def backlog(jobs: Iterable[Job], moment: int) -> tuple[int, int]:
    """Waiting and unfinished jobs just before a moment."""
    waiting = unfinished = 0
    for job in jobs:
        taken = next((at for at in (job.started, job.ended) if at is not None), math.inf)
        waiting += job.due is not None and job.due < moment <= taken
        unfinished += job.created < moment <= (math.inf if job.ended is None else job.ended)
    return waiting, unfinished


def slots(attempts: list[Attempt]) -> int:
    """The most that were under way at the same time."""
    spans = [(each.started, each.ended) for each in attempts if each.started is not None]
    return max(1, *(sum(begin <= at < end for begin, end in spans) for at, _ in spans))


def pattern(error: str | None) -> str:
    """Good enough for the errors of the history: its long numbers and small ones, but not 404 and 503."""
    return re.sub(
        r"\d+", lambda found: found[0] if found[0] in ("404", "503") else "#", (error or "").split("\n")[0]
    )
