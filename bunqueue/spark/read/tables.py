"""The tables of a data folder, declared once: columns, types, meaning, and their SQL.

Spark's view, the SQL and the documentation are derived from these declarations.  This module depends neither
on Spark nor on Arrow, and opens no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from bunqueue.model.names import SEPARATOR
from bunqueue.server.folder.shard_values import (
    job_extra,
    job_option,
    job_options,
    payload_error,
    payload_json,
)

Type = Literal["string", "int", "bigint", "double", "boolean", "timestamp", "binary", "array<string>"]
"""A type, as Spark names it.  In SQLite, a timestamp is epoch ms, and an array is JSON."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column.  ``sql`` is an expression over the source of its table, empty for a column that the reader
    adds.

    Expressions may use the FUNCTIONS of `shard_values`, and ``moment.now``, epoch ms.  With ``decode`` the
    expression is a blob, or null, and its value is what that makes of it.  ``on_request``: read only when it
    is named, because it takes long.  ``is_large``: a value may have megabytes.
    """

    name: str
    type: Type
    doc: str
    sql: str = ""
    on_request: bool = False
    decode: Callable[[bytes | None], Any] | None = None
    is_large: bool = False


class Fewer(NamedTuple):
    """How jobs in some states are read without looking at all others: each has a row in the table ``first``,
    from which ``source`` begins."""

    states: frozenset[str]
    source: str
    first: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table.  ``source`` follows FROM, and ``time`` is the column for the option ``since``.

    ``key`` is a whole number, as SQL, by whose ranges it is read.  Its values are those of ``seq`` in
    ``key_of``, the tables of which it has rows.  A table without a key is too small for that.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    source: str
    time: str
    key: str = ""
    key_of: tuple[str, ...] = ()
    fewer: tuple[Fewer, ...] = ()

    def column(self, name: str) -> Column | None:
        """The column with that name, ignoring case."""
        wanted = name.lower()
        return next((column for column in self.columns if column.name == wanted), None)

    @property
    def default_columns(self) -> tuple[Column, ...]:
        """The columns that are read when none are named."""
        return tuple(column for column in self.columns if not column.on_request)


HOST = Column("host", "string", "the machine, as the option `hosts` names it; else the name of this one")
NAMESPACE = "namespace"
SHARD = Column("shard", "int", "number of the shard; `host`, `shard` and `seq` together are unique")


CORRUPT = Column(
    "_corrupt",
    "string",
    "which values of the row are null because they cannot be decoded, and why; null: none",
    on_request=True,
)


def _option(name: str, kind: Type, doc: str) -> Column:
    return Column(name, kind, doc, "jobs.options", True, partial(job_option, name))


def _extra(name: str, kind: Type, doc: str) -> Column:
    return Column(name, kind, doc, "jobs.extra", True, partial(job_extra, name))


def _payloads(name: str, sql: str, whose: str) -> tuple[Column, ...]:
    return (
        Column(name, "string", f"{whose}, as JSON", sql, True, payload_json, True),
        Column(f"{name}_error", "string", f"why `{name}` is null", sql, True, payload_error, True),
        Column(f"{name}_raw", "binary", f"{whose}, as MessagePack", sql, True, is_large=True),
    )


_STATE = """case when completed.seq is not null then 'completed'
     when dead_letters.reason in ('cancelled', 'stuck') then dead_letters.reason
     when dead_letters.seq is not null then 'failed'
     when locks.seq is not null then 'active'
     when jobs.extra is not null and blocked(jobs.extra) is not null then blocked(jobs.extra)
     when jobs.waits is not null then 'waiting-' || jobs.waits
     when jobs.run_at > (select now from moment) then 'delayed'
     else 'waiting' end"""
_STARTED = "coalesce(completed.started_at, dead_letters.started_at, locks.started_at)"
_ATTEMPTS_MADE = "coalesce(completed.attempts, dead_letters.attempts, jobs.attempts)"
_WORKER = "nullif(coalesce(completed.worker, dead_letters.worker, locks.owner), '')"
_PROGRESS = """case when completed.seq is not null then 100.0
     else cast(coalesce(locks.progress, 0) as real) end"""
_RESULT = "coalesce(completed.result, large_outcomes.result)"


def _jobs_from(first: str = "") -> str:
    """The jobs with what belongs to them; or only those that have a row in the table ``first``."""
    by_seq = ("locks", "large_outcomes", "dead_letters")
    parts = [
        f"{first} cross join jobs on jobs.seq = {first}.seq" if first else "jobs",
        "join queues on queues.id = jobs.queue_id",
        "left join completed on completed.queue_id = jobs.queue_id and completed.seq = jobs.seq",
        *(f"left join {name} on {name}.seq = jobs.seq" for name in by_seq if name != first),
    ]
    return "\n".join(parts)


_JOBS = Table(
    "jobs",
    "A row a job, live or finished.",
    (
        HOST,
        SHARD,
        Column("seq", "bigint", "number of the job in its shard, by order of arrival", "jobs.seq"),
        Column("id", "string", "its id", "jobs.id"),
        Column("queue", "string", "its queue", "queues.name"),
        Column("name", "string", "its name", "jobs.name"),
        Column(
            "state",
            "string",
            "`waiting`, `delayed`, `active`, `waiting-children`, `waiting-signal`, `completed`, `failed`, "
            "`cancelled` or `stuck`",
            _STATE,
        ),
        Column("priority", "int", "higher goes first", "jobs.priority"),
        Column("created_at", "timestamp", "when it was pushed", "jobs.created_at"),
        Column("run_at", "timestamp", "from when on it may run: after its delay or a retry's", "jobs.run_at"),
        Column("started_at", "timestamp", "when its last attempt began", _STARTED),
        Column(
            "finished_at",
            "timestamp",
            "when it completed or became a dead letter",
            "coalesce(completed.finished_at, dead_letters.finished_at)",
        ),
        Column("attempts", "int", "attempts that failed", _ATTEMPTS_MADE),
        Column(
            "stalls",
            "int",
            "those whose worker fell silent",
            "coalesce(dead_letters.stalls, jobs.stalls)",
            on_request=True,
        ),
        _option("max_attempts", "int", "attempts that it may have"),
        Column("worker", "string", "who has it, or had it last", _WORKER),
        Column("reason", "string", "why it is a dead letter", "dead_letters.reason"),
        Column("error", "string", "of its last failed attempt", "coalesce(dead_letters.error, jobs.error)"),
        Column("unique_key", "string", "its unique key", "jobs.unique_key", True),
        _extra("custom_id", "string", "its custom id"),
        _extra("group_id", "string", "its group"),
        _extra("parent_id", "string", "the job that waits for it"),
        Column("progress", "double", "as its worker reported it, in percent", _PROGRESS, True),
        Column("data_bytes", "bigint", "bytes of its data as MessagePack", "length(jobs.data)", True),
        _option("tags", "array<string>", "its tags"),
        _option("added_by", "string", "the identity that added it; null on a server without identities"),
        _extra("depends_on", "array<string>", "jobs that it waits for, or did"),
        Column("options", "string", "its options, as JSON", "jobs.options", True, job_options),
        *_payloads("data", "jobs.data", "its data"),
        *_payloads("result", _RESULT, "its result"),
    ),
    _jobs_from(),
    "created_at",
    "jobs.seq",
    ("jobs",),
    (
        Fewer(frozenset(("failed", "cancelled", "stuck")), _jobs_from("dead_letters"), "dead_letters"),
        Fewer(frozenset(("active",)), _jobs_from("locks"), "locks"),
    ),
)

_ATTEMPTS = Table(
    "attempts",
    "A row an attempt that is over, whether it failed or completed its job.",
    (
        HOST,
        SHARD,
        Column("seq", "bigint", "number of the job in its shard", "tried.seq"),
        Column("job_id", "string", "the job", "tried.id"),
        Column("queue", "string", "its queue", "tried.queue"),
        Column("name", "string", "its name", "tried.name"),
        Column("number", "int", "1 is the first; a job that is revived counts anew", "tried.number"),
        Column("worker", "string", "who made it", "nullif(tried.worker, '')"),
        Column("started_at", "timestamp", "when it began", "tried.started_at"),
        Column("ended_at", "timestamp", "when it ended", "tried.ended_at"),
        Column(
            "outcome",
            "string",
            "`completed`, `explicit_fail`, `timeout`, `stalled`, `cancelled`, ..., or `interrupted`, "
            "which does not count",
            "tried.outcome",
        ),
        Column("error_type", "string", "the class of the error, if it was named", "tried.error_type"),
        Column("error", "string", "why it failed", "tried.error"),
        Column(
            "delay_ms", "bigint", "ms until the next one was due; null: there was no next one", "tried.delay"
        ),
        Column(
            "stack", "string", "its traceback, where the worker sent one", "tried.stack", True, is_large=True
        ),
    ),
    # Both halves start from the jobs, or a range of them: `completed` can only be found by its queue.
    """(
    select jobs.seq, jobs.id, queues.name as queue, jobs.name, past.number, past.worker,
           past.started_at, past.ended_at, past.outcome, past.error, past.stack, noted.error_type,
           noted.delay
    from attempts past join jobs on jobs.seq = past.seq join queues on queues.id = jobs.queue_id
    left join attempt_notes noted on noted.seq = past.seq and noted.number = past.number
        and noted.ended_at = past.ended_at
    union all
    select jobs.seq, jobs.id, queues.name, jobs.name, completed.attempts + 1, completed.worker,
           completed.started_at, completed.finished_at, 'completed', null, null, null, null
    from jobs cross join completed on completed.queue_id = jobs.queue_id and completed.seq = jobs.seq
    join queues on queues.id = jobs.queue_id
) tried""",
    "ended_at",
    "tried.seq",
    ("jobs", "attempts"),
)

_DEAD_LETTERS = Table(
    "dead_letters",
    "A row a dead letter: a job that has failed for good, or was cancelled while it ran.",
    (
        HOST,
        SHARD,
        Column("seq", "bigint", "number of the job in its shard", "dead_letters.seq"),
        Column("job_id", "string", "the job", "jobs.id"),
        Column("queue", "string", "its queue", "queues.name"),
        Column("name", "string", "its name", "jobs.name"),
        Column("created_at", "timestamp", "when it was pushed", "jobs.created_at"),
        Column("started_at", "timestamp", "when its last attempt began", "dead_letters.started_at"),
        Column("died_at", "timestamp", "when it became a dead letter", "dead_letters.finished_at"),
        Column("attempts", "int", "attempts that failed", "dead_letters.attempts"),
        Column("stalls", "int", "those whose worker fell silent", "dead_letters.stalls"),
        Column("worker", "string", "who had it last", "nullif(dead_letters.worker, '')"),
        Column("reason", "string", "why it is one", "dead_letters.reason"),
        Column("error", "string", "the last error", "dead_letters.error"),
        Column(
            "next_retry_at", "timestamp", "when it is next tried automatically", "dead_letters.next_retry_at"
        ),
        *_payloads("data", "jobs.data", "the job's data"),
    ),
    """dead_letters
join jobs on jobs.seq = dead_letters.seq
join queues on queues.id = dead_letters.queue_id""",
    "died_at",
    "dead_letters.seq",
    ("dead_letters",),
)

_STEPS = Table(
    "steps",
    "A row a step of a workflow: what it has recorded, and what it waits for.",
    (
        HOST,
        SHARD,
        Column("seq", "bigint", "number of the job in its shard", "steps.seq"),
        Column("job_id", "string", "the workflow", "jobs.id"),
        Column("queue", "string", "its queue", "queues.name"),
        Column("workflow", "string", "its name", "jobs.name"),
        Column("number", "int", "the step's place among those of the job, from 1 on", "steps.number"),
        Column("step", "string", "its name", "steps.name"),
        Column("kind", "string", "`step`, `sleep`, `signal`, `child`, `value` or `undo`", "steps.kind"),
        Column(
            "status",
            "string",
            "`running`, `retrying`, `waiting`, `completed`, `failed`, `timed-out`, `cancelled` or `skipped`",
            "steps.status",
        ),
        Column("attempts", "int", "the number of times that it was tried", "steps.attempts"),
        Column("started_at", "timestamp", "when its first attempt began", "steps.started_at"),
        Column("ended_at", "timestamp", "when it ended; null while it is open", "steps.ended_at"),
        Column("until", "timestamp", "when a wait ends, or the next attempt begins", "steps.until"),
        Column("worker", "string", "who has recorded it last", "steps.worker"),
        Column("signal", "string", "the signal that it waits for", "steps.signal"),
        Column("key", "string", "the key of broadcasts that it waits for", "steps.key"),
        Column("child", "string", "the id of the job that it has started", "steps.child"),
        Column("child_queue", "string", "the queue of that job", "steps.child_queue"),
        Column("undo", "boolean", "whether it can be undone", "steps.undo"),
        Column("error", "string", "its last error", "steps.error"),
        Column("result_bytes", "bigint", "how long its result is", "coalesce(length(steps.result), 0)"),
        *_payloads("result", "steps.result", "its result"),
    ),
    """(select * from steps where number > 0) steps
join jobs on jobs.seq = steps.seq
join queues on queues.id = jobs.queue_id""",
    "started_at",
    "steps.seq",
    ("steps",),
)

_EVENTS = Table(
    "events",
    "A row a transition of a job or a queue, from the event log.",
    (
        HOST,
        SHARD,
        Column("seq", "bigint", "number of the event in its shard", "seq"),
        Column("at", "timestamp", "when it happened", "at"),
        Column("kind", "string", "`pushed`, `pulled`, `completed`, `failed`, `retried`, ...", "kind"),
        Column("queue", "string", "its queue; null when that is gone for good", "queue"),
        Column("job_id", "string", "the job; null when it is about the queue", "job_id"),
        Column("error", "string", "of `failed`: why, at most 1024 characters", "error"),
        Column("terminal", "boolean", "of `failed`: whether it was the last attempt", "terminal"),
        Column("fields", "string", "what it says beside, as JSON", "fields", True),
    ),
    "events",  # a row of it has many events: see `event_rows`
    "at",
)


def _record(kind: str, path: str) -> str:
    return f"json_extract({kind}.value, '$.{path}')"


_pause, _limits, _cron = (partial(_record, kind) for kind in ("pause", "limits", "crons"))


def _whole(sql: str) -> str:
    """A number without its fraction; what is no number stays, to be noticed."""
    return f"case typeof({sql}) when 'real' then cast({sql} as integer) else {sql} end"


_QUEUES = Table(
    "queues",
    "A row a queue.",
    (
        HOST,
        SHARD,
        Column("queue", "string", "its name", "queues.name"),
        Column("created_at", "timestamp", "when it was first used", "queues.created_at"),
        Column("completed", "bigint", "completed jobs that are kept", "queues.completed"),
        Column("failed", "bigint", "dead letters that are kept", "queues.failed"),
        Column("paused", "boolean", "whether it is paused", "pause.value is not null"),
        Column("paused_at", "timestamp", "since when it is", _pause("since")),
        Column(
            "concurrency",
            "bigint",
            "jobs that may run at once; null: any number",
            _whole(_limits("concurrency")),
        ),
        Column(
            "rate_limit",
            "double",
            "jobs that may start in `rate_duration_ms`; null: any number",
            _limits("bucket.max"),
        ),
        Column("rate_duration_ms", "bigint", "see `rate_limit`", _limits("bucket.duration")),
    ),
    """queues
left join records pause on pause.kind = 'pause' and pause.key = queues.name
left join records limits on limits.kind = 'limits' and limits.key = queues.name""",
    "created_at",
)

_CRON = Table(
    "cron",
    "A row a schedule.",
    (
        HOST,
        SHARD,
        Column("name", "string", "its name", "crons.key"),
        Column("queue", "string", "the queue of its jobs", _cron("queue")),
        Column("job_name", "string", "their name", _cron("jobName")),
        Column("schedule", "string", "cron expression; null when it repeats", _cron("schedule")),
        Column("repeat_every_ms", "bigint", "ms between runs", _whole(_cron("repeatEvery"))),
        Column("timezone", "string", "of the expression; null: UTC", _cron("timezone")),
        Column("next_run", "timestamp", "when it runs next", _cron("nextRun")),
        Column("executions", "bigint", "runs so far", f"coalesce({_cron('executions')}, 0)"),
        Column("max_runs", "bigint", "runs that it may have; null: any number", _cron("maxLimit")),
        Column("priority", "int", "of its jobs", f"coalesce({_cron('priority')}, 0)"),
        Column("paused", "boolean", "whether it is stopped", f"coalesce({_cron('paused')}, 0)"),
        Column("app", "string", "the app that declares it", _cron("app")),
        Column(
            "missed", "bigint", "runs missed while the server was down", f"coalesce({_cron('missed')}, 0)"
        ),
        Column("last_run", "timestamp", "when its last job was added", _cron("lastRun.at")),
        Column("last_job", "string", "the id of that job", _cron("lastRun.jobId")),
        Column(
            "last_outcome",
            "string",
            "how that job ended: `completed`, `failed`, `cancelled`, `expired` or `removed`; null: not yet",
            _cron("lastRun.outcome"),
        ),
        Column("last_ended_at", "timestamp", "when that job ended", _cron("lastRun.endedAt")),
    ),
    "(select key, value from records where kind = 'cron') crons",
    "next_run",
)


def _said(path: str) -> str:
    return f"json_extract(entry.value, '$.{path}')"


_AUDIT = Table(
    "audit",
    "A row an entry of the trail: who changed what, and what was refused. Only data folders have it.",
    (
        HOST,
        Column("at", "timestamp", "when it was asked for", _said("at")),
        Column("who", "string", "the identity; null: nobody who is known", _said("who")),
        Column(
            NAMESPACE,
            "string",
            "the namespace that it is in, whose names the other columns have; null: none",
            _said("namespace"),
        ),
        Column("address", "string", "where the command came from", _said("address")),
        Column("over", "string", "`tcp`, `http` or `ws`", _said("over")),
        Column("what", "string", "the command", _said("what")),
        Column("queue", "string", "the queue that it names, if it does", _said("on.queue")),
        Column("fields", "string", "the fields of the command, as JSON", f"{_said('on')} || ''"),
        Column("count", "bigint", "the number of jobs, or of wrong tokens", _said("count")),
        Column("outcome", "string", "`ok`, or the code of the refusal", _said("outcome")),
        Column("request", "string", "the id of the request", _said("request")),
    ),
    "json_each(trail_files()) file, json_each(trail_entries(file.value)) entry",
    "at",
)

SKIPPED = Table(
    "skipped",
    "A row a shard that `unreadable=skip` leaves out.",
    (
        HOST,
        SHARD,
        Column("path", "string", "its file"),
        Column("reason", "string", "why it cannot be read, and what to do"),
        Column("at", "timestamp", "when that was found out"),
    ),
    "",  # found out where the query is planned
    "at",
)


def _with_namespace(columns: tuple[Column, ...]) -> Iterator[Column]:
    """Columns with the namespace after the queue that it is of, unless they have it."""
    has_it = any(column.name == NAMESPACE for column in columns)
    for column in columns:
        yield column
        if column.name == "queue" and not has_it:
            before = f"substr({column.sql}, 1, instr({column.sql}, '{SEPARATOR}') - 1)"
            yield Column(
                NAMESPACE, "string", "the namespace that the queue is in; null: none", f"nullif({before}, '')"
            )


TABLES: Mapping[str, Table] = {
    **{
        table.name: replace(table, columns=(*_with_namespace(table.columns), CORRUPT))
        for table in (_JOBS, _ATTEMPTS, _STEPS, _EVENTS, _DEAD_LETTERS, _QUEUES, _CRON, _AUDIT)
    },
    SKIPPED.name: SKIPPED,
}
DEFAULT_TABLE = "jobs"
