"""All jobs and attempts as two narrow tables, from which all numbers are computed.

Jobs come from the table of jobs.  Jobs that are gone (removed on completion, expired, drained) come from the
event log: see `bunqueue.analytics.lives`.  All times are epoch ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from bunqueue.analytics import lives
from bunqueue.analytics.engine import Engine
from bunqueue.model.dead_letters import CANCELLED, INTERRUPTED, REASONS

LOST = "('interrupted', 'cancelled', 'completed')"  # outcomes of attempts that are not failures
NOT_COMPLETED = (*REASONS, CANCELLED, INTERRUPTED)
JOB_COLUMNS = (
    *("host", "shard", "id", "queue", "name", "state", "created_at", "run_at", "started_at", "finished_at"),
    *("attempts", "worker", "depends_on"),
)
ATTEMPT_COLUMNS = (
    *("host", "job_id", "queue", "name", "worker", "started_at", "ended_at", "outcome", "error_type"),
    "error",
)
EVENT_COLUMNS = ("host", "shard", "seq", "at", "kind", "queue", "job_id", "error", "terminal", "fields")
ENDED = ("completed", "failed", "cancelled", "stuck")  # states of jobs that have ended
_BACK = ("ready", "released", "waiting")  # after these a job may be taken, whatever its run time is
_UNDOING = "undoing"
FAILED_OUTCOMES = "({})".format(", ".join(f"'{outcome}'" for outcome in NOT_COMPLETED))


class Begin(NamedTuple):
    """The number and the time (epoch ms) of the oldest event in the log of a shard."""

    host: str
    shard: int
    seq: int
    at: int


class Source(NamedTuple):
    """The input: names of views with the columns above.  ``events`` makes a view of the events of some kinds,
    ``begins`` returns the starts of their logs.  ``keeps_gone``: there may be rows of jobs that are no longer
    on their server."""

    jobs: str
    attempts: str
    events: Callable[[Sequence[str]], str]
    begins: Callable[[], Iterable[Begin]]
    keeps_gone: bool = False


class Log(NamedTuple):
    """The contents of the event logs: how many jobs left (``gone``), and how many were undone
    (``undone``)."""

    begins: tuple[Begin, ...]
    gone: int
    undone: int


def make(engine: Engine, source: Source, until: int) -> Log:
    """Make the tables ``jobs`` and ``attempts``: all jobs that were created before a moment, in their state
    at that moment, and those of their attempts that had ended.

    ``jobs``: host, queue, name, id, outcome (null: the job has not ended), created, due, started, ended,
    failures, worker.  ``attempts``: host, queue, name, id, worker, started, ended, outcome, error_type,
    error."""
    # A source that keeps rows of gone jobs has those of purged jobs, as far as it had read them before.
    gone = list(lives.GONE) if source.keeps_gone else [*lives.GONE, lives.PURGED]
    _events(engine, source, [*gone, *_BACK, _UNDOING], until, "moves")
    log = _summarize(engine, source.begins())
    _give_begins(engine, log.begins)
    _make_undone(engine, source, log, until)
    engine.view("stored_jobs", _stored_jobs(source.jobs))
    engine.view("failed_attempts", _failed_attempts(source.attempts))
    jobs, failed = "stored_jobs", "failed_attempts"
    if log.gone:
        _events(engine, source, [*{*lives.KINDS, *gone}], until, "logged")
        lives.make(engine)
        if source.keeps_gone:
            engine.keep("kept_jobs", f"select * from {jobs}")
            engine.keep("kept_attempts", f"select * from {failed}")
            jobs, failed = "kept_jobs", "kept_attempts"
        engine.view("jobs_and_gone", _with_gone(jobs, "removed_jobs", source.keeps_gone))
        engine.view("failed_and_gone", _with_gone(failed, "removed_attempts", source.keeps_gone))
        jobs, failed = "jobs_and_gone", "failed_and_gone"
    engine.keep("jobs", _JOBS_THEN.format(jobs=jobs, until=until))
    engine.keep("attempts", _ATTEMPTS_THEN.format(failed=failed, until=until))
    return log


def _events(engine: Engine, source: Source, kinds: Sequence[str], until: int, name: str) -> None:
    """Keep the events of some kinds under a name."""
    engine.keep(
        name,
        f"""select host, shard, seq, unix_millis(events.at) as moment, kind, queue, job_id, error,
            terminal, fields
        from {source.events(kinds)} events where unix_millis(events.at) < {until}""",
    )


def _summarize(engine: Engine, begins: Iterable[Begin]) -> Log:
    """How much has to be looked up in the event logs.  In most logs, that is little or nothing."""
    back = ", ".join(f"'{kind}'" for kind in (*_BACK, _UNDOING))
    (row,) = engine.rows(
        f"""select cast(coalesce(sum(case when kind not in ({back}) then 1 end), 0) as bigint) as gone,
        cast(coalesce(sum(case when kind = '{_UNDOING}' then 1 end), 0) as bigint) as undone from moves"""
    )
    return Log(tuple(begins), row["gone"], row["undone"])


def _give_begins(engine: Engine, begins: Sequence[Begin]) -> None:
    schema = pa.schema([("host", pa.string()), ("shard", pa.int32()), ("oldest", pa.int64())])
    rows = [{"host": each.host, "shard": each.shard, "oldest": each.at} for each in begins]
    engine.give("begins", pa.Table.from_pylist(rows, schema))


def _make_undone(engine: Engine, source: Source, log: Log, until: int) -> None:
    """``undone``: from when until when a job ran only to be undone.  That is no attempt."""
    if log.undone:
        _events(engine, source, ["failed"], until, "failures_logged")
    engine.keep("undone", _UNDONE.format(ended="failures_logged" if log.undone else "moves", until=until))


_UNDONE = f"""
with each as (
    select u.host, u.job_id as id, u.moment as since, coalesce(min(f.moment), {{until}}) as until
    from moves u left join {{ended}} f on f.host = u.host and f.shard = u.shard and f.job_id = u.job_id
        and f.seq > u.seq and f.terminal and coalesce(get_json_object(f.fields, '$.reason'), '') <> 'stuck'
    where u.kind = '{_UNDOING}' group by u.host, u.job_id, u.moment
)
select host, id, min(since) as since, until from each group by host, id, until"""


def _stored_jobs(jobs: str) -> str:
    """Jobs from the table of jobs.

    ``freed``: when the last job that a job depended on had completed.  ``back``: when a worker last had to
    give it up; it was not due before that.  Where the event log does not go back that far, it is unknown when
    a job that depended on others was due.  Of a job that was undone, it is unknown when its last attempt
    began."""
    back = ", ".join(f"'{kind}'" for kind in _BACK)
    return f"""
with flat as (
    select host, shard, queue, name, id,
        case when state in ('completed', 'failed', 'cancelled') then state
            when state = 'stuck' then 'failed' end as outcome,
        unix_millis(created_at) as created,
        case when state <> 'waiting-children' then unix_millis(run_at) end as due,
        unix_millis(started_at) as started, unix_millis(finished_at) as ended,
        cast(attempts as bigint) as failures, coalesce(worker, '') as worker,
        coalesce(size(depends_on), 0) > 0 as depends
    from {jobs}
), moments as (
    select host, job_id as id, max(case when kind = 'ready' then moment end) as freed,
        max(case when kind <> 'ready' then moment end) as back
    from moves where kind in ({back}) group by host, job_id
), dependent as (
    select flat.*, back, case when not depends then due
            when freed is null then case when created >= oldest then due end
            when due is not null then greatest(due, freed) end as free
    from flat left join moments using (host, id) left join begins using (host, shard)
), again as (
    select *, case when free is not null and back <= coalesce(started, ended, back) then greatest(free, back)
        else free end as due_again
    from dependent
)
select again.host, queue, name, again.id, outcome, created,
    case when undone.id is null then due_again end as due,
    case when undone.id is null then started end as started,
    ended, failures, worker
from again left join (select distinct host, id, until from undone) undone
    on undone.host = again.host and undone.id = again.id and undone.until = again.ended"""


def _failed_attempts(attempts: str) -> str:
    """The attempts that did not complete their job.  Their outcomes are named, because that is what shards
    can be asked for."""
    return f"""
with failed as (
    select host, queue, name, job_id as id, coalesce(worker, '') as worker,
        unix_millis(started_at) as started, unix_millis(ended_at) as ended, outcome, error_type, error
    from {attempts} where outcome in {FAILED_OUTCOMES}
)
select failed.* from failed anti join undone
    on undone.host = failed.host and undone.id = failed.id
    and failed.started >= undone.since and failed.ended > undone.since and failed.ended <= undone.until"""


def _with_gone(stored: str, gone: str, both: bool) -> str:
    """The stored rows and those of the event log.  ``both``: some may be in both."""
    # Not "using", with which Spark puts these columns first: a union goes by their places.
    same = " and ".join(f"{stored}.{name} = {gone}.{name}" for name in ("host", "id", "ended"))
    rest = f"{gone} anti join {stored} on {same}" if both else gone
    return f"select * from {stored} union all select {gone}.* from {rest}"


_JOBS_THEN = """
select host, queue, name, id, case when ended < {until} then outcome end as outcome, created, due, started,
    case when ended < {until} then ended end as ended, failures, worker
from {jobs} where created < {until}"""
_ATTEMPTS_THEN = """
select host, queue, name, id, worker, started, ended, outcome, error_type, error from {failed}
where ended < {until}
union all
select host, queue, name, id, worker, started, ended, outcome, cast(null as string), cast(null as string)
from jobs where outcome = 'completed' and started is not null"""
