"""Jobs as rows and rows as jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.model.job import COMPLETED, FAILED, Extra, Job, Lock, Moment
from bunqueue.model.workflow import STEP_ROWS, Run
from bunqueue.protocol.job_view import stored_options
from shardproc.engine.outbox import COMPLETED_ROW, DEAD_ROW, JOB_ROW, LOCK_ROW

Row = tuple[Any, ...]

MAX_PURGE = 1 << 20  # bytes of payload deleted at once: each page is read, and needs room in the WAL
MAX_INLINE = 1000  # bytes of a result that are kept in the row of completed


class Family(Struct, rename="camel"):
    """The part of `Extra` that names a job's parent."""

    parent_id: str | None = None
    flow_id: str | None = None


family = Decoder(Family).decode
_encode = Encoder().encode
_decode_timeline = Decoder(list[Moment]).decode
_decode_extra = Decoder(Extra).decode
_decode_run = Decoder(Run).decode

JOB_COLUMNS = (
    "seq, id, queue_id, name, priority, created_at, run_at, attempts, stalls, error, unique_key,"
    " holds_key, timeline, lost_token, timed_out, options, data, extra, run"
)
LOG = "select seq, at, level, message from job_logs where seq = ? order by number"


def _timeline(job: Job) -> bytes | None:
    return None if job.timeline is None else _encode(job.timeline)


def _extra(job: Job) -> bytes | None:
    return None if job.extra is None else _encode(job.extra)


def fresh_rows(jobs: list[Job], queue_ids: dict[str, int]) -> list[Row]:
    """Rows of INSERT_FRESH."""
    return [
        (
            job.seq,
            job.id,
            queue_ids[job.queue],
            job.name,
            job.priority,
            job.created_at,
            job.run_at,
            job.data,
        )
        for job in jobs
    ]


def named_rows(jobs: list[Job], queue_ids: dict[str, int]) -> list[Row]:
    """Rows of INSERT_NAMED: they begin like those of INSERT_FRESH."""
    fresh = fresh_rows(jobs, queue_ids)
    return [(*row, job.shared.stored) for row, job in zip(fresh, jobs, strict=True)]


def job_row(job: Job, queue_id: int) -> Row:
    return (
        job.seq,
        job.id,
        queue_id,
        job.name,
        job.priority,
        job.created_at,
        job.run_at,
        job.attempts,
        job.stalls,
        job.error,
        job.unique_key,
        int(job.holds_key),  # sqlite3 binds exact types many times faster than others
        _timeline(job),
        job.lost_token,
        int(job.timed_out),
        job.shared.stored,
        job.data,
        _extra(job),
        int(job.extra is not None and job.extra.own_id),
    )


def job_update(job: Job) -> Row:
    return (
        job.priority,
        job.created_at,
        job.run_at,
        job.attempts,
        job.stalls,
        job.error,
        job.unique_key,
        int(job.holds_key),
        _timeline(job),
        job.lost_token,
        int(job.timed_out),
        job.shared.stored,
        job.data,
        _extra(job),
        job.seq,
    )


def run_job_row(job: Job, queue_id: int) -> Row:
    return (*job_row(job, queue_id), *_run(job))


def run_job_update(job: Job) -> Row:
    *given, seq = job_update(job)
    return (*given, *_run(job), seq)


def _run(job: Job) -> Row:
    """The data of a job with steps, and what it waits for."""
    run = job.run
    waits = run.waits if run is not None else None
    return _encode(run), None if waits is None else "signal" if waits.signal else "children"


def fresh_lock_rows(jobs: list[Job]) -> list[Row]:
    """Rows of INSERT_LOCK, for jobs that have a lock."""
    return [
        (job.seq, lock.token, lock.owner, lock.ttl, job.started_at, lock.conn)
        for job in jobs
        if (lock := job.lock) is not None
    ]


def lock_row(job: Job, lock: Lock) -> Row:
    return (
        job.seq,
        lock.token,
        lock.owner,
        lock.ttl,
        job.started_at,
        lock.conn,
        job.progress,
        job.progress_message,
        int(lock.renewed),
        lock.until,
    )


def success_rows(jobs: list[Job], queue_ids: dict[str, int]) -> list[Row]:
    """Rows of INSERT_SUCCESS: jobs without progress and with an ordinary history."""
    return [
        (
            queue_ids[job.queue],
            job.seq,
            job.started_at,
            job.finished_at,
            job.attempts,
            job.worker,
            job.result,
        )
        for job in jobs
    ]


def is_large(job: Job) -> bool:
    """Whether the outcome of a completed job has to be stored in a row of its own."""
    result = job.result
    return job.timeline is not None or (result is not None and len(result) > MAX_INLINE)


def large_row(job: Job) -> Row:
    return (job.seq, _timeline(job), job.result)


def completed_row(job: Job, queue_id: int) -> Row:
    apart = is_large(job)
    return (
        queue_id,
        job.seq,
        job.started_at,
        job.finished_at,
        job.attempts,
        job.worker,
        job.progress,
        job.progress_message,
        int(apart),
        None if apart else job.result,
    )


def dead_letter_row(job: Job, queue_id: int) -> Row:
    return (
        job.seq,
        queue_id,
        job.finished_at,
        job.started_at,
        job.attempts,
        job.stalls,
        job.worker,
        job.reason,
        job.error,
        _timeline(job),
        None if job.extra is None or job.extra.auto_retries is None else job.extra.auto_retries.next_at,
    )


def expiry_row(job: Job, queue_id: int) -> Row | None:
    """When a finished job should be removed; None unless the job sets that itself."""
    kept = None if job.extra is None else job.extra.kept_for(job.state)
    if kept is None or job.finished_at is None:
        return None
    return (job.seq, queue_id, job.finished_at, job.finished_at + int(kept))


# Numbers, ids, times and bytes of finished jobs. For jobs that are too young, the payload is not read.
OLD_COMPLETED = """
select old.seq, jobs.id, old.finished_at, expiries.at,
       length(jobs.data) + coalesce(length(large_outcomes.result), 0)
from (select seq, finished_at, large from completed
      where queue_id = ? and seq > ? order by seq limit ?) old
left join jobs on jobs.seq = old.seq and old.finished_at <= ?
left join large_outcomes on large_outcomes.seq = jobs.seq and old.large
left join expiries on expiries.seq = old.seq
order by old.seq
"""
OLD_DEAD_LETTERS = """
select old.seq, jobs.id, old.reason, substr(old.error, 1, 1024), old.attempts, length(jobs.data)
from (select seq, finished_at, reason, error, attempts from dead_letters
      where queue_id = ? and finished_at <= ?
      and not (? and exists (select 1 from expiries where expiries.seq = dead_letters.seq))
      order by finished_at, seq limit ?) old
join jobs on jobs.seq = old.seq
order by old.finished_at, old.seq
"""
EXPIRED = f"""
select expiries.seq, jobs.queue_id, iif(completed.seq is null, {FAILED}, {COMPLETED}),
       jobs.id, dead_letters.reason, substr(dead_letters.error, 1, 1024), dead_letters.attempts,
       length(jobs.data) + coalesce(length(large_outcomes.result), 0)
from expiries
join jobs on jobs.seq = expiries.seq
left join completed on completed.queue_id = jobs.queue_id and completed.seq = expiries.seq
left join dead_letters on dead_letters.seq = expiries.seq
left join large_outcomes on large_outcomes.seq = expiries.seq
where expiries.at <= ? and (completed.seq is not null or dead_letters.seq is not null)
order by expiries.at, expiries.seq limit ?
"""
DEAD_LETTERS = """
select finished_at, seq, reason, next_retry_at from dead_letters
where queue_id = ? and (finished_at, seq) > (?, ?) order by finished_at, seq limit ?
"""
MATCHING = """
select jobs.seq from json_each(:seqs) asked
join jobs on jobs.seq = asked.value
join dead_letters on dead_letters.seq = jobs.seq
where (:name is null or jobs.name = :name)
and (:error is null or instr(lower(dead_letters.error), lower(:error)) > 0)
"""


def last_error_type(seq: str) -> str:
    """SQL for the class of the last error of a job; ``seq`` is SQL for its number. An older attempt may have
    had a class and the last one has no class."""
    return f"""(select note.error_type from attempts past left join attempt_notes note
on note.seq = past.seq and note.number = past.number and note.ended_at = past.ended_at
where past.seq = {seq} and past.outcome not in ('completed', 'interrupted', 'cancelled')
order by past.ended_at desc, past.number desc limit 1)"""


ERRORS = f"""
select dead.seq, {last_error_type("dead.seq")}, dead.error
from json_each(?) asked join dead_letters dead on dead.seq = asked.value
"""
DUE_RETRIES = """
select seq from dead_letters where queue_id = ? and next_retry_at <= ? order by next_retry_at limit ?
"""

_LIVE = """
not exists (select 1 from completed
            where completed.queue_id = jobs.queue_id and completed.seq = jobs.seq)
and not exists (select 1 from dead_letters where dead_letters.seq = jobs.seq)
"""


def _live_of(maybe: str) -> str:
    """The query for the live jobs among some, in order of arrival; ``maybe`` selects their numbers."""
    return f"""
select {", ".join("jobs." + name.strip() for name in JOB_COLUMNS.split(","))},
       locks.token, locks.owner, locks.ttl, locks.started_at, locks.conn,
       locks.progress, locks.progress_message, locks.renewed, locks.until
from ({maybe}) maybe
join jobs on jobs.seq = maybe.seq
left join locks on locks.seq = jobs.seq
where {_LIVE}
order by jobs.seq
"""


LIVE_JOBS = _live_of(
    """select seq from stragglers where seq < :live_from
      union all select seq from jobs where seq >= :live_from"""
)
LIVE_AMONG = _live_of("select value as seq from json_each(?)")


def live_job(row: Row, queues: dict[int, str]) -> Job:
    """A row of LIVE_JOBS or LIVE_AMONG as a job."""
    job = _job(row, queues)
    job.stored |= JOB_ROW
    token, owner, ttl, started_at, conn, progress, message, renewed, until = row[19:28]
    if token is not None:
        job.stored |= LOCK_ROW
        job.started_at = started_at
        job.progress, job.progress_message = progress, message
        job.lock = Lock(token, owner, ttl, until, conn, 0, bool(renewed))
    return job


def _job(row: Row, queues: dict[int, str]) -> Job:
    timeline = row[12]
    return Job(
        row[0],
        row[1],
        queues[row[2]],
        _name(row[3]),
        row[16],
        stored_options(row[15]),
        row[4],
        row[5],
        row[6] if row[6] != row[5] else row[5],  # one int object for both, times a million
        attempts=row[7],
        stalls=row[8],
        error=row[9],
        unique_key=row[10],
        holds_key=bool(row[11]),
        timeline=None if timeline is None else _decode_timeline(timeline),
        lost_token=row[13],
        timed_out=bool(row[14]),
        extra=None if row[17] is None else _decode_extra(row[17]),
        run=None if row[18] is None else _decode_run(row[18]),
        stored=0 if row[18] is None else STEP_ROWS,  # it may have steps: checking costs more
    )


@lru_cache(maxsize=1024)
def _name(name: str) -> str:
    """The same string object for the same job name: a million copies would add up."""
    return name


FINISHED_COLUMNS = (
    ", ".join("jobs." + name.strip() for name in JOB_COLUMNS.split(","))
    + """,
    completed.started_at, completed.finished_at, completed.attempts, completed.worker,
    completed.progress, completed.progress_message, large_outcomes.timeline,
    coalesce(completed.result, large_outcomes.result),
    dead_letters.started_at, dead_letters.finished_at, dead_letters.attempts, dead_letters.stalls,
    dead_letters.worker, dead_letters.reason, dead_letters.error, dead_letters.timeline,
    dead_letters.next_retry_at"""
)
FINISHED_FROM = """
from jobs
left join completed on completed.queue_id = jobs.queue_id and completed.seq = jobs.seq
left join large_outcomes on large_outcomes.seq = jobs.seq
left join dead_letters on dead_letters.seq = jobs.seq
"""


def finished_job(row: Row, queues: dict[int, str]) -> Job | None:
    """A row of FINISHED_COLUMNS as a job; None when the job is live."""
    job = _job(row, queues)
    if row[20] is not None:
        job.state = COMPLETED
        job.stored |= JOB_ROW | COMPLETED_ROW
        job.started_at, job.finished_at, job.attempts, job.worker = row[19:23]
        job.progress, job.progress_message = row[23:25]
        timeline, job.result = row[25:27]
    elif row[28] is not None:
        job.state = FAILED
        job.stored |= JOB_ROW | DEAD_ROW
        job.started_at, job.finished_at, job.attempts, job.stalls = row[27:31]
        job.worker, job.reason, job.error, timeline = row[31:35]
        if job.extra is not None and job.extra.auto_retries is not None:
            job.extra.auto_retries.next_at = row[35]
    else:
        return None
    job.timeline = None if timeline is None else _decode_timeline(timeline)
    return job


def bounded(found: Iterable[Row]) -> Iterator[Row]:
    """Rows until their last column, the bytes to delete, adds up to MAX_PURGE."""
    size = 0
    for row in found:
        yield row
        size += row[-1] or 0
        if size > MAX_PURGE:
            return
