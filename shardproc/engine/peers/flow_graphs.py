"""Flows with ids: added as a graph, extended, shown, cancelled and retried as a whole.

A node's job has the id ``flow:name``.  These ids are claimed like all ids chosen by clients, and sorted in
each shard's file, so nothing else records which jobs belong to a flow: `members` reads them from all shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Literal

from msgspec import structs

from bunqueue.model.ids import slot_of_queue
from bunqueue.model.job import COMPLETED, FAILED, STATE_NAMES
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Data
from bunqueue.protocol.commands.flows import (
    COUNTED,
    MAX_NODES,
    AddFlow,
    BatchView,
    CancelFlow,
    CloseFlow,
    FlowAdded,
    FlowJob,
    FlowLine,
    FlowList,
    FlowNode,
    FlowRetried,
    FlowStopped,
    FlowView,
    GetFlow,
    ListFlows,
    NodeView,
    RetryFlow,
)
from bunqueue.server.links import peers as messages

from ..peer_calls import Steps, across
from ..registry import handles
from ..scoped import allows, is_limited
from ..state import Client, State
from . import dependencies, directory, flow_checks, flows, hidden_jobs
from .flow_members import AFTER_NODES

CANCELLED = "cancelled"
ENDED = frozenset({COMPLETED, FAILED})
GATHERERS = {"complete": "on-complete", "success": "on-success"}  # names of the nodes that gather
_GATHERS: dict[str, Literal["complete", "success"]] = {"on-complete": "complete", "on-success": "success"}
A_TIME = 500  # nodes per question


def id_of(flow: str, name: str) -> str:
    """The id of a node's job."""
    return f"{flow}:{name}"


def members(state: State, client: Client | None, flow: str, most: int | None = None) -> Steps:
    """All nodes of a flow that exist for a client (None: all), oldest first, then by name; with ``most``, at
    least this many of them, if there are."""
    found, _ = yield from _find_members(state, client, flow, most)
    return found


def _find_members(state: State, client: Client | None, flow: str, most: int | None) -> Steps:
    """`members`, and whether there are more."""
    found: list[messages.Member] = []
    asked = dict.fromkeys(range(state.shards), "")
    while asked and (most is None or len(found) < most):
        answers = yield [(shard, messages.Members(flow, after)) for shard, after in asked.items()]
        more = zip(list(asked), answers, strict=True)
        found += (
            member
            for answer in answers
            for member in answer.members
            if client is None or allows(client, member.queue)
        )
        asked = {shard: answer.more for shard, answer in more if answer.more is not None}
    return sorted(found, key=lambda member: (member.created_at, member.id)), bool(asked)


def _known(state: State, client: Client, flow: str) -> Steps:
    """`members` of a flow that exists.  CommandError if it does not."""
    found = yield from members(state, client, flow)
    if not found:
        raise CommandError(f"Flow not found: {flow}", Code.FLOW_NOT_FOUND, field="flow", value=flow)
    return found


# Adding


@handles(AddFlow)
@across
def add_flow(state: State, client: Client, command: AddFlow) -> Steps:
    flow = command.flow
    flow_checks.check_edges(len(node.after) for node in command.nodes)
    jobs = [_job_of(flow, node) for node in command.nodes]
    own = {job.id for job in jobs}
    outside = {dep for job in jobs for dep in job.input.depends_on or () if dep not in own}
    flow_checks.check(jobs, client.version, state.now, outside if command.grow else ())
    there = yield from members(state, client, flow, most=1)
    if command.grow and not there:
        raise CommandError(f"Flow not found: {flow}", Code.FLOW_NOT_FOUND, field="flow", value=flow)
    if there and not command.grow:
        raise CommandError(f"Flow {flow} is there already", Code.FLOW_EXISTS, field="flow", value=flow)
    yield from hidden_jobs.check_own(state, client, own)
    unseen = yield from hidden_jobs.hidden(state, client, outside)
    wanted = [*own, *outside] if command.grow else []
    gatherers = [id_of(flow, node.name) for node in command.nodes if node.gathers]
    try:
        found = yield from dependencies.look_up(state, wanted)
        found |= {job_id: messages.Outcome(job_id, messages.UNKNOWN) for job_id in unseen & found.keys()}
        _check_names(found, outside)
        if command.grow:
            yield from _check_open(state, client, flow)
        check = _check_open(state, client, flow) if command.grow else None
        yield from flows.place(state, jobs, flow, gatherers, check, by=client.by)
    finally:
        dependencies.release_lookup(state, wanted)
    return Data(data=FlowAdded([job.id for job in jobs]))


def _gather(state: State, client: Client, flow: str, *, closing: bool = False) -> Steps:
    """The states of the nodes that gather; with ``closing`` they accept no new jobs afterwards."""
    ids = [id_of(flow, name) for name in GATHERERS.values()]
    unseen = yield from hidden_jobs.hidden(state, client, ids)
    shard_of = yield from directory.locate(state, [job_id for job_id in ids if job_id not in unseen])
    answers = yield [(shard, messages.Gather([job_id], closing)) for job_id, shard in shard_of.items()]
    return [word for answer in answers for word in answer.words]


def _check_open(state: State, client: Client, flow: str) -> Steps:
    """CommandError if the flow accepts no new jobs."""
    words = yield from _gather(state, client, flow)
    if messages.CLOSED in words:
        raise CommandError(
            f"Flow {flow} was closed: it takes no more jobs", Code.FLOW_CLOSED, field="flow", value=flow
        )


def _check_names(found: dict[str, messages.Outcome], outside: set[str]) -> None:
    """CommandError if a new job exists already, or if one to wait for does not exist."""
    for job_id, outcome in found.items():
        is_known = outcome.word != messages.UNKNOWN
        if job_id in outside and not is_known:
            raise CommandError(
                f"flow dependency not found: {job_id}", Code.INVALID_FLOW, field="nodes", value=job_id
            )
        if job_id not in outside and is_known:
            raise CommandError(
                f"Flow job {job_id} already exists", Code.FLOW_EXISTS, field="nodes", value=job_id
            )


def _job_of(flow: str, node: FlowNode) -> FlowJob:
    """A node as a job of a flow.  CommandError for fields that flows replace by their own."""
    fields = node.input
    for name in ("job_id", "custom_id", "parent_id", "children_ids", "depends_on"):
        if getattr(fields, name):
            raise CommandError(
                f"flow job {node.name}: {name} is not possible in a flow with an id, use after",
                Code.INVALID_FLOW,
                field="nodes",
                value=node.name,
            )
    if node.gathers is not None and (node.after or node.name != GATHERERS[node.gathers]):
        text = (
            f"flow job {node.name}: one that gathers is called {GATHERERS[node.gathers]}, and is after none"
        )
        raise CommandError(
            text, Code.INVALID_FLOW, field="nodes", value=node.name, bound=GATHERERS[node.gathers]
        )
    if node.gathers is not None:
        fields.on_dead_dependency = "ignore" if node.gathers == "complete" else "fail"
    if node.after:
        fields.depends_on = fields.children_ids = [id_of(flow, name) for name in dict.fromkeys(node.after)]
    return FlowJob(id=id_of(flow, node.name), queue=node.queue, input=fields)


@handles(CloseFlow)
@across
def close_flow(state: State, client: Client, command: CloseFlow) -> Steps:
    """Close a flow.  Jobs that are already prepared when the last gatherer closes are included, because
    `members` waits for them.  Jobs prepared later find the flow closed, and do not appear."""
    yield from _gather(state, client, command.flow, closing=True)
    found = yield from _known(state, client, command.flow)
    gatherers = [member for member in found if member.gathering is not None]
    if not gatherers:
        text = f"Flow {command.flow} has no job that gathers"
        raise CommandError(text, Code.FLOW_CLOSED, field="flow", value=command.flow)
    every = (yield from members(state, None, command.flow)) if is_limited(client) else found
    others = [member.id for member in every if member.gathering is None]
    for shard, some in _by_shard(state, gatherers):
        yield [(shard, messages.CloseGathering(member.id, others)) for member in some]
    return Data(data=FlowAdded([member.id for member in found if member.gathering is None]))


# Reading


@handles(GetFlow)
@across
def get_flow(state: State, client: Client, command: GetFlow) -> Steps:
    found = yield from _known(state, client, command.flow)
    states = Counter(state_of(member) for member in found)
    seen = {member.id for member in found} if is_limited(client) else None
    shown = [_view(command.flow, member, seen) for member in found[:MAX_NODES]]
    more = len(found) > MAX_NODES
    batch = _batch(command.flow, found)
    return Data[FlowView](
        data=FlowView(command.flow, _state_of_flow(states), dict(states), shown, more, batch)
    )


def _batch(flow: str, found: Sequence[messages.Member]) -> BatchView | None:
    gatherers = [member for member in found if member.gathering is not None]
    if not gatherers:
        return None
    states = Counter(state_of(member) for member in found if member.gathering is None)
    return BatchView(
        any(member.gathering for member in gatherers),
        states.total(),
        states["completed"],
        states["failed"] + states[CANCELLED],
        sorted(_name(flow, member.id) for member in gatherers if member.state not in ENDED),
    )


@handles(ListFlows)
@across
def list_flows(state: State, client: Client, command: ListFlows) -> Steps:
    """List flows by id.  Shards answer up to different ids: everything after the smallest of these is left
    for a later page."""
    shards = range(state.shards) if command.queue is None else [_shard_of(state, command.queue)]
    scope = client.scope.wire if client.scope is not None and is_limited(client) else b""
    prefix = command.prefix or ("" if client.scope is None else client.scope.prefix)
    question = messages.Flows(prefix, command.queue, command.after, command.limit + 1, scope)
    flows, end = yield from _some_flows(state, shards, question)
    while scope and not flows and end is not None:  # it would be the id of a job of another queue
        question = structs.replace(question, after=end)
        flows, end = yield from _some_flows(state, shards, question)
    if scope and flows and end is not None:
        end = f"{flows[-1][:-1]}{AFTER_NODES}"
    lines = []
    for flow in flows[: command.limit]:
        found, more = yield from _find_members(state, client, flow[:-1], COUNTED)
        if found:
            lines.append(_line(flow[:-1], found, more))
    if len(flows) > command.limit:
        end = f"{flows[command.limit - 1][:-1]}{AFTER_NODES}"
    return Data(data=FlowList(lines, end))


def _some_flows(state: State, shards: Iterable[int], question: messages.Flows) -> Steps:
    """Some flows by id, each with a colon, and up to which id all of them are; None: to the last."""
    answers = yield [(shard, question) for shard in shards]
    end = min((answer.more for answer in answers if answer.more is not None), default=None)
    flows = sorted({f"{flow}:" for answer in answers for flow in answer.flows})
    return [flow for flow in flows if end is None or flow <= end], end


def _line(flow: str, found: Sequence[messages.Member], more: bool) -> FlowLine:
    states = Counter(state_of(member) for member in found)
    gathering = [member.gathering for member in found if member.gathering is not None]
    state = _state_of_flow(states)
    return FlowLine(
        flow,
        None if more and state != "running" else state,
        dict(states),
        float(found[0].created_at),
        any(gathering) if gathering else None,
        more,
    )


def state_of(member: messages.Member) -> str:
    """The state of a node as shown to clients."""
    is_cancelled = member.state == FAILED and member.reason == CANCELLED
    return CANCELLED if is_cancelled else STATE_NAMES[member.state]


def _state_of_flow(states: Counter[str]) -> str:
    if states.total() > states["completed"] + states["failed"] + states[CANCELLED]:
        return "running"
    return next((word for word in ("failed", CANCELLED) if states[word]), "completed")


def _view(flow: str, member: messages.Member, seen: Container[str] | None) -> NodeView:
    """A node; with ``seen``, the nodes that it waits for are only those."""
    return NodeView(
        _name(flow, member.id),
        member.id,
        member.queue,
        member.job,
        state_of(member),
        [_name(flow, dep) for dep in member.after if seen is None or dep in seen],
        [_name(flow, dep) for dep in member.pending if seen is None or dep in seen],
        member.attempts,
        member.max_attempts,
        float(member.created_at),
        None if member.started_at is None else float(member.started_at),
        None if member.finished_at is None else float(member.finished_at),
        member.error,
        None if member.gathering is None else _GATHERS[_name(flow, member.id)],
    )


def _name(flow: str, job_id: str) -> str:
    return job_id.removeprefix(f"{flow}:")


# Cancelling and retrying


@handles(CancelFlow)
@across
def cancel_flow(state: State, client: Client, command: CancelFlow) -> Steps:
    found = yield from _known(state, client, command.flow)
    live = [member for member in found if member.state not in ENDED]
    answers = yield [
        (shard, messages.StopMembers([member.id for member in some], command.reason, int(command.grace)))
        for shard, some in _by_shard(state, live)
    ]
    stopped = sum(answer.stopped for answer in answers)
    return Data(data=FlowStopped(stopped, sum(answer.running for answer in answers)))


@handles(RetryFlow)
@across
def retry_flow(state: State, client: Client, command: RetryFlow) -> Steps:
    """Retry a flow: first bring back all jobs, then let them ask for those that they wait for.  So none of
    them receives an earlier failure of a job that runs again."""
    found = yield from _known(state, client, command.flow)
    chosen = _chosen(found, command)
    every = (yield from members(state, None, command.flow)) if is_limited(client) else found
    waits = {member.id for member in every if member.state != COMPLETED} | chosen.keys()
    parts = list(_by_shard(state, chosen.values()))
    answers = yield [
        (
            shard,
            messages.ReviveMembers([(each.id, _still(each.after, waits)) for each in some]),
        )
        for shard, some in parts
    ]
    revived = {job_id for answer in answers for job_id in answer.ids}
    yield [(shard, messages.AskForMembers([each.id for each in some])) for shard, some in parts]
    return Data[FlowRetried](
        data=FlowRetried([_name(command.flow, job_id) for job_id in chosen if job_id in revived])
    )


def _still(after: Sequence[str], waits: Container[str]) -> list[str]:
    """The dependencies of a job that runs again, without those that have completed or been removed."""
    return [dep for dep in after if dep in waits]


def _chosen(found: Sequence[messages.Member], command: RetryFlow) -> dict[str, messages.Member]:
    """The nodes to run again, or to block again if they have not begun.  CommandError if the named node does
    not exist or has not ended."""
    if command.node is None:
        return {member.id: member for member in found if member.state == FAILED}
    by_id = {member.id: member for member in found}
    first = by_id.get(id_of(command.flow, command.node))
    if first is None:
        raise CommandError(
            f"Flow {command.flow} has no job {command.node}",
            Code.JOB_NOT_FOUND,
            field="node",
            value=command.node,
        )
    if first.state not in ENDED:
        raise CommandError(
            f"Flow job {first.id} is {STATE_NAMES[first.state]}: it has not ended",
            Code.JOB_STATE,
            field="node",
            value=command.node,
            bound="completed, failed",
        )
    followers: dict[str, list[str]] = {}
    for member in found:
        for dep in member.after:
            followers.setdefault(dep, []).append(member.id)
    met, waiting = {first.id}, [first.id]
    while waiting:
        new = [job_id for job_id in followers.get(waiting.pop(), ()) if job_id not in met]
        met.update(new)
        waiting += new
    return {job_id: by_id[job_id] for job_id in by_id if job_id in met}


def _shard_of(state: State, queue: str) -> int:
    return slot_of_queue(queue) & (state.shards - 1)


def _by_shard(
    state: State, nodes: Iterable[messages.Member]
) -> Iterable[tuple[int, Sequence[messages.Member]]]:
    """Nodes by the shards of their queues, in groups of A_TIME."""
    groups: dict[int, list[messages.Member]] = {}
    for member in nodes:
        groups.setdefault(_shard_of(state, member.queue), []).append(member)
    for shard, all_here in groups.items():
        for start in range(0, len(all_here), A_TIME):
            yield shard, all_here[start : start + A_TIME]
