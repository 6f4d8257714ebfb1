"""Queues and jobs by name or id, live or finished."""

from __future__ import annotations

from bunqueue.model.job import Job
from bunqueue.model.names import queue_name_problem
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError

from .state import QueueState, State


def known_queue(state: State, name: str) -> QueueState | None:
    """The queue of that name, or None if it does not exist; CommandError if the name is invalid."""
    queue = state.queues.get(name)
    if queue is None and (problem := queue_name_problem(name)):
        raise CommandError(problem, Code.INVALID_QUEUE, field="queue")
    return queue


def find(state: State, job_id: str) -> Job | None:
    return state.jobs.get(job_id) or state.archive.find(job_id)
