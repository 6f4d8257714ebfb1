"""Answers other shards about the jobs that this shard has, when one of them may have lost something.

That is possible after a power cut, which leaves the shards at different moments, and on files of a backup
that were not copied at the same moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from bunqueue.model.ids import slot_of_queue
from bunqueue.protocol.commands import CommandError
from bunqueue.server.links import peers as messages

from ..peer_calls import Steps
from ..registry import answers
from ..state import State

JobRef = tuple[str, str]  # queue and id of a job
Wanted = tuple[str, JobRef, int | None]  # flow, one of its jobs, and when the flow appeared, if known

LOST, PREPARED, APPEARED, OTHER = range(4)  # what a shard has of a flow; OTHER: perhaps not of that flow


@answers(messages.Have)
def have(state: State, source: int, message: messages.Have) -> messages.Had:
    return messages.Had([_had(state, job_id) for job_id in message.ids], state.recovery.stored_until)


def _had(state: State, job_id: str) -> messages.Holding:
    if job_id in state.prepared:
        return messages.Holding(messages.HIDDEN, state.prepared[job_id])
    if job_id in state.moving:
        return messages.Holding(messages.HIDDEN)
    job = state.jobs.get(job_id)
    if job is not None or state.granted[job_id]:
        mark = job.extra.flow if job is not None and job.extra is not None else None
        return messages.Holding(messages.LIVE, "" if mark is None else mark.flow)
    try:
        job = state.archive.find(job_id)
    except CommandError:  # in a damaged part of the file: it has ended, and nothing may be done for its flow
        return messages.Holding(messages.ENDED)
    if job is not None:
        mark = None if job.extra is None else job.extra.flow
        return messages.Holding(messages.ENDED, "" if mark is None else mark.flow)
    return messages.Holding(messages.ENDED if job_id in state.tombstones else messages.ABSENT)


def home_of(state: State, job: JobRef) -> int:
    """The shard of a job's queue."""
    return slot_of_queue(job[0]) & (state.shards - 1)


def ask(state: State, wanted: Sequence[Wanted]) -> Steps:
    """Ask what is left of flows; one result for each of these jobs.

    A job that is missing may have been removed, if the flow appeared at the time ``at`` and its shard has
    lost nothing since then; otherwise it is LOST.
    """
    groups: dict[int, dict[str, None]] = {}
    for _, job, _ in wanted:
        groups.setdefault(home_of(state, job), {})[job[1]] = None
    found = yield [(shard, messages.Have(list(ids))) for shard, ids in groups.items()]
    known = {
        (shard, job_id): (holding, had.until)
        for (shard, ids), had in zip(groups.items(), found, strict=True)
        for job_id, holding in zip(ids, had.jobs, strict=True)
    }
    return [_word(flow, *known[home_of(state, job), job[1]], at) for flow, job, at in wanted]


def _word(flow: str, holding: messages.Holding, until: int | None, at: int | None) -> int:
    if holding.word == messages.ABSENT:
        return OTHER if at is not None and (until is None or until > at) else LOST
    if holding.flow != flow:
        return OTHER
    return PREPARED if holding.word == messages.HIDDEN else APPEARED
