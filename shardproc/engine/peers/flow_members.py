"""The part of a shard in flows with ids: it lists, cancels and revives its nodes of a flow."""

from __future__ import annotations

from bunqueue.model.job import ACTIVE, BLOCKED, COMPLETED, DELAYED, FAILED, SUSPENDED, WAITING, Extra, Job
from bunqueue.model.scope import Scope, read_scope
from bunqueue.server.links import peers as messages

from ..lifecycle import cancellation, transitions
from ..outbox import ROW
from ..peer_calls import Steps
from ..registry import answers
from ..state import State
from . import dependencies, directory

PAGE = 500  # ids inspected per question; about 20 ms
INSPECTED, AT_ONCE = 1_000, 20  # ids inspected per question when flows are listed, and ids read per step
AFTER_NODES = chr(ord(":") + 1)  # sorts a flow's id after all of its nodes


@answers(messages.Members)
def list_some(state: State, source: int, message: messages.Members) -> Steps:
    mark = f"{message.flow}:"
    hidden = [job_id for job_id in state.prepared if job_id.startswith(mark)]
    yield from directory.flows_decided(state, hidden)
    ids, more = state.archive.own_ids_after(message.after or mark, PAGE)
    mine = [job_id for job_id in ids if job_id.startswith(mark)]
    if len(mine) < len(ids):  # the rest belongs to other flows
        more = None
    jobs = [job for job_id in mine if (job := state.jobs.get(job_id) or state.archive.known(job_id))]
    found = [_member(job) for job in jobs if _flow_of(job) == message.flow]
    return messages.MembersAre(found, more)


@answers(messages.Flows)
def list_flows(state: State, source: int, message: messages.Flows) -> messages.FlowsAre:
    """List flows.  A single node is enough to identify a flow; the search then skips to the next one."""
    flows: list[str] = []
    scope = read_scope(message.scope) if message.scope else None
    at, left = max(message.after, message.prefix), INSPECTED
    while left > 0 and len(flows) < message.limit:
        ids, more = state.archive.own_ids_after(at, AT_ONCE)
        left -= len(ids)
        for at in ids:
            if not at.startswith(message.prefix):
                return messages.FlowsAre(flows, None)
            if (flow := _flow_with(state, at, message.queue, scope)) is not None:
                flows.append(flow)
                at = f"{flow}{AFTER_NODES}"
                break
        else:
            if more is None:
                return messages.FlowsAre(flows, None)
    return messages.FlowsAre(flows, at)


def _flow_with(state: State, job_id: str, queue: str | None, scope: Scope | None) -> str | None:
    """The flow of a job, if it is a node of one, in this queue, and exists for the scope."""
    job = (state.jobs.get(job_id) or state.archive.known(job_id)) if ":" in job_id else None
    if job is None or queue not in (None, job.queue) or (scope is not None and not scope.allows(job.queue)):
        return None
    return _flow_of(job)


def _flow_of(job: Job) -> str | None:
    return None if job.extra is None else job.extra.flow_id


def _member(job: Job) -> messages.Member:
    extra = job.extra or Extra()
    return messages.Member(
        job.id,
        job.queue,
        job.name,
        job.state,
        extra.depends_on,
        extra.pending,
        job.attempts,
        job.options.max_attempts,
        job.created_at,
        job.started_at,
        job.finished_at,
        job.error,
        job.reason,
        extra.gathering,
    )


@answers(messages.StopMembers)
def stop(state: State, source: int, message: messages.StopMembers) -> messages.MembersStopped:
    """Cancel nodes.  Those that have not begun become dead letters as well, because the flow may be
    retried."""
    stopped = running = 0
    for job_id in message.ids:
        job = state.jobs.get(job_id)
        if job is None or _flow_of(job) is None:
            continue
        if job.state in (ACTIVE, SUSPENDED):
            goes_on = cancellation.stop(state, job, message.reason, message.grace)
            running, stopped = running + goes_on, stopped + (not goes_on)
        else:
            transitions.cancel_begun(state, job, message.reason)
            stopped += 1
    return messages.MembersStopped(stopped, running)


@answers(messages.ReviveMembers)
def revive(state: State, source: int, message: messages.ReviveMembers) -> messages.MembersRevived:
    revived = []
    for job_id, pending in message.nodes:
        if job_id in state.jobs:
            _wait_again(state, state.jobs[job_id], pending)
            continue
        job = state.archive.known(job_id)
        if job is None or job.state not in (COMPLETED, FAILED) or job.extra is None:
            continue
        job.extra.failures = job.extra.ignored = None
        transitions.revive(state, state.queues[job.queue], job, pending=pending)
        dependencies.wait_for_pending(state, job)
        revived.append(job_id)
    return messages.MembersRevived(revived)


def _wait_again(state: State, job: Job, pending: list[str]) -> None:
    """Let a node that has not begun wait for others that run again; a running one continues."""
    if not pending or job.extra is None or job.state not in (WAITING, DELAYED, BLOCKED):
        return
    if job.state != BLOCKED:
        job = transitions.block(state, state.queues[job.queue], job)
    extra = dependencies.extra_of(job)
    extra.pending = list(dict.fromkeys([*extra.pending, *pending]))
    dependencies.wait_for_pending(state, job)
    state.out.touch(job, ROW)


@answers(messages.AskForMembers)
def ask(state: State, source: int, message: messages.AskForMembers) -> messages.AskForMembers:
    jobs = [state.jobs[job_id] for job_id in message.ids if job_id in state.jobs]
    waiting = {dep: None for job in jobs for dep in (job.extra.pending if job.extra is not None else ())}
    dependencies.ask_again(state, [dep for dep in waiting if dep in state.awaited])
    return messages.AskForMembers([])


# Nodes that gather


@answers(messages.Gather)
def gather(state: State, source: int, message: messages.Gather) -> Steps:
    yield from directory.flows_decided(state, message.ids)
    return messages.Gathering([_gather(state, job_id, closing=message.closing) for job_id in message.ids])


def _gather(state: State, job_id: str, *, closing: bool = False) -> int:
    job = state.jobs.get(job_id) or state.archive.known(job_id)
    if job is None or job.extra is None or job.extra.gathering is None:
        return messages.NO_GATHERER
    if closing and job.extra.gathering and job.state == BLOCKED:
        job.extra.closing = True
        state.out.touch(job, ROW)
    return messages.OPEN if job.extra.gathering and not job.extra.closing else messages.CLOSED


@answers(messages.CloseGathering)
def close(state: State, source: int, message: messages.CloseGathering) -> messages.Gathering:
    job = state.jobs.get(message.id)
    if job is not None and job.extra is not None and job.state == BLOCKED and job.extra.gathering:
        extra, others = job.extra, message.others
        extra.gathering = extra.closing = False
        extra.depends_on, extra.children_ids, extra.pending = others, others, others
        dependencies.wait_for_pending(state, job)
        state.out.touch(job, ROW)
        dependencies.ask_again(state, others)
        if not others:
            transitions.unblock(state, job)
    return messages.Gathering([_gather(state, message.id)])
