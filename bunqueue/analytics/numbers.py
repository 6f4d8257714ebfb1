"""Every table of the analytics and every number in it: name, unit, and how it is computed.

The page docs/analytics.md prints these tables, and the tests compute each number from them again.  A job is
described by its stored fields, an attempt by the time during which a worker had it.  ``due`` is the moment
from which a worker might have taken the job: its run time, the completion of the last job it depended on, or
the moment at which a worker had given it up.
"""

from __future__ import annotations

from typing import NamedTuple

PERCENTILES = (0.5, 0.95, 0.99)


class Number(NamedTuple):
    """A column: ``unit`` is jobs, attempts, ms, a rate of 0 to 1, a time, or text."""

    name: str
    unit: str
    formula: str


class Table(NamedTuple):
    """A table: what one row is about, the columns that identify the row, and its numbers."""

    name: str
    about: str
    keys: tuple[Number, ...]
    numbers: tuple[Number, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in (*self.keys, *self.numbers))


def _spread(what: str, formula: str) -> tuple[Number, ...]:
    """The numbers of a duration."""
    return (
        Number(f"{what}_p50", "ms", f"median of {formula}"),
        Number(f"{what}_p95", "ms", "95th percentile of the same, between neighbours in proportion"),
        Number(f"{what}_p99", "ms", "99th percentile of the same"),
        Number(f"{what}_max", "ms", "the largest of the same"),
    )


HOST = Number("host", "text", "where the data folder is from: its name as given")
QUEUE = Number("queue", "text", "the queue")
NAME = Number("name", "text", "the job's name; empty for jobs that only the event log knows any more")
WORKER = Number("worker", "text", "who took the job; empty for a worker without a name")
BUCKET = Number("bucket", "time", "the minute, hour or day that begins then, in the report's time zone")

ACTIVITY = (
    Number("created", "jobs", "created in that time"),
    Number("completed", "jobs", "ended in that time, completed"),
    Number("failed", "jobs", "ended in that time as dead letters, other than cancelled ones"),
    Number(
        "cancelled",
        "jobs",
        "ended in that time: stopped while they ran, or cancelled or removed one by one before they began",
    ),
    Number("expired", "jobs", "ended in that time: their ttl was over before a worker took them"),
    Number("removed", "jobs", "ended in that time: drained or cleaned before they began"),
    Number("retried", "jobs", "of completed and failed ones, those with more than one attempt"),
    Number("attempts", "attempts", "ended in that time, however they ended"),
    Number("failed_attempts", "attempts", "of these, all but the completed, cancelled and interrupted ones"),
    Number("failure_rate", "rate", "failed / (completed + failed)"),
    Number("attempt_failure_rate", "rate", "failed_attempts / attempts"),
    Number("retry_rate", "rate", "retried / (completed + failed)"),
    Number("throughput", "jobs/s", "completed / seconds of that time"),
    *_spread("wait", "started - due, of the last attempt of jobs that ended after they had started"),
    *_spread("run", "ended - started, of completed jobs' last attempts"),
    *_spread("total", "ended - created, of completed and failed jobs"),
    Number("run_total", "ms", "sum of ended - started over all attempts"),
    Number("run_wasted", "ms", "sum of ended - started over attempts that did not complete their job"),
    Number("waste_rate", "rate", "run_wasted / run_total: what retries and failures cost"),
)

WORK = (
    Number("attempts", "attempts", "ended in that time"),
    Number("failed_attempts", "attempts", "of these, all but the completed, cancelled and interrupted ones"),
    Number("busy", "ms", "sum over all its attempts of how long they overlap with that time"),
    Number("slots", "jobs", "the most that it had at the same time, ever in the range"),
    Number("utilisation", "rate", "busy / (slots * length of that time)"),
)

TOTALS = Table("totals", "everything", (), ACTIVITY)
OVER_TIME = Table("over_time", "a stretch of time", (BUCKET,), ACTIVITY)
QUEUES = Table("queues", "a queue", (HOST, QUEUE), ACTIVITY)
QUEUES_OVER_TIME = Table("queues_over_time", "a queue in a stretch of time", (HOST, QUEUE, BUCKET), ACTIVITY)
NAMES = Table("names", "a job name of a queue", (HOST, QUEUE, NAME), ACTIVITY)
NAMES_OVER_TIME = Table(
    "names_over_time", "a job name in a stretch of time", (HOST, QUEUE, NAME, BUCKET), ACTIVITY
)
WORKERS = Table("workers", "a worker, from its first start to its last end", (HOST, WORKER), WORK)
WORKERS_OVER_TIME = Table("workers_over_time", "a worker in a stretch of time", (HOST, WORKER, BUCKET), WORK)
_WAITING = (
    Number(
        "waiting",
        "jobs",
        "due, and neither taken by a worker nor ended; of a job that was retried, before its last attempt",
    ),
    Number("unfinished", "jobs", "created and not ended: waiting, running, delayed or blocked"),
)
BACKLOG = Table(
    "backlog",
    "a queue at the end of a stretch of time; one without a row is as the one before it",
    (HOST, QUEUE, BUCKET),
    _WAITING,
)
BACKLOG_OVER_TIME = Table(
    "backlog_over_time",
    "all queues at the end of a stretch of time; one without a row is as the one before it",
    (BUCKET,),
    _WAITING,
)
FAILURE = (
    HOST,
    QUEUE,
    Number("outcome", "text", "how the attempts ended: explicit_fail, timeout, stalled; failed if not known"),
    Number("error_type", "text", "the class of their errors; empty if not known"),
    Number(
        "pattern",
        "text",
        "the first line of their errors, with # for numbers, ids and quoted parts, but not for HTTP statuses",
    ),
)
FAILURES = Table(
    "failures",
    "one kind of failure in a queue",
    FAILURE,
    (
        Number("kind", "text", "the id of their group of errors, as bunqueue errors shows it"),
        Number("attempts", "attempts", "that failed like that"),
        Number("jobs", "jobs", "whose attempts these were"),
        Number("first_at", "time", "when the first of them failed"),
        Number("last_at", "time", "when the last of them failed"),
        Number("example_job", "text", "the job of the last one"),
        Number("example_error", "text", "the error of the last one, as it was"),
    ),
)
FAILURES_OVER_TIME = Table(
    "failures_over_time",
    "one kind of failure in a stretch of time",
    (*FAILURE, BUCKET),
    (Number("attempts", "attempts", "that failed like that"),),
)
SLOWEST = Table(
    "slowest",
    "one of the ten completed jobs of a queue that ran longest",
    (HOST, QUEUE, Number("id", "text", "the job")),
    (
        Number("name", "text", "the job's name"),
        WORKER,
        Number("started_at", "time", "start of its last attempt"),
        Number("ended_at", "time", "when it completed"),
        Number("run", "ms", "ended - started"),
    ),
)
ANOMALIES = Table(
    "anomalies",
    "a queue, or a name of its jobs, that left its usual band for a while",
    (
        Number("finding", "number", "what happened, the gravest first: rows of one finding belong together"),
        HOST,
        QUEUE,
        Number("name", "text", "the name of the jobs; null: all of the queue"),
        Number("what", "text", "attempt_failure_rate, wait_p95, run_p50, run_p95 or total_p95"),
        Number("since", "time", "begin of the first unusual stretch of time"),
    ),
    (
        Number("until", "time", "end of the last unusual one"),
        Number("usual", "rate or ms", "median over the same hours of the days before"),
        Number("bound", "rate or ms", "where the usual band ends"),
        Number("worst", "rate or ms", "the highest value meanwhile"),
        Number("attempts", "attempts", "that ended meanwhile"),
        Number("text", "text", "the same in words"),
    ),
)

TABLES = (
    TOTALS,
    OVER_TIME,
    QUEUES,
    QUEUES_OVER_TIME,
    NAMES,
    NAMES_OVER_TIME,
    WORKERS,
    WORKERS_OVER_TIME,
    BACKLOG,
    BACKLOG_OVER_TIME,
    FAILURES,
    FAILURES_OVER_TIME,
    SLOWEST,
    ANOMALIES,
)
