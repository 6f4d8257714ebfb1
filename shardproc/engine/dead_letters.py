"""The dead-letter queue: listing, and trying again."""

from __future__ import annotations

from bunqueue.model.job import FAILED
from bunqueue.protocol.commands.dlq import Dlq, RetryDlq
from bunqueue.protocol.commands.query import CountReply, JobsReply
from bunqueue.protocol.job_view import job_list

from . import lifecycle
from .queries import known_queue, shown
from .registry import handles
from .state import Client, QueueState, State

SLICE = 500  # dead letters brought back at a time


@handles(Dlq)
def dlq(state: State, client: Client, command: Dlq) -> JobsReply:
    queue = known_queue(state, command.queue)
    if queue is None or not queue.failed:
        return JobsReply(jobs=job_list([]))
    jobs = state.archive.dead_letters(queue.id, command.count, (0, 0))
    return JobsReply(jobs=job_list(shown(state, client, jobs)))


@handles(RetryDlq)
def retry_dlq(state: State, client: Client, command: RetryDlq) -> CountReply:
    queue = known_queue(state, command.queue)
    if queue is None or not queue.failed:
        return CountReply(count=0)
    if command.job_id is not None:
        return CountReply(count=_retry_one(state, queue, command.job_id))
    return CountReply(count=_retry_all(state, queue))


def _retry_one(state: State, queue: QueueState, job_id: str) -> int:
    job = state.archive.find(job_id)
    if job is None or job.state != FAILED or job.queue != queue.name:
        return 0
    lifecycle.revive(state, queue, job)
    return 1


def _retry_all(state: State, queue: QueueState) -> int:
    count = 0
    after = (0, 0)
    while jobs := state.archive.dead_letters(queue.id, SLICE, after):
        after = (jobs[-1].finished_at or 0, jobs[-1].seq)
        for job in jobs:
            lifecycle.revive(state, queue, job)
        count += len(jobs)
    return count
