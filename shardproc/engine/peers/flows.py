"""Flows over several shards: either all jobs of a flow appear, or none.

The shard that gets a PUSHF checks it and lets every shard *prepare* the jobs of its queues: their ids are
claimed and the jobs are stored, but nobody sees them yet.  When all shards have prepared, the decision is
stored and sent; a shard that was killed in the meantime asks for it.  A flow without a known decision is
aborted (presumed abort).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct, json, structs, to_builtins
from msgspec.msgpack import Decoder, Encoder

from bunqueue.model.bounds import Bounds
from bunqueue.model.ids import slot_of_queue
from bunqueue.model.job import FlowMark, Job
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.base import refusal
from bunqueue.protocol.commands.flows import FlowJob, FlowJobs, FlowReply, PushFlow
from bunqueue.protocol.job_view import job_list, pulled_job
from bunqueue.server.links import peers as messages

from .. import peer_calls
from ..handlers.push import new_job
from ..lifecycle import declared, outcomes, transitions
from ..lookup import admit_queues
from ..memory.queue_configs import of_queue
from ..memory.tenants import Tenant
from ..peer_calls import Steps, across
from ..ready import space
from ..registry import Apart, Deliver, answers, answers_late, handles, recovers
from ..state import Client, QueueState, State
from . import dependencies, directory, flow_checks, hidden_jobs, possession
from .possession import JobRef

UNDECIDED, DECIDED = "flow_part", "flow"

_encode = Encoder().encode
_decode_jobs = Decoder(list[FlowJob]).decode


class Part(Struct):
    """A record: the prepared jobs of this shard, and the shard that decides about them."""

    coordinator: int
    jobs: bytes
    alone: bool = False  # no other shard has a part
    others: list[JobRef] = []  # one job of each other part
    flow_id: str = ""  # for nodes of a flow with an id
    gatherers: list[str] = []  # ids of nodes that gather
    by: str | None = None  # the identity that adds it


class Decision(Struct):
    """A record: a committed flow, and the shards that have not confirmed it yet; one job of each part, as
    (queue, id)."""

    shards: list[int]
    durable: bool = False
    jobs: list[JobRef] = []


_decode_part = json.Decoder(Part).decode
_decode_decision = json.Decoder(Decision).decode


@recovers(UNDECIDED, Apart.UNSETTLED)
def recover_part(state: State, key: str, value: str) -> None:
    state.recovery.parts.add(key)
    _keep_part(state, key, _decode_part(value))


@recovers(DECIDED, Apart.UNSETTLED)
def recover_decision(state: State, key: str, value: str) -> None:
    state.decisions[key] = _decode_decision(value)


# The shard that got the flow


@handles(PushFlow)
@across
def push_flow(state: State, client: Client, command: PushFlow) -> Steps:
    """See the module; the reply is sent after the decision is stored, and after all shards have it."""
    flow_checks.check(command.jobs, client.version, state.now)
    yield from hidden_jobs.check_own(state, client, [job.id for job in command.jobs])
    shown = yield from place(state, command.jobs, by=client.by)
    return FlowReply(data=FlowJobs(job_list([bytes(raw) for raw in shown])))


def place(
    state: State,
    jobs: Sequence[FlowJob],
    flow_id: str = "",
    gatherers: Sequence[str] = (),
    check: Steps | None = None,
    by: str | None = None,
) -> Steps:
    """Add the checked jobs of a flow, all or none, and return them as shown to clients; with a ``flow_id``
    they are nodes of that flow.  ``by``: the identity that adds them.  CommandError if a shard refuses its
    part, or from ``check``, which runs when all shards have prepared."""
    parts: dict[int, list[FlowJob]] = {}
    for job in jobs:
        parts.setdefault(slot_of_queue(job.queue) & (state.shards - 1), []).append(job)
    flow = state.ids.job_id(0, state.now, state.next_seq)
    state.next_seq += 1
    state.undecided[flow] = []
    durable = any(job.input.durable for job in jobs)
    prepared = yield [
        (shard, structs.replace(message, flow_id=flow_id, gatherers=list(gatherers), by=by))
        for shard, message in _preparations(flow, parts, durable)
    ]
    error = next((_error_of(answer.refusal) for answer in prepared if answer.refusal), None)
    if error is None and check is not None:
        try:
            yield from check
        except CommandError as failed:
            error = failed
    others = [shard for shard in parts if shard != state.shard]
    if others and error is None:
        _decided(state, flow, Decision(others, durable, [_first_job(part) for part in parts.values()]))
        state.out.durable |= durable
    for shard in parts:
        _send_decision(state, shard, flow, commit=error is None, durable=durable)
    for deliver in state.undecided.pop(flow):  # after the shards that have to carry it out
        deliver(messages.Recalled(error is None))
    if error is not None:
        raise error
    shown = {
        job.id: raw
        for part, answer in zip(parts.values(), prepared, strict=True)
        for job, raw in zip(part, answer.jobs, strict=True)
    }
    return [shown[job.id] for job in jobs]


def _error_of(said: dict[str, Any]) -> CommandError:
    about = {name: said[name] for name in ("field", "value", "bound") if name in said}
    return CommandError(said["error"], Code(said["code"]), **about)


def _preparations(
    flow: str, parts: dict[int, list[FlowJob]], durable: bool
) -> list[tuple[int, messages.Prepare]]:
    """The messages to the shards that have a part."""
    alone = len(parts) == 1
    return [
        (shard, messages.Prepare(flow, Raw(_encode(part)), alone, durable, _others(parts, shard)))
        for shard, part in parts.items()
    ]


def _others(parts: dict[int, list[FlowJob]], shard: int) -> list[JobRef]:
    return [_first_job(part) for other, part in parts.items() if other != shard]


def _first_job(part: list[FlowJob]) -> JobRef:
    return part[0].queue, part[0].id


def _decided(state: State, flow: str, decision: Decision) -> None:
    """Store a decision, or delete it when all shards have confirmed it."""
    state.decisions[flow] = decision
    if not decision.shards:
        del state.decisions[flow]
    state.out.keep(DECIDED, flow, decision if decision.shards else None)


def _send_decision(state: State, shard: int, flow: str, *, commit: bool, durable: bool = False) -> None:
    """Ask a shard to carry out the decision, until it answers."""
    peer_calls.start(state, _until_decided(state, shard, flow, commit, durable))


def _until_decided(state: State, shard: int, flow: str, commit: bool, durable: bool) -> Steps:
    yield [(shard, messages.Decide(flow, commit, durable))]
    decision = state.decisions.get(flow)
    if decision is not None and commit and shard in decision.shards:
        decision.shards.remove(shard)
        _decided(state, flow, decision)


def recovered(state: State) -> None:
    """Send decisions again, and abort flows that this shard prepared but did not decide.  After a power cut,
    or on files from a backup, only once it is known what the other shards have."""
    for flow, decision in list(state.decisions.items()):
        if state.recovery.uncertain:
            peer_calls.start(state, _confirm(state, flow, decision))
        else:
            _resend_decision(state, flow, decision)
    own = [flow for flow, part in state.parts.items() if part.coordinator == state.shard]
    if own and state.recovery.uncertain:
        peer_calls.start(state, directory.recall(state, own))
        return
    for flow in own:
        decide(state, state.shard, messages.Decide(flow, flow in state.decisions))


def _resend_decision(state: State, flow: str, decision: Decision) -> None:
    for shard in list(decision.shards):
        _send_decision(state, shard, flow, commit=True, durable=decision.durable)


def _confirm(state: State, flow: str, decision: Decision) -> Steps:
    """A decision stands if no shard has lost its part; otherwise the shards that still have one drop it."""
    state.undecided[flow] = []
    found = yield from possession.ask(state, [(flow, job, None) for job in decision.jobs])
    commit = possession.LOST not in found
    if commit:
        _resend_decision(state, flow, decision)
    else:
        for shard in decision.shards:
            _send_decision(state, shard, flow, commit=False)
        decision.shards = []
        _decided(state, flow, decision)
    if flow in state.parts:
        decide(state, state.shard, messages.Decide(flow, commit))
    for deliver in state.undecided.pop(flow):
        deliver(messages.Recalled(commit))


def peer_is_back(state: State, shard: int) -> None:
    """A restarted shard may have forgotten that it has to decide about a flow."""
    flows = [flow for flow, part in state.parts.items() if part.coordinator == shard]
    if flows:
        peer_calls.start(state, directory.recall(state, flows))


@answers_late(messages.Recall)
def recalled(state: State, source: int, message: messages.Recall, deliver: Deliver) -> None:
    waiting = state.undecided.get(message.flow)
    if waiting is None:
        deliver(messages.Recalled(message.flow in state.decisions))
    elif message.wait:
        waiting.append(deliver)
    else:
        deliver(messages.Recalled(None))


# A shard that has jobs of the flow


@answers(messages.Prepare)
def prepare(state: State, source: int, message: messages.Prepare) -> Steps:
    jobs = _decode_jobs(message.jobs)
    if message.flow in state.parts:  # a repeated question
        return messages.Prepared(jobs=_shown(state, jobs, message.by))
    ids = [job.id for job in jobs]
    incarnation = state.incarnations[source]
    try:
        taken = yield from directory.claim(state, ids, wait=False)
    except CommandError as error:
        return messages.Prepared(to_builtins(refusal(error)))
    if taken and message.flow not in state.parts:
        there = next(job_id for job_id in ids if job_id in taken)
        code = Code.FLOW_EXISTS if message.flow_id else Code.INVALID_FLOW
        return messages.Prepared({"error": f"Flow job {there} already exists", "code": code})
    if message.flow not in state.parts:
        try:
            _make_room(state, jobs)
        except CommandError as error:
            return messages.Prepared(to_builtins(refusal(error)))
        part = Part(
            source,
            bytes(message.jobs),
            message.alone,
            message.others,
            message.flow_id,
            message.gatherers,
            message.by,
        )
        _keep_part(state, message.flow, part)
        state.out.keep(UNDECIDED, message.flow, part)
        if (
            incarnation != state.incarnations[source]
        ):  # it may have died in the meantime, and forgotten the flow
            peer_calls.start(state, directory.recall(state, [message.flow]))
    state.out.durable |= message.durable
    return messages.Prepared(jobs=_shown(state, jobs, message.by))


def _make_room(state: State, jobs: Sequence[FlowJob]) -> None:
    """CommandError if a queue, or its namespace, has no space for its jobs of a flow.  No jobs are dropped to
    make room, because other shards may still refuse their part."""
    payloads: dict[str, list[bytes]] = {}
    for job in jobs:
        payload = bytes(job.input.data)
        payloads.setdefault(job.queue, []).append(payload)
        if (functions := state.functions.get(job.queue)) is not None:
            declared.admit(functions, job.queue, [job.input], [payload], state.now, f"flow job {job.id}: ")
    admit_queues(state, payloads)
    more: Counter[Tenant | None] = Counter()
    for name, data in payloads.items():
        more[state.tenants.of(name)] += len(data)
        queue = state.queues.get(name)
        if queue is None:  # it would be created with its first job
            space.bound(queue := QueueState(0, name), of_queue(state, name, Bounds))
        if queue.space is not None:
            space.check(queue, data)
    for tenant, jobs_of_it in more.items():
        if tenant is not None:
            tenant.admit("jobs", tenant.jobs, jobs_of_it)


def _keep_part(state: State, flow: str, part: Part) -> None:
    state.parts[flow] = part
    for job in _decode_jobs(part.jobs):
        state.prepared[job.id] = flow


def _shown(state: State, jobs: Sequence[FlowJob], by: str | None) -> list[Raw]:
    """The jobs as they will be, for the reply."""
    return [Raw(pulled_job(_job(state, QueueState(0, job.queue), job, by))) for job in jobs]


def _job(state: State, queue: QueueState, job: FlowJob, by: str | None) -> Job:
    if (functions := state.functions.get(job.queue)) is not None:
        declared.fill(functions, job.input, state.now)
    return new_job(state, queue, job.id, job.input, bytes(job.input.data), by)


@answers(messages.Decide)
def decide(state: State, source: int, message: messages.Decide) -> messages.Decided:
    state.out.durable |= message.durable  # before the shard that made the decision forgets it
    part = state.parts.pop(message.flow, None)
    if part is not None:
        state.recovery.parts.discard(message.flow)
        state.out.keep(UNDECIDED, message.flow, None)
        jobs = _decode_jobs(part.jobs)
        for job in jobs:
            state.prepared.pop(job.id, None)
        if message.commit:
            mark = None if part.alone else FlowMark(message.flow, state.now, part.others)
            _appear(state, jobs, mark, part)
    return messages.Decided()


def _appear(state: State, jobs: Sequence[FlowJob], mark: FlowMark | None, part: Part) -> None:
    """Push the prepared jobs of a part; jobs that depend on others wait for these, on whatever shard they
    are.

    With a ``mark`` other shards have jobs of the flow, and may ask about these jobs whenever they come back.
    """
    pending = {
        dep: messages.Outcome(dep, messages.PENDING)
        for flow_job in jobs
        for dep in flow_job.input.depends_on or ()
    }
    waiting: list[str] = []
    for flow_job in jobs:
        queue = state.queue(flow_job.queue)
        job = _job(state, queue, flow_job, part.by)
        state.totals.pushed += 1
        state.out.durable |= job.options.durable
        if mark is not None:
            outcomes.watch(state, job)
            dependencies.extra_of(job).flow = mark
        if part.flow_id:
            dependencies.extra_of(job).flow_id = part.flow_id
            dependencies.extra_of(job).gathering = True if job.id in part.gatherers else None
        if dependencies.block(state, job, pending) or flow_job.id in part.gatherers:
            transitions.add_blocked(state, queue, job)
            waiting += job.extra.pending if job.extra is not None else ()
        else:
            transitions.add(state, queue, [job])
    dependencies.ask_again(state, [dep for dep in dict.fromkeys(waiting) if dep in state.awaited])
