"""A job in transit from one shard to another: everything that is stored of it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.model.job import FAILED, Extra, Job, Moment
from bunqueue.protocol.job_view import stored_options

from ..lifecycle import unique_keys
from ..lifecycle.timeline import note
from ..outbox import Attempt, LogEntry
from ..state import QueueState, State


class Carried(Struct, array_like=True):
    """A job in transit; the fields are those of `Job`.  ``seq`` is its number on the shard it comes from, to
    which it returns if it is refused."""

    seq: int
    queue: str
    id: str
    name: str
    data: bytes
    options: bytes | None
    extra: Extra | None
    priority: int
    created_at: int
    run_at: int
    attempts: int
    stalls: int
    error: str | None
    unique_key: str | None
    holds_key: bool
    timeline: list[Moment] | None
    dead: bool
    reason: str | None
    started_at: int | None
    finished_at: int | None
    worker: str
    past: list[Attempt]
    log: list[LogEntry]


encode_all = Encoder().encode
decode_all = Decoder(list[Carried]).decode


def carried_of(state: State, job: Job) -> Carried:
    archive = state.archive
    return Carried(
        job.seq,
        job.queue,
        job.id,
        job.name,
        job.data,
        job.shared.stored,
        job.extra,
        job.priority,
        job.created_at,
        job.run_at,
        job.attempts,
        job.stalls,
        job.error,
        job.unique_key,
        job.holds_key or unique_keys.has_after_its_end(state, state.queues[job.queue], job),
        job.timeline,
        job.state == FAILED,
        job.reason,
        job.started_at,
        job.finished_at,
        job.worker,
        archive.attempts([job.seq], interrupted=True).get(job.seq, []),
        archive.log(job.seq),
    )


def job_of(carried: Carried, queue: QueueState, seq: int) -> Job:
    extra = carried.extra or Extra()
    extra.own_id = True  # it contains neither the number nor the queue any more
    extra.schedule = None
    return Job(
        seq,
        carried.id,
        queue.name,
        carried.name,
        carried.data,
        stored_options(carried.options),
        carried.priority,
        carried.created_at,
        carried.run_at,
        attempts=carried.attempts,
        stalls=carried.stalls,
        error=carried.error,
        unique_key=carried.unique_key,
        timeline=carried.timeline,
        extra=extra,
    )


def keep_rows(state: State, carried: Carried, job: Job) -> None:
    """Keep the attempts and the log of a job under its new number."""
    for attempt in carried.past:
        attempt.seq = job.seq
    for entry in carried.log:
        entry.seq = job.seq
        entry.kept = len(carried.log)
    state.out.attempts += carried.past
    state.out.logs += carried.log


def begin_anew(state: State, job: Job) -> None:
    """Restart a dead letter with all its attempts."""
    note(job, Moment("waiting", state.now))
    job.attempts = job.stalls = 0
    job.run_at, job.error = state.now, None
    if job.extra is not None:
        job.extra.auto_retries = job.extra.stacktrace = None
        job.extra.drops = job.extra.postponed = 0
