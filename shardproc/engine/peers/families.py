"""Parents and children: results and errors of children, and changes of parents."""

from __future__ import annotations

from collections.abc import Container
from typing import TypeVar

from msgspec import UNSET, Raw
from msgspec.msgpack import Decoder, Encoder

from bunqueue.model.job import ACTIVE, BLOCKED, COMPLETED, DELAYED, FAILED, STATE_NAMES, WAITING, Extra, Job
from bunqueue.model.names import prefix_of
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Data, Ok
from bunqueue.protocol.commands.core import JobFields, Push
from bunqueue.protocol.commands.flows import (
    ChildErrorsReply,
    ChildValues,
    ChildValuesReply,
    GetChildrenValues,
    GetFailedChildrenValues,
    GetIgnoredChildrenFailures,
    Moved,
    MoveToWaitingChildren,
    RemoveChildDependency,
    RemovedReply,
    RemoveUnprocessedChildren,
    UpdateParent,
)
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.server.links import peers as messages

from ..handlers.ack import check_token
from ..lifecycle import transitions
from ..lifecycle.child_results import LATER
from ..lifecycle.outcomes import watch
from ..lookup import being_cancelled, find, not_found, wrong_state
from ..outbox import ROW
from ..peer_calls import Questions, Steps, across
from ..ready import space
from ..registry import answers, handles
from ..scoped import allows, is_limited
from ..state import Client, State
from . import dependencies, hidden_jobs
from .dependencies import extra_of
from .directory import flows_decided, locate

V = TypeVar("V")

_encode = Encoder().encode
_decode_map, _decode_text = Decoder(dict[str, Raw]).decode, Decoder(str).decode
MARK = _encode("__parentId")
FLOW_FIELDS = ("__parentId", "__parentQueue", "__childrenIds")  # in the data of a flow's jobs: their family
_NOBODY = messages.FamilyChanged(False)
MAX_CHILDREN, MAX_BYTES = 100_000, 10 << 20  # of one job, and bytes of their ids: stored with the job


@handles(GetChildrenValues)
@across
def get_children_values(state: State, client: Client, command: GetChildrenValues) -> Steps:
    job = find(state, command.id)
    if job is None or job.extra is None:
        return ChildValuesReply(data=ChildValues({}))
    extra = job.extra
    values, gone = yield from dependencies.values_of(state, extra.children_ids)
    values = _seen(client, values)
    lost = [child for child in extra.children_ids if child in gone and _has_completed(extra, child)]
    return ChildValuesReply(data=ChildValues(values, lost or UNSET))


def _has_completed(extra: Extra, child: str) -> bool:
    """Whether a child that no shard knows has completed: its parent waited for it, and did not continue for
    another reason."""
    if child not in extra.depends_on or child in extra.pending or extra.failures:
        return False
    return not any(key.endswith(f":{child}") for key in extra.ignored or ())


@handles(GetFailedChildrenValues)
def get_failed(state: State, client: Client, command: GetFailedChildrenValues) -> ChildErrorsReply:
    job = find(state, command.id)
    return _errors(client, job.extra.failures if job is not None and job.extra else None)


@handles(GetIgnoredChildrenFailures)
def get_ignored(state: State, client: Client, command: GetIgnoredChildrenFailures) -> ChildErrorsReply:
    job = find(state, command.id)
    return _errors(client, job.extra.ignored if job is not None and job.extra else None)


def _errors(client: Client, errors: dict[str, str] | None) -> ChildErrorsReply:
    return ChildErrorsReply(values=_seen(client, errors or {}))


def _seen(client: Client, by_child: dict[str, V]) -> dict[str, V]:
    """What belongs to children, as ``{"queue:id": value}``, for children that exist for a client."""
    if not is_limited(client):
        return by_child
    return {child: value for child, value in by_child.items() if _is_seen(client, child)}


def _is_seen(client: Client, child: str) -> bool:
    """Whether the queue of a "queue:id" exists; a queue may have colons in its name, and an id as well."""
    prefix = "" if client.scope is None else client.scope.prefix
    if prefix and f":{prefix}" in child:  # where an id begins that a client has chosen
        return allows(client, child.partition(f":{prefix}")[0])
    parts = child.split(":")
    return all(allows(client, ":".join(parts[:count])) for count in range(1, len(parts)))


@handles(UpdateParent)
@across
def update_parent(state: State, client: Client, command: UpdateParent) -> Steps:
    """Link a child to a parent.  Either may have run already: clients that push children first link them
    later, when they know the parent."""
    child, parent = command.child_id, command.parent_id
    check_other(parent, child)
    unseen = yield from hidden_jobs.hidden(state, client, [child, parent])
    shard_of = yield from locate(state, [child, parent])
    (at,) = yield [(shard_of[parent], messages.FamilyOperation(messages.INSPECT, parent, child))]
    if parent in unseen:
        at = _NOBODY
    if at.full and not at.found:
        raise _too_many(parent)
    takes = child not in unseen and (at.found or (at.queue and at.state not in (COMPLETED, FAILED)))
    how = messages.FIND if takes else messages.INSPECT  # INSPECT changes nothing, as this will be refused
    (found,) = yield [(shard_of[child], messages.FamilyOperation(how, child))]
    if child in unseen or not found.queue:
        if at.found:  # the push of the parent named the child, which has been removed since
            return Ok()
        raise CommandError(f"Child job not found: {child}", Code.JOB_NOT_FOUND, field="childId", value=child)
    if not takes:
        raise _no_parent(parent, at)
    operation = messages.LIST if found.state == COMPLETED else messages.JOIN
    (joined,) = yield [(shard_of[parent], messages.FamilyOperation(operation, parent, child))]
    if not joined.found:
        raise _no_parent(parent, at)
    yield [(shard_of[child], messages.FamilyOperation(messages.ADOPT, child, parent, joined.queue))]
    return Ok()


def check_other(parent: str | None, child: str | None) -> None:
    """CommandError if a job would wait for itself."""
    if parent is not None and parent == child:
        raise CommandError(
            f"Job {child} cannot be its own parent", Code.INVALID_FIELD, field="parentId", value=parent
        )


def _too_many(parent: str) -> CommandError:
    text = f"Parent job {parent} has as many children as a job can: add them to another parent"
    return CommandError(text, Code.TOO_MANY_CHILDREN, field="parentId", value=parent, bound=MAX_CHILDREN)


def _no_parent(parent: str, at: messages.FamilyChanged) -> CommandError:
    if at.queue:
        return CommandError(
            f"Parent job {parent} is {STATE_NAMES[at.state]}: it cannot wait for a child",
            Code.JOB_STATE,
            field="parentId",
            value=parent,
            bound="any of a job that has not ended",
        )
    return CommandError(f"Parent job not found: {parent}", Code.JOB_NOT_FOUND, field="parentId", value=parent)


# Children pushed with a parent


def parent_of(fields: JobFields | Push) -> str | None:
    """The job whose child a push becomes.  The data must name that job as well; without this, ``parentId`` is
    only a note, as on children of flows."""
    parent, data = fields.parent_id, fields.data
    if parent is None or parent == LATER:
        return None
    return parent if names_parent(bytes(data), parent) else None


def names_parent(data: bytes, parent: str) -> bool:
    """Whether the data of a job names this parent."""
    if MARK not in data:
        return False
    try:
        named = _decode_text(_decode_map(data)["__parentId"])
    except (KeyError, *DECODE_ERRORS):
        return False
    return parent == named or parent == f"{prefix_of(parent)}{named}"


def find_parents(
    state: State, parents: list[str | None], own: Container[str], unseen: Container[str] = ()
) -> Steps:
    """The shards of these jobs, as ``{id: shard}``; CommandError if one cannot wait for a child, or is
    ``unseen``: it does not exist for the client.

    A parent may be pushed together with its children, before or after them: ``own`` are the ids of that push.
    """
    shard_of = yield from locate(state, dict.fromkeys(filter(None, parents)))
    found = yield [
        (shard, messages.FamilyOperation(messages.INSPECT, parent)) for parent, shard in shard_of.items()
    ]
    for parent, at in zip(shard_of, found, strict=True):
        if parent in unseen:
            raise _no_parent(parent, _NOBODY)
        if at.full:
            raise _too_many(parent)
        if at.queue and at.state not in (COMPLETED, FAILED):
            continue
        if parent not in own:
            raise _no_parent(parent, at)
        shard_of[parent] = state.shard
    return shard_of


def join(
    shard_of: dict[str, int], parents: list[str | None], children: list[str], *, durable: bool
) -> Questions:
    """Let parents wait for the children that were pushed for them."""
    pairs = [(parent, child) for parent, child in zip(parents, children, strict=True) if parent]
    return [(shard_of[parent], _kin_of(messages.JOIN, parent, child, durable)) for parent, child in pairs]


def _kin_of(operation: int, parent: str, child: str, durable: bool) -> messages.FamilyOperation:
    return messages.FamilyOperation(operation, parent, child, durable=durable)


def join_again(state: State, parents: list[str | None], children: list[str], *, durable: bool) -> Steps:
    """`join` for children that were pushed before, limited to parents that do not list them yet.

    The number of children may differ, because nothing prevents a client from pushing something else."""
    pairs = [(parent, child) for parent, child in zip(parents, children, strict=False) if parent]
    shard_of = yield from locate(state, [parent for parent, _ in pairs])
    found = yield [
        (shard_of[parent], _kin_of(messages.INSPECT, parent, child, durable)) for parent, child in pairs
    ]
    missing = [pair for pair, at in zip(pairs, found, strict=True) if not at.found]
    yield [(shard_of[parent], _kin_of(messages.JOIN, parent, child, durable)) for parent, child in missing]


@handles(RemoveChildDependency)
@across
def remove_child_dependency(state: State, client: Client, command: RemoveChildDependency) -> Steps:
    job = find(state, command.id)
    if job is None:
        text = f"Job not found: {command.id}"
        raise CommandError(text, Code.JOB_NOT_FOUND, field="id", value=command.id)
    parent = job.extra.parent_id if job.extra is not None else None
    if parent is None:
        raise wrong_state(command.id, f"Job {command.id} has no parent", "any of a job that has a parent")
    shard_of = yield from locate(state, [parent])
    yield [(shard_of[parent], messages.FamilyOperation(messages.PART, parent, command.id))]
    job = find(state, command.id)  # it may have been replaced or removed
    if job is not None:
        extra_of(job).parent_id = None
        state.out.touch(job, ROW)
    return RemovedReply(removed=True)


@handles(MoveToWaitingChildren)
@across
def move_to_waiting_children(state: State, client: Client, command: MoveToWaitingChildren) -> Steps:
    """Let a job wait for its children that have not completed; without any, until it is moved by command."""
    job = _active(state, command, client.version)
    children = list(job.extra.children_ids) if job.extra is not None else []
    unseen = yield from hidden_jobs.hidden(state, client, children)
    children = [child for child in children if child not in unseen]
    outcomes = yield from dependencies.look_up(state, children)
    try:
        if _active(state, command, client.version) is job:
            extra = extra_of(job)
            extra.parked = True
            extra.depends_on = list(dict.fromkeys([*extra.depends_on, *children]))
            waits = dependencies.block(state, job, outcomes)
            transitions.block_active(state, job)
            if children and not waits:
                transitions.unblock(state, job)
    finally:
        dependencies.release_lookup(state, children)
    return Data(data=Moved(True))


def _active(state: State, command: MoveToWaitingChildren, version: int) -> Job:
    job = state.jobs.get(command.id)
    if job is None or job.state != ACTIVE:
        raise wrong_state(command.id, "Job is not active", "active")
    check_token(job, command.token, required=version >= 3)
    if transitions.is_cancelled(job):
        raise being_cancelled(job.id)
    return job


@handles(RemoveUnprocessedChildren)
@across
def remove_unprocessed_children(state: State, client: Client, command: RemoveUnprocessedChildren) -> Steps:
    job = state.jobs.get(command.id)
    if job is None:
        raise not_found(state, command.id)
    children = list(job.extra.children_ids) if job.extra is not None else []
    unseen = yield from hidden_jobs.hidden(state, client, children)
    children = [child for child in children if child not in unseen]
    shard_of = yield from locate(state, children)
    removed = yield [
        (shard_of[child], messages.FamilyOperation(messages.REMOVE, child)) for child in children
    ]
    for child, answer in zip(children, removed, strict=True):
        parent = state.jobs.get(command.id)  # it may have been replaced or removed
        if answer.found and parent is not None:
            _part(state, parent, child)
    return Ok()


def with_flow_fields(old: bytes, new: bytes) -> bytes:
    """New data of a job, with the family fields of the old data; CommandError if the new data cannot hold
    them."""
    try:
        former = _decode_map(old)
    except DECODE_ERRORS:
        return new
    kept = {name: former[name] for name in FLOW_FIELDS if name in former}
    if not kept:
        return new
    try:
        fields = _decode_map(new)
    except DECODE_ERRORS:
        raise CommandError(
            "flow job data must be an object", Code.INVALID_FLOW, field="data", bound="an object"
        ) from None
    for name, value in kept.items():
        if bytes(fields.get(name, value)) != bytes(value):
            text = f"flow job data key is reserved: {name}"
            raise CommandError(text, Code.INVALID_FLOW, field="data", value=name)
    return _encode({**fields, **kept})


# Questions to the shard of a parent or child


@answers(messages.FamilyOperation)
def operate(state: State, source: int, message: messages.FamilyOperation) -> Steps:
    yield from flows_decided(state, [message.id])
    state.out.durable |= message.durable
    job = state.jobs.get(message.id)
    if job is None:
        return _finished_kin(state, message)
    if message.operation == messages.INSPECT:
        return messages.FamilyChanged(_lists(job, message.other), job.queue, job.state, _is_full(job))
    if message.operation == messages.FIND:
        watch(state, job)
    elif message.operation == messages.JOIN:
        _join(state, job, message.other)
    elif message.operation == messages.LIST:
        _list(state, job, message.other)
    elif message.operation == messages.ADOPT:
        _set_parent(state, job, message.other, message.queue)
    elif message.operation == messages.PART:
        _part(state, job, message.other)
    elif message.operation == messages.REMOVE:
        return messages.FamilyChanged(_remove_unprocessed(state, job))
    return messages.FamilyChanged(True, job.queue, job.state)


def _finished_kin(state: State, message: messages.FamilyOperation) -> messages.FamilyChanged:
    """The same for a finished job: a child may still be given its parent."""
    job = state.archive.known(message.id)
    if job is None:
        return messages.FamilyChanged(message.operation == messages.REMOVE)  # is the removal repeated?
    if message.operation == messages.ADOPT:
        _set_parent(state, job, message.other, message.queue)
        if job.state == FAILED and job.id in state.awaited:
            state.decided.append(job)  # its parent waits, and may have a policy for this
        return messages.FamilyChanged(True, job.queue, job.state)
    return messages.FamilyChanged(_lists(job, message.other), job.queue, job.state)


def _is_full(parent: Job) -> bool:
    children = parent.extra.children_ids if parent.extra is not None else ()
    return len(children) >= MAX_CHILDREN or sum(map(len, children)) >= MAX_BYTES


def _lists(parent: Job, child: str) -> bool:
    return parent.extra is not None and child in parent.extra.children_ids


def _list(state: State, parent: Job, child: str) -> None:
    """Add a child to the parent."""
    extra = extra_of(parent)
    if child not in extra.children_ids:
        extra.children_ids = [*extra.children_ids, child]
    if child not in extra.depends_on:
        extra.depends_on = [*extra.depends_on, child]
    state.out.touch(parent, ROW)


def _join(state: State, parent: Job, child: str) -> None:
    """Let the parent wait for another child, unless it is running already."""
    if parent.state in (WAITING, DELAYED):
        parent = transitions.block(state, state.queues[parent.queue], parent)
    _list(state, parent, child)
    extra = extra_of(parent)
    if parent.state == ACTIVE or child in extra.pending:
        return
    extra.pending = [*extra.pending, child]
    dependencies.wait_for_pending(state, parent)
    dependencies.ask_again(state, [child])


def _set_parent(state: State, child: Job, parent: str, queue: str) -> None:
    """Store the parent with the child, also in its data, where clients look for it."""
    extra_of(child).parent_id = parent
    try:
        fields = _decode_map(child.data)
    except DECODE_ERRORS:  # its data is not a map
        fields = None
    if fields is not None:
        prefix = prefix_of(queue)  # nothing within a namespace has it
        fields["__parentId"] = Raw(_encode(parent.removeprefix(prefix)))
        fields["__parentQueue"] = Raw(_encode(queue.removeprefix(prefix)))
        space.change_data(state.queues[child.queue], child, _encode(fields))
    state.out.touch(child, ROW)


def _part(state: State, parent: Job, child: str) -> None:
    extra = extra_of(parent)
    extra.children_ids = [other for other in extra.children_ids if other != child]
    extra.depends_on = [other for other in extra.depends_on if other != child]
    dependencies.release(state, parent, child)


def _remove_unprocessed(state: State, child: Job) -> bool:
    if child.state not in (WAITING, DELAYED, BLOCKED):
        return False
    extra_of(child).parent_id = None  # it is separated from its parent, not lost to it
    transitions.remove(state, state.queues[child.queue], child)
    return True
