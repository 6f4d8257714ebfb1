"""Jobs that workflows start: started once, watched until they have ended, and cancelled with their parent.

The step of a child is stored, with everything needed to start it, before its shard is asked to do so.  The
shard is asked again after a restart, and does not start a child that it has or has had.  The cancellation of
a child is kept in a record until its shard has answered.
"""

from __future__ import annotations

from msgspec import Struct, json
from msgspec.msgpack import Decoder

from bunqueue.model.ids import slot_of_queue
from bunqueue.model.job import REMOVED, Job
from bunqueue.model.names import outside, prefix_of
from bunqueue.model.scope import read_scope
from bunqueue.model.workflow import CANCELLED, COMPLETED, FAILED
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.core import JobFields
from bunqueue.protocol.namespaces import shown_text
from bunqueue.server.links import peers as messages

from .. import peer_calls
from ..handlers import push
from ..lifecycle import declared, outcomes, run_steps
from ..lifecycle.cancellation import stop
from ..memory.open_runs import Child, Children
from ..outbox import ROW
from ..peer_calls import Steps
from ..registry import answers, recovers
from ..run_writes import Op
from ..state import Awaited, ChildEnd, State
from . import dependencies, directory, hidden_jobs

KIND = "child_cancel"
TAKEN = "another job has the id {}"
GRACE_MS = 10_000  # for the worker of a child that is cancelled with its parent
GONE = "the child is not there any more"
A_TIME = 1_000  # children per message

_decode_fields = Decoder(JobFields).decode
_decode_new = Decoder(messages.NewChild).decode


class Order(Struct):
    """A record: this child of that workflow should be cancelled; it is in this queue."""

    parent: str
    queue: str
    reason: str


_decode_order = json.Decoder(Order).decode


# The shard of the parent


def begin(state: State, job: Job, children: list[tuple[int, messages.NewChild]]) -> None:
    """Start children whose steps are stored in this batch."""
    for number, child in children:
        _children_of(state, job.id).add(number, Child(child.id, child.queue, starting=True))
    _start(state, job, children)


def _children_of(state: State, parent: str) -> Children:
    return state.children.setdefault(parent, Children())


def _child(state: State, parent: str, number: int) -> Child | None:
    """The child of a step, if it has not ended."""
    of_parent = state.children.get(parent)
    return None if of_parent is None else of_parent.by_step.get(number)


def recovered(state: State) -> None:
    """After a start: ask about all children that have not ended, and repeat unconfirmed cancellations."""
    unstarted: dict[str, list[tuple[int, messages.NewChild]]] = {}
    for child in state.archive.runs.open_children():
        if child.job_id not in state.jobs:
            continue
        known = Child(child.child, child.queue, starting=child.input is not None)
        _children_of(state, child.job_id).add(child.number, known)
        if child.input is not None:
            unstarted.setdefault(child.job_id, []).append((child.number, _decode_new(child.input)))
        else:
            _watch(state, child.job_id, child.child, child.queue)
    for parent, children in unstarted.items():
        _start(state, state.jobs[parent], children)
    for child_id, order in list(state.cancels.items()):
        _send_cancel(state, child_id, order)


def _shard_of(state: State, queue: str) -> int:
    return slot_of_queue(queue) & (state.shards - 1)


def _start(state: State, job: Job, children: list[tuple[int, messages.NewChild]]) -> None:
    """Ask each shard separately.  The end of a child may be reported right after the answer that it has
    started, and must not arrive before that is noted; it could, if the answers of other shards came first."""
    groups: dict[int, list[tuple[int, messages.NewChild]]] = {}
    for number, child in children:
        groups.setdefault(_shard_of(state, child.queue), []).append((number, child))
    for shard, some in groups.items():
        for start in range(0, len(some), A_TIME):
            peer_calls.start(state, _start_on(state, shard, job.id, job.seq, some[start : start + A_TIME]))


def _start_on(
    state: State, shard: int, parent: str, seq: int, children: list[tuple[int, messages.NewChild]]
) -> Steps:
    (answer,) = yield [(shard, messages.StartChildren(parent, [child for _, child in children]))]
    known = {outcome.id: outcome for outcome in answer.outcomes}
    for (number, child), started in zip(children, answer.started, strict=True):
        _started(state, parent, seq, number, child, started, known.get(started.id))


def _started(
    state: State,
    parent: str,
    seq: int,
    number: int,
    child: messages.NewChild,
    started: messages.Started,
    outcome: messages.Outcome | None,
) -> None:
    """Handle the answer of a shard that was asked to start a child."""
    known = _child(state, parent, number)
    if known is None or known.id != child.id:  # its step has ended, or is gone
        if child.id in state.cancels:
            _send_cancel(state, child.id, state.cancels[child.id])
        return
    job = state.jobs[parent]
    known.starting = False
    if started.error:
        _end(state, job, number, FAILED, error=started.error)
        return
    state.out.runs.append((Op.SET_CHILD, (started.id, seq, number)))
    _children_of(state, parent).rename(number, started.id)
    if child.detached:
        _end(state, job, number, COMPLETED)
        return
    awaited = _watch(state, parent, started.id, child.queue)
    if outcome is not None and outcome.word != messages.PENDING:
        state.run_ends.append(ChildEnd(outcome, list(awaited.parents)))
        awaited.parents.clear()
        dependencies.drop_idle(state, started.id, awaited)


def _watch(state: State, parent: str, child: str, queue: str) -> Awaited:
    """Note that the child's shard will report its end."""
    awaited = state.awaited.setdefault(child, Awaited())
    awaited.parents[parent] = None
    awaited.shard, awaited.is_watched = _shard_of(state, queue), True
    return awaited


def handle_ends(state: State) -> None:
    """Handle workflows and children that have ended."""
    while state.run_ends:
        news = state.run_ends.pop()
        if isinstance(news, ChildEnd):
            _ended(state, news.outcome, news.parents)
        else:
            cancel_all(state, news, f"its workflow {outside(news.queue, news.id)} has ended")
            run_steps.end_waits(state, news)


def _ended(state: State, outcome: messages.Outcome, parents: list[str]) -> None:
    """A child has ended: end all steps that refer to it."""
    for parent in parents:
        job, numbers = state.jobs.get(parent), _steps_of(state, parent, outcome.id)
        if job is None or not numbers:
            continue
        if outcome.word == messages.DONE:
            peer_calls.start(state, _take_result(state, parent, numbers[0], outcome.id))
            continue
        error = GONE if outcome.word == messages.UNKNOWN else outcome.error
        for number in numbers:
            _end(state, job, number, FAILED, error=error)


def _steps_of(state: State, parent: str, child: str) -> list[int]:
    """The open steps that refer to a child."""
    of_parent = state.children.get(parent)
    return [] if of_parent is None else list(of_parent.steps.get(child, ()))


def _take_result(state: State, parent: str, number: int, child: str) -> Steps:
    queue = state.children[parent].by_step[number].queue
    status, result, why = COMPLETED, None, None
    try:
        (found,) = yield [(_shard_of(state, queue), messages.Values([child]))]
        if (value := found.values[0]) is not None:
            result = bytes(value.result)
    except CommandError as error:
        status, why = FAILED, f"the result of the child cannot be read: {error}"
    job = state.jobs.get(parent)
    if job is not None:
        for each in _steps_of(state, parent, child):
            _end(state, job, each, status, result=result, error=why)


def _end(
    state: State, job: Job, number: int, status: str, *, result: bytes | None = None, error: str | None = None
) -> None:
    _forget(state, job.id, number)
    run_steps.end(state, job, number, status, result=result, error=error)


def _forget(state: State, parent: str, number: int) -> Child | None:
    of_parent = state.children.get(parent)
    if of_parent is None:
        return None
    child = of_parent.pop(number)
    if not of_parent.by_step:
        del state.children[parent]
    return child


# Cancelling


def cancel_all(state: State, job: Job, why: str, first: int = 0) -> None:
    """Cancel the children of a workflow whose steps have at least this number."""
    of_parent = state.children.get(job.id)
    for number in [number for number in (of_parent.by_step if of_parent else ()) if number >= first]:
        cancel_child(state, job, number, why)


def cancel_child(state: State, job: Job, number: int, why: str) -> None:
    """End the step of a child, and cancel the child unless another step refers to it."""
    child = _forget(state, job.id, number)
    if child is None:
        return
    if job.state != REMOVED:
        run_steps.end(state, job, number, CANCELLED, error=why)
    if _steps_of(state, job.id, child.id):
        return
    awaited = state.awaited.get(child.id)
    if awaited is not None and job.id in awaited.parents:
        del awaited.parents[job.id]
        dependencies.drop_idle(state, child.id, awaited)
    order = state.cancels[child.id] = Order(job.id, child.queue, why)
    state.out.keep(KIND, child.id, order)
    if not child.starting:  # else its start might arrive after this
        _send_cancel(state, child.id, order)


def _send_cancel(state: State, child_id: str, order: Order) -> None:
    peer_calls.start(state, _until_cancelled(state, child_id, order))


def _until_cancelled(state: State, child_id: str, order: Order) -> Steps:
    yield [(_shard_of(state, order.queue), messages.CancelChildren(order.parent, [child_id], order.reason))]
    if state.cancels.pop(child_id, None) is not None:
        state.out.keep(KIND, child_id, None)


def slot_of_record(key: str, value: str) -> int:
    return slot_of_queue(_decode_order(value).queue)


@recovers(KIND, slot_of_record)
def recover(state: State, key: str, value: str) -> None:
    state.cancels[key] = _decode_order(value)


# The shard of the child


@answers(messages.StartChildren)
def start_children(state: State, source: int, message: messages.StartChildren) -> Steps:
    new = [child for child in message.children if not _is_known(state, child, message.parent)]
    errors: dict[str, str] = {}
    for child in new:
        if child.own and child.scope:
            scope = read_scope(child.scope)
            if scope.reserves(child.id) or (yield from hidden_jobs.hidden_from(state, scope, [child.id])):
                errors[child.id] = TAKEN.format(child.id)
    new = [child for child in new if child.id not in errors]
    try:
        taken = yield from directory.claim(state, [child.id for child in new])
    except CommandError as error:
        errors, taken = errors | {child.id: str(error) for child in new}, {}
    ids: dict[str, str] = {}
    for child in new:
        if child.id in errors or _is_known(state, child, message.parent):
            continue
        if child.id in taken:
            errors[child.id] = TAKEN.format(child.id)
            continue
        try:
            ids[child.id] = _push(state, child, message.parent)
        except CommandError as error:
            errors[child.id] = str(error)
    started = [
        messages.Started(
            ids.get(child.id, child.id), shown_text(prefix_of(child.queue), errors.get(child.id, ""))
        )
        for child in message.children
    ]
    for child, each in zip(message.children, started, strict=True):
        if child.detached:
            _detach(state, each.id, message.parent)
    pairs = zip(message.children, started, strict=True)
    watched = [each.id for child, each in pairs if not each.error and not child.detached]
    found = yield from dependencies.answer_watch(state, source, messages.Watch(watched))
    return messages.ChildrenStarted(started, found.jobs)


def _is_known(state: State, child: messages.NewChild, parent: str) -> bool:
    """Whether a job with this id is, or was, a child of that workflow."""
    job = state.jobs.get(child.id) or state.archive.known(child.id)
    if job is not None:
        return job.extra is not None and job.extra.parent_id == parent
    # An id chosen by the user may have belonged to another job.
    return not child.own and outcomes.outcome_of_ended(state, child.id).word != messages.UNKNOWN


def _push(state: State, child: messages.NewChild, parent: str) -> str:
    """Push a child; returns the id of its job, or of the one that has its unique key."""
    fields = _decode_fields(child.input)
    fields.job_id, fields.parent_id = child.id, parent
    if (functions := state.functions.get(child.queue)) is not None:
        declared.admit(functions, child.queue, [fields], [bytes(fields.data)], state.now)
    queue = state.queues.get(child.queue) or push.new_queue(state, child.queue, own=True)
    ids = push.add(state, queue, [fields], [bytes(fields.data)], own=True, by=child.by).ids
    job = state.jobs.get(ids[0])
    if job is not None:
        outcomes.watch(state, job)
    return ids[0]


def _detach(state: State, child_id: str, parent: str) -> None:
    """Let a child of that workflow outlive it, even if a step of the workflow waits for it."""
    job = state.jobs.get(child_id)
    if job is not None and job.extra is not None and job.extra.parent_id == parent:
        job.extra.detached = True
        state.out.touch(job, ROW)


@answers(messages.CancelChildren)
def cancel_children(
    state: State, source: int, message: messages.CancelChildren
) -> messages.ChildrenCancelled:
    for child_id in message.ids:
        job = state.jobs.get(child_id)
        if job is None or job.extra is None or job.extra.parent_id != message.parent:
            continue
        if not job.extra.detached:
            stop(state, job, message.reason, GRACE_MS)
    return messages.ChildrenCancelled()
