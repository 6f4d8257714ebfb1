"""The dead-letter queue: listing, and trying again."""

from __future__ import annotations

from bunqueue.model.job import FAILED, Job
from bunqueue.protocol.commands.dlq import Dlq, RetryDlq
from bunqueue.protocol.commands.query import CountReply

from . import lifecycle
from .queries import SLICE, Shown, known_queue
from .registry import handles
from .slices import Steps, sliced
from .state import Client, QueueState, State


@handles(Dlq)
@sliced
def dlq(state: State, client: Client, command: Dlq) -> Steps:
    queue = known_queue(state, command.queue)
    answer, left, after = Shown(state, client), command.count, (0, 0)
    while queue is not None and left:
        jobs = state.archive.dead_letters(queue.id, min(left, SLICE), after)
        answer.add(jobs)
        left -= len(jobs)
        if len(jobs) < SLICE:
            break
        after = _place(jobs[-1])
        yield
    return answer.reply()


@handles(RetryDlq)
@sliced
def retry_dlq(state: State, client: Client, command: RetryDlq) -> Steps:
    queue = known_queue(state, command.queue)
    if queue is None:
        return CountReply(count=0)
    if command.job_id is not None:
        return CountReply(count=_retry_one(state, queue, command.job_id))
    count, until = 0, state.now  # those that die from here on are not meant
    while jobs := state.archive.dead_letters(queue.id, SLICE, (0, 0)):
        due = [job for job in jobs if _place(job)[0] <= until]
        for job in due:
            lifecycle.revive(state, queue, job)
        count += len(due)
        if len(due) < SLICE:
            break
        yield
    return CountReply(count=count)


def _retry_one(state: State, queue: QueueState, job_id: str) -> int:
    job = state.archive.find(job_id)
    if job is None or job.state != FAILED or job.queue != queue.name:
        return 0
    lifecycle.revive(state, queue, job)
    return 1


def _place(job: Job) -> tuple[int, int]:
    """Where a dead letter stands among the others of its queue."""
    return job.finished_at or 0, job.seq
