"""Looking at jobs: live ones in memory, finished ones in the archive."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from msgspec import UNSET, Raw

from bunqueue.model.job import ACTIVE, COMPLETED, DELAYED, FAILED, STATE_NAMES, WAITING, Job
from bunqueue.model.names import queue_name_problem
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.query import (
    Count,
    CountReply,
    Counts,
    GetJob,
    GetJobCounts,
    GetJobs,
    GetProgress,
    GetResult,
    GetState,
    JobCountsReply,
    JobReply,
    JobsReply,
    Progress,
    ProgressReply,
    ResultReply,
    StateReply,
)
from bunqueue.protocol.job_view import FINISHED, job_list, queried_job, state_name

from .registry import handles
from .state import Client, QueueState, State

MAX_REPLY = 60 * 1024 * 1024  # bytes of payload; a frame holds 64 MiB
LIVE = frozenset({WAITING, DELAYED, ACTIVE})
ALL = LIVE | FINISHED
STATES = {
    "waiting": frozenset({WAITING}),
    "prioritized": frozenset({WAITING}),
    "delayed": frozenset({DELAYED}),
    "active": frozenset({ACTIVE}),
    "completed": frozenset({COMPLETED}),
    "failed": frozenset({FAILED}),
}


def known_queue(state: State, name: str) -> QueueState | None:
    """The queue of that name, None if there is none; an impossible name is an error."""
    queue = state.queues.get(name)
    if queue is None and (problem := queue_name_problem(name)):
        raise CommandError(problem)
    return queue


def shown(state: State, client: Client, jobs: list[Job]) -> list[bytes]:
    """Jobs as queries show them; an error when they would not fit into a frame."""
    if sum(len(job.data) + len(job.result or b"") for job in jobs) > MAX_REPLY:
        what = f"{len(jobs)} jobs are" if len(jobs) > 1 else "The job and its result are"
        raise CommandError(f"{what} too large for one answer, ask for fewer with a smaller limit")
    encoded = [queried_job(job, state_name(job, client.version)) for job in jobs]
    state.out.size += sum(map(len, encoded))
    return encoded


def _find(state: State, job_id: str) -> Job | None:
    return state.jobs.get(job_id) or state.archive.find(job_id)


@handles(GetJob)
def get_job(state: State, client: Client, command: GetJob) -> JobReply:
    job = _find(state, command.id)
    if job is None:
        raise CommandError("Job not found")
    return JobReply(job=Raw(shown(state, client, [job])[0]))


@handles(GetState)
def get_state(state: State, client: Client, command: GetState) -> StateReply:
    job = _find(state, command.id)
    name = "unknown" if job is None else state_name(job, client.version)
    return StateReply(id=command.id, state=name)


@handles(GetResult)
def get_result(state: State, client: Client, command: GetResult) -> ResultReply:
    job = _find(state, command.id)
    result = job.result if job is not None and job.state == COMPLETED else None
    state.out.size += len(result or b"")
    return ResultReply(id=command.id, result=UNSET if result is None else Raw(result))


@handles(GetJobs)
def get_jobs(state: State, client: Client, command: GetJobs) -> JobsReply:
    queue = known_queue(state, command.queue)
    wanted = [command.state] if isinstance(command.state, str) else command.state
    if queue is None:
        return JobsReply(jobs=job_list([]))
    states = ALL
    if wanted:
        states = frozenset().union(*(STATES.get(name, frozenset()) for name in wanted))
    end = command.offset + command.limit
    live = _live(queue, states, client.version, wanted, newest=not command.asc)
    finished: list[int] = []
    if states & FINISHED:
        finished = state.archive.seqs(queue.id, states & FINISHED, end, not command.asc)
    both = merge(live, finished, reverse=not command.asc)
    seqs = list(islice(both, command.offset, end))
    loaded = state.archive.load([seq for seq in seqs if seq not in queue.jobs])
    jobs = [queue.jobs.get(seq) or loaded[seq] for seq in seqs]
    return JobsReply(jobs=job_list(shown(state, client, jobs)))


def _live(
    queue: QueueState, states: frozenset[int], version: int, wanted: list[str] | None, *, newest: bool
) -> Iterator[int]:
    """Numbers of the live jobs of a queue in some states, by order of arrival."""
    if not states & LIVE:
        return iter(())
    if queue.unsorted:
        queue.jobs = dict(sorted(queue.jobs.items()))
        queue.unsorted = False
    jobs = reversed(queue.jobs.values()) if newest else iter(queue.jobs.values())
    if version >= 3 and wanted:
        return (j.seq for j in jobs if j.state in states and state_name(j, version) in wanted)
    return (job.seq for job in jobs if job.state in states)


@handles(GetJobCounts)
def get_job_counts(state: State, client: Client, command: GetJobCounts) -> JobCountsReply:
    queue = known_queue(state, command.queue)
    if queue is None:
        return JobCountsReply(counts=Counts(0, 0, 0, 0, 0))
    counts = Counts(queue.waiting, queue.delayed, queue.active, queue.completed, queue.failed)
    if client.version >= 3:
        if queue.paused:
            counts.waiting, counts.paused = 0, queue.waiting
        else:
            counts.prioritized = queue.ready.prioritized()
            counts.waiting -= counts.prioritized
    return JobCountsReply(counts=counts)


@handles(Count)
def count(state: State, client: Client, command: Count) -> CountReply:
    queue = known_queue(state, command.queue)
    if queue is None:
        return CountReply(count=0)
    queued = queue.waiting + queue.delayed
    if client.version >= 3:
        return CountReply(count=queued)
    return CountReply(count=queued + queue.active + queue.completed + queue.failed)


def _active(state: State, job_id: str) -> Job:
    job = _find(state, job_id)
    if job is None:
        raise CommandError("Job not found")
    if job.state != ACTIVE:
        raise CommandError(f"Job is not active (current state: {STATE_NAMES[job.state]})")
    return job


@handles(Progress)
def progress(state: State, client: Client, command: Progress) -> Ok:
    job = _active(state, command.id)
    if command.progress != command.progress:  # NaN
        raise CommandError("progress must be a number")
    job.progress = min(100.0, max(0.0, command.progress))
    if command.message is not None:
        job.progress_message = command.message
    state.out.touch(job)
    return Ok()


@handles(GetProgress)
def get_progress(state: State, client: Client, command: GetProgress) -> ProgressReply:
    job = _active(state, command.id)
    return ProgressReply(progress=job.progress, message=job.progress_message)
