"""Queues and jobs by name or id, live or finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from bunqueue.model.dead_letters import MAX_ENTRIES
from bunqueue.model.ids import seq_of_id
from bunqueue.model.job import Job
from bunqueue.model.names import prefix_of, queue_name_problem
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.encoded import for_people

from .state import QueueState, State


def known_queue(state: State, name: str) -> QueueState | None:
    """The queue of that name, or None if it does not exist; CommandError if the name is invalid."""
    queue = state.queues.get(name)
    if queue is None and (problem := queue_name_problem(name)):
        raise CommandError(problem, Code.INVALID_QUEUE, field="queue", value=name)
    return queue


def admit_queues(state: State, names: Iterable[str], jobs: int = 0) -> None:
    """CommandError unless queues with these names exist or may be created, for so many ``jobs`` in each
    namespace."""
    new = [name for name in names if name not in state.queues]
    if new:
        state.kept.admit_queues(len(new), len(state.queues), "queue", new[0])
        for tenant, more in Counter(map(state.tenants.of, new)).items():
            if tenant is not None:
                tenant.admit("queues", tenant.queues, more)
                tenant.admit("jobs", tenant.jobs, jobs)


def has_its_id(queue: str, job_id: str) -> bool:
    """Whether a job of this queue may have the id: in a namespace, those that clients choose begin with it,
    as nobody there could name another one."""
    prefix = prefix_of(queue)
    return not prefix or job_id.startswith(prefix) or seq_of_id(job_id) is not None


def check_own_id(queue: str, job_id: str, field: str) -> None:
    """CommandError if a job of this queue may not have this id."""
    if not has_its_id(queue, job_id):
        prefix = prefix_of(queue)
        instead = f"{prefix}{job_id}"[:80]
        text = f"ids of jobs of the queue {queue} begin with {prefix}: give {instead!r}, or none"
        raise CommandError(text, Code.INVALID_FIELD, field=field, value=job_id, bound=prefix)


def find(state: State, job_id: str) -> Job | None:
    return state.jobs.get(job_id) or state.archive.find(job_id)


def known_job(state: State, job_id: str) -> Job:
    """A live or finished job.  CommandError if it does not exist."""
    job = find(state, job_id)
    if job is None:
        raise not_found(state, job_id)
    return job


def not_found(state: State, job_id: str, field: str = "id") -> CommandError:
    """The error for a job that does not exist, or no longer does.  For a dropped dead letter it explains
    why."""
    why = explanation(state, job_id)
    text = f"Job not found: {why}" if why else "Job not found"
    return CommandError(text, Code.JOB_NOT_FOUND, field=field, value=job_id)


def explanation(state: State, job_id: str) -> str:
    """Why a job is gone; "" if that is not known."""
    letter = state.dropped.look_up(state.archive, job_id)
    if letter is None:
        return ""
    at = datetime.fromtimestamp(letter.at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    why = f"there were more than {letter.most:,} (max_entries)"
    if letter.why != MAX_ENTRIES:
        why = "it was too old (max_age)"
    text = f"it was a dead letter of queue {letter.queue!r}, and was dropped at {at} as {why}"
    return f"{text}; its error: {for_people(letter.error or letter.reason)}"


def wrong_state(job_id: str, text: str, allowed: str, field: str = "id") -> CommandError:
    """The error for a job in a state that does not allow the command; ``allowed`` names the states that
    do."""
    return CommandError(text, Code.JOB_STATE, field=field, value=job_id, bound=allowed)


def being_cancelled(job_id: str, text: str = "only its end can be reported") -> CommandError:
    """The error for a job that may still run, but can only end as cancelled."""
    text = f"Job {job_id} is being cancelled: {text}"
    return CommandError(text, Code.JOB_CANCELLED, field="id", value=job_id)


def key_is_taken(job_id: str, holder: str | None) -> CommandError:
    """The error for a finished job that cannot run again while another one has its unique key."""
    text = f"Cannot move job {job_id} to waiting: job {holder} has its unique key"
    return CommandError(
        text, Code.JOB_STATE, field="uniqueKey", value=holder, bound="a key that no other job has"
    )
