"""Jobs with ``repeat``: each one that completes is followed by another."""

from __future__ import annotations

from msgspec.structs import replace

from bunqueue.model.job import Extra, Job

from .state import QueueState, State


def successor(state: State, queue: QueueState, job: Job, extra: Extra) -> Job | None:
    """The job that follows a completed one, due ``every`` ms from now; None when its repetitions are used up.

    It is a job of its own, with a new id; what tied the first one to other jobs is not repeated.
    """
    repeat = extra.repeat or {}
    every, limit, count = repeat.get("every"), repeat.get("limit"), int(repeat.get("count") or 0)
    if not every or (limit is not None and count >= limit):
        return None
    key_ttl = extra.deduplication_ttl
    seq = state.next_seq
    state.next_seq += 1
    state.totals.pushed += 1
    state.out.durable = state.out.durable or job.options.durable
    again = Job(
        seq,
        state.ids.job_id(queue.slot, state.now, seq),
        queue.name,
        job.name,
        job.data,
        job.shared,
        job.priority,
        state.now,
        state.now + max(1, int(every)),
        extra=replace(
            extra,
            custom_id=None,
            parent_id=None,
            depends_on=[],
            children_ids=[],
            stacktrace=None,
            repeat={**repeat, "count": count + 1},
            key_until=None if key_ttl is None else state.now + int(key_ttl),
        ),
    )
    if job.unique_key is not None:
        again.unique_key = job.unique_key
        again.holds_key = job.unique_key not in queue.unique
        queue.unique.setdefault(job.unique_key, again.id)
    return again
