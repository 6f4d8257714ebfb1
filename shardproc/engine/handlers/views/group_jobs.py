"""The unfinished jobs of one group."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from heapq import nsmallest
from itertools import islice

from bunqueue.model.job import Job
from bunqueue.protocol.commands.groups import GetGroupJobs
from bunqueue.protocol.commands.query import JobsReply
from bunqueue.protocol.job_view import job_list

from ...lookup import known_queue
from ...ready.group import Group
from ...registry import handles
from ...slices import Steps, sliced
from ...state import Client, QueueState, State
from .paging import job_of
from .query import SLICE, Shown, check_states, listed_state

MEMBERS_A_SLICE = 1_000


@handles(GetGroupJobs)
@sliced
def get_group_jobs(state: State, client: Client, command: GetGroupJobs) -> Steps:
    """List jobs by number.  The cost grows with the size of the group, not of the queue."""
    names = check_states(command.state)
    queue = known_queue(state, command.queue)
    groups = queue.limits.groups if queue is not None and queue.limits is not None else None
    group = groups.by_id.get(command.group_id) if groups is not None else None
    if queue is None or group is None:
        return JobsReply(jobs=job_list([]))
    first: list[int] = []
    for some in _in_slices(queue, group, names, client.version):
        first = nsmallest(command.offset + command.limit, [*first, *some])
        yield
    answer = Shown(state, client, partial(listed_state, queue), command.data_limit)
    wanted = first[command.offset :]
    for number, seq in enumerate(wanted):
        if (job := job_of(queue, seq)) is not None and not answer.add(job):
            break
        if number % SLICE == SLICE - 1:
            yield
    return answer.reply()


def _in_slices(queue: QueueState, group: Group, names: list[str], version: int) -> Iterator[list[int]]:
    members = iter(list(group.members))
    while some := list(islice(members, MEMBERS_A_SLICE)):
        yield [seq for seq in some if _is_wanted(queue, job_of(queue, seq), names, version)]


def _is_wanted(queue: QueueState, job: Job | None, names: list[str], version: int) -> bool:
    return job is not None and (not names or listed_state(queue, job, version) in names)
