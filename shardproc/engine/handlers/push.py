"""PUSH and PUSHB: add jobs."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType

from msgspec import UNSET
from msgspec.msgpack import Encoder

from bunqueue.model.backoff import EXPONENTIAL
from bunqueue.model.dead_letters import QUEUE_FULL
from bunqueue.model.job import DEFAULT_NAME, NIL, UNDEFINED, Extra, Job, JobOptions
from bunqueue.model.names import queue_name_problem
from bunqueue.model.workflow import UNAMBIGUOUS, Run
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Reply
from bunqueue.protocol.commands.base import path_of
from bunqueue.protocol.commands.core import (
    BackoffMap,
    Conflict,
    JobFields,
    OnDead,
    PlainFields,
    PlainPush,
    PlainPushBatch,
    Push,
    PushBatch,
    PushBatchReply,
    PushReply,
)
from bunqueue.protocol.commands.cron import SpawnOptions
from bunqueue.protocol.heads import is_map
from bunqueue.protocol.measure import MAX_BYTES, MAX_DATA, SURELY_SMALL, measure
from bunqueue.protocol.readable import (
    READ_ERRORS,
    check_readable,
    excess,
    is_readable,
    reason,
    shown,
    unreadable,
)
from bunqueue.server.links.peers import DEAD_REMOVED, UNKNOWN, Outcome

from ..lifecycle import events, repeating, transitions
from ..lifecycle.dedup import NO_DEDUP, Claims
from ..lookup import admit_queues, known_queue
from ..peer_calls import Steps, across
from ..peers import dependencies, directory, families
from ..ready import space
from ..registry import handles
from ..state import DEFAULT_OPTIONS, Client, QueueState, State
from . import idempotency
from .group_rules import GroupSpace
from .idempotency import Answer
from .old_names import lift_name

MAX_PRIORITY, MAX_GROUP_PRIORITY = 1_000_000, 2_097_151
_NO_EXTRA = Extra()
_encode = Encoder().encode
_NO_BOUNDS: tuple[None, None, tuple[float, ...]] = (None, None, ())  # no maximum, no jitter, no delays


@handles(PlainPush)
def push_plain(state: State, client: Client, command: PlainPush) -> Reply:
    if command.idempotency_key is not None and (known := idempotency.answered(state, command)):
        return _reply(command, known)
    data = bytes(command.data)
    if len(data) > SURELY_SMALL or not is_readable(data):
        check_data(data)
    if client.version >= 3 and command.name is None:
        data = lift_name(command, data)
    queue = state.queues.get(command.queue) or new_queue(state, command.queue)
    ids = _add_plain(state, queue, (command,), (data,))
    if command.idempotency_key is not None:
        idempotency.remember(state, command, Answer(ids))
    return PushReply(id=ids[0])


@handles(PlainPushBatch)
def push_plain_batch(state: State, client: Client, command: PlainPushBatch) -> Reply:
    if command.idempotency_key is not None and (known := idempotency.answered(state, command)):
        return _reply(command, known)
    payloads = _payloads(command.jobs, client.version)
    queue = _queue_of_batch(state, command.queue, payloads)
    ids = _add_plain(state, queue, command.jobs, payloads) if queue is not None else []
    if command.idempotency_key is not None:
        idempotency.remember(state, command, Answer(ids))
    return PushBatchReply(ids=ids)


@handles(Push)
def push(state: State, client: Client, command: Push) -> Reply | None:
    if command.idempotency_key is not None and idempotency.answered(state, command):
        return push_again(state, client, command)
    data = bytes(command.data)
    if len(data) > SURELY_SMALL or not is_readable(data):
        check_data(data)
    known_queue(state, command.queue)
    check_fields(command, client.version, state.now)
    if client.version >= 3:
        data = lift_name(command, data)
    if is_linked(command):
        return push_linked(state, client, command)
    queue = state.queues.get(command.queue) or new_queue(state, command.queue)
    return _added(state, command, add(state, queue, [command], [data]))


@handles(PushBatch)
def push_batch(state: State, client: Client, command: PushBatch) -> Reply | None:
    if command.idempotency_key is not None and idempotency.answered(state, command):
        return push_again(state, client, command)
    known_queue(state, command.queue)
    payloads = _payloads(command.jobs, client.version)
    for index, fields in enumerate(command.jobs):
        check_fields(fields, client.version, state.now, f"jobs[{index}]: ")
    if any(map(is_linked, command.jobs)):
        return push_linked(state, client, command)
    queue = _queue_of_batch(state, command.queue, payloads)
    added = add(state, queue, command.jobs, payloads, many=True) if queue is not None else Answer([])
    return _added(state, command, added)


def _added(state: State, command: Push | PushBatch, added: Answer) -> Reply:
    """The reply to a push that has been carried out."""
    if command.idempotency_key is not None:
        idempotency.remember(state, command, added)
    return _reply(command, added)


def _reply(command: idempotency.AnyPush, said: Answer) -> Reply:
    ids, existing, conflicts = said
    if not isinstance(command, Push | PlainPush):
        return PushBatchReply(ids=ids, existing=existing or UNSET, conflicts=conflicts or UNSET)
    reply = PushReply(id=ids[0], existing=True) if existing else PushReply(id=ids[0])
    if conflicts:
        reply.conflict = Conflict(conflicts[0].action, conflicts[0].holder)
    return reply


def push_fields(state: State, queue_name: str, fields: JobFields) -> tuple[str, bool]:
    """Push a job created by the server itself; returns its id as a client would see it, and whether it is
    new."""
    queue = state.queues.get(queue_name) or new_queue(state, queue_name, own=True)
    added = add(state, queue, [fields], [bytes(fields.data)], own=True)
    return added.ids[0], not added.existing


# Pushes that may involve other shards


def is_linked(fields: JobFields | Push) -> bool:
    """Whether a push has an id of its own, dependencies, or a parent that waits for it."""
    return bool(fields.job_id or fields.custom_id or fields.depends_on or families.parent_of(fields))


@across
def push_linked(state: State, client: Client, command: Push | PushBatch) -> Steps:
    """Ask other shards everything first; then add all of the jobs at once, or none."""
    batch, entries = isinstance(command, PushBatch), _entries(command)
    known_queue(state, command.queue)
    own: dict[str, int] = {}  # ids given with the jobs -> the place of the first one
    for index, fields in enumerate(entries):
        if job_id := fields.job_id or fields.custom_id:
            own.setdefault(job_id, index)
    parents = [families.parent_of(fields) for fields in entries]
    for fields, parent in zip(entries, parents, strict=True):
        families.check_other(parent, fields.job_id or fields.custom_id)
    _check_no_circle(entries, own)
    wanted = [dep for fields in entries for dep in fields.depends_on or ()]
    durable = any(fields.durable for fields in entries)
    key = idempotency.begin(state, command)
    try:
        outcomes = yield from dependencies.look_up(state, wanted, durable=durable)
        _check_dependencies(entries, outcomes, own, batch)
        places = yield from families.find_parents(state, parents, own)
        taken = yield from directory.claim(state, list(own), durable=durable)
        places.update({parent: shard for parent, shard in taken.items() if parent in places})
        queue = state.queues.get(command.queue) or new_queue(state, command.queue)
        payloads = [bytes(fields.data) for fields in entries]
        added = add(state, queue, entries, payloads, taken, outcomes, many=batch)
    finally:
        dependencies.release_lookup(state, wanted)
        state.pushed.underway.discard(key)
    reply = _added(state, command, added)
    yield families.join(places, parents, added.ids, durable=durable)
    return reply


@across
def push_again(state: State, client: Client, command: Push | PushBatch) -> Steps:
    """Return the first reply to a push with that key.  The parents of its jobs are notified again, because
    they may not know of them if this shard died at that moment."""
    known, entries = idempotency.answered(state, command), _entries(command)
    assert known is not None
    durable = any(fields.durable for fields in entries)
    state.out.durable |= durable
    parents = [families.parent_of(fields) for fields in entries]
    yield from families.join_again(state, parents, known.ids, durable=durable)
    return _reply(command, known)


def _entries(command: Push | PushBatch) -> Sequence[JobFields | Push]:
    return command.jobs if isinstance(command, PushBatch) else [command]


def _check_dependencies(
    entries: Sequence[JobFields | Push], outcomes: dict[str, Outcome], own: dict[str, int], batch: bool
) -> None:
    """CommandError for a dependency that is neither on the server nor another job of the same batch."""
    for index, fields in enumerate(entries):
        for dep in fields.depends_on or ():
            if _is_unknown(outcomes[dep]) and own.get(dep, index) == index:
                where = f"jobs[{index}]: " if batch else ""
                raise CommandError(
                    f"{where}Dependency job not found: {dep}",
                    Code.JOB_NOT_FOUND,
                    field=path_of(f"{where}dependsOn"),
                    value=dep,
                )


def _check_no_circle(entries: Sequence[JobFields | Push], own: Mapping[str, int]) -> None:
    """CommandError if jobs of a batch would wait for each other for ever.  A job that names itself, or a job
    outside the batch, is left to `_check_dependencies`."""
    waits_for = {
        index: [own[dep] for dep in fields.depends_on or () if own.get(dep, index) != index]
        for index, fields in enumerate(entries)
        if fields.depends_on
    }
    if all(dep < index for index, deps in waits_for.items() for dep in deps):
        return
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))  # each waits for the next; the last is the first
        names = " -> ".join(entries[index].job_id or entries[index].custom_id or "?" for index in circle)
        raise CommandError(
            f"jobs[{circle[0]}]: dependsOn leads in a circle, each job would wait for the next: {names}",
            Code.INVALID_FIELD,
            field=path_of(f"jobs[{circle[0]}]: dependsOn"),
            value=entries[circle[1]].job_id or entries[circle[1]].custom_id,
        ) from None


def _is_unknown(outcome: Outcome) -> bool:
    return outcome.word in (UNKNOWN, DEAD_REMOVED) or outcome.obliterated


def _payloads(jobs: Sequence[JobFields | PlainFields], version: int) -> list[bytes]:
    payloads = [bytes(fields.data) for fields in jobs]
    for index, data in enumerate(payloads):
        if len(data) > SURELY_SMALL or not is_readable(data):
            check_data(data, f"jobs[{index}]: ")
    if version < 3:
        return payloads
    return [lift_name(fields, data) for fields, data in zip(jobs, payloads, strict=True)]


def _queue_of_batch(state: State, name: str, payloads: list[bytes]) -> QueueState | None:
    """The queue, created if necessary; an empty batch does not create it."""
    if payloads:
        return state.queues.get(name) or new_queue(state, name)
    known_queue(state, name)
    return None


def new_queue(state: State, name: str, *, own: bool = False) -> QueueState:
    """Create a queue; the server's ``own`` ones are exempt from the limit on queues."""
    known_queue(state, name)
    if not own:
        admit_queues(state, [name])
    return state.queue(name)


def _add_plain(
    state: State, queue: QueueState, pushed: Sequence[PlainFields | PlainPush], payloads: Sequence[bytes]
) -> list[str]:
    """`add` for jobs without options: the hot path."""
    now, seq, name = state.now, state.next_seq, queue.name
    prefix = state.ids.prefix(queue.slot, now)
    ids: list[str] = []
    jobs: list[Job] = []
    for fields, data in zip(pushed, payloads, strict=True):
        job_id = f"{prefix}{seq:012x}"
        jobs.append(
            Job(
                seq,
                job_id,
                name,
                fields.name or DEFAULT_NAME,
                NIL if data == UNDEFINED else data,
                DEFAULT_OPTIONS,
                fields.priority,
                now,
                now + int(fields.delay) if fields.delay else now,
            )
        )
        ids.append(job_id)
        seq += 1
    if queue.space is not None:
        _make_room(state, queue, payloads)
    state.next_seq = seq
    state.totals.pushed += len(jobs)
    transitions.add_plain(state, queue, jobs)
    return ids


def add(
    state: State,
    queue: QueueState,
    pushed: Sequence[JobFields | Push],
    payloads: Sequence[bytes],
    taken: Container[str] = (),
    outcomes: Mapping[str, Outcome] = MappingProxyType({}),
    *,
    many: bool = False,
    own: bool = False,
) -> Answer:
    """Add jobs; the answer has their ids, or the ids of existing jobs with the same id or unique key.

    ``taken``: ids used by jobs on other shards.  ``outcomes``: the outcomes of their dependencies.  With
    ``many``, a refusal names the job that caused it.  The server's ``own`` jobs are accepted even if the
    queue is full.
    """
    claims, groups = Claims(state, queue), GroupSpace(queue)
    ids: list[str] = []
    jobs: dict[str, Job] = {}
    met: list[int] = []  # places of ids and keys that exist already
    conflicts: list[Conflict] = []
    for fields, data in zip(pushed, payloads, strict=True):
        id_ = fields.job_id or fields.custom_id
        state.out.durable |= fields.durable  # the reply that a job exists is a promise as well
        there = id_ if id_ and (id_ in taken or id_ in state.jobs or id_ in jobs) else None
        if there is None and fields.unique_key:
            found = claims.take(fields, f"jobs[{len(ids)}]: " if many else "")
            there = found.existing
            if found.action:
                conflicts.append(Conflict(found.action, found.holder, len(ids)))
        if there is not None:
            met.append(len(ids))
            ids.append(there)
            continue
        groups.take(fields)
        job = new_job(state, queue, id_, fields, data)
        claims.claim(job, fields.dedup)
        jobs[job.id] = job
        ids.append(job.id)
    if queue.space is not None and jobs and not own:
        _make_room(state, queue, [job.data for job in jobs.values()], claims.leaving())
    begun = claims.assign(list(jobs.values()))
    if met:
        outcomes = dependencies.wait_for_holders(state, begun, _holders(pushed, ids), outcomes)
    _begin(state, queue, begun, outcomes)
    for place in met:
        holder = state.jobs.get(ids[place])
        if holder is not None:  # else the same push has replaced it
            events.emit(state, events.DUPLICATED, holder)
    return Answer(ids, met, conflicts)


def _holders(pushed: Sequence[JobFields | Push], ids: list[str]) -> dict[str, str]:
    """Ids that no job gets because another job holds the unique key, each with the id of that job."""
    owned = ((fields.job_id or fields.custom_id, job_id) for fields, job_id in zip(pushed, ids, strict=True))
    return {own: job_id for own, job_id in owned if own and own != job_id}


def _make_room(
    state: State, queue: QueueState, payloads: Sequence[bytes], leaving: Collection[Job] = ()
) -> None:
    """Make room for new jobs in a bounded queue.  CommandError if it is full."""
    for job in space.room_for(queue, payloads, leaving):
        job.error = f"dropped, as newer jobs came and the queue {queue.name} was full"
        transitions.remove(state, queue, job, reason=QUEUE_FULL)


def _begin(state: State, queue: QueueState, jobs: list[Job], outcomes: Mapping[str, Outcome]) -> None:
    """Make new jobs live; those without dependencies are ready at once."""
    state.totals.pushed += len(jobs)
    for job in jobs:
        extra = job.extra
        if extra is not None and (dependencies.block(state, job, outcomes) or extra.after is not None):
            transitions.add_blocked(state, queue, job)
        else:
            transitions.add(state, queue, [job])


def new_job(
    state: State, queue: QueueState, own_id: str | None, fields: JobFields | Push, data: bytes
) -> Job:
    """Create a job from the fields of a push, with a number of its own but in no table yet."""
    now, seq = state.now, state.next_seq
    state.next_seq += 1
    created = now if fields.timestamp is None else int(fields.timestamp)
    extra = extra_of(fields)
    if own_id:  # the storage needs to know as well
        extra = extra or Extra()
        extra.own_id = True
    return Job(
        seq,
        own_id or state.ids.job_id(queue.slot, now, seq),
        queue.name,
        fields.name or DEFAULT_NAME,
        NIL if data == UNDEFINED else data,
        state.shared(options_of(fields)),
        fields.priority,
        created,
        created + int(fields.delay) if fields.delay else created,
        unique_key=fields.unique_key or None,
        extra=extra,
        run=Run(declared=True, keys=UNAMBIGUOUS) if fields.workflow else None,
    )


def check_fields(fields: JobFields | Push, version: int, now: int, where: str = "") -> None:
    """CommandError for values that the types cannot rule out.  Within a group, version 3 has other bounds of
    priority."""
    priority = fields.priority
    if fields.group_id is not None and version >= 3 and not fields.fair:
        if not 0 <= priority <= MAX_GROUP_PRIORITY:
            raise CommandError(
                f"{where}group.priority must be between 0 and {MAX_GROUP_PRIORITY}",
                Code.INVALID_PRIORITY,
                field=path_of(f"{where}group.priority"),
                value=priority,
                bound=MAX_GROUP_PRIORITY,
            )
    elif not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        bound = f"at most {MAX_PRIORITY}" if priority > 0 else f"at least {-MAX_PRIORITY}"
        raise CommandError(
            f"{where}priority must be {bound}",
            Code.INVALID_PRIORITY,
            field=path_of(f"{where}priority"),
            value=priority,
            bound=MAX_PRIORITY if priority > 0 else -MAX_PRIORITY,
        )
    if fields.repeat is not None:
        repeating.check(fields.repeat, now, where)
    check_keeping(fields, where)
    if fields.on_dead is not None:
        _check_on_dead(fields.on_dead, where)
    if fields.workflow:
        check_arguments(bytes(fields.data), where)


def check_keeping(fields: JobFields | Push | OnDead | SpawnOptions, where: str = "") -> None:
    """CommandError for jobs that have a retention time but are also to be removed when they end."""
    for kept, name, removes, said in (
        (fields.keep_completed, "keepCompleted", fields.remove_on_complete, "removeOnComplete"),
        (fields.keep_failed, "keepFailed", fields.remove_on_fail, "removeOnFail"),
    ):
        if kept is not None and removes:
            raise CommandError(
                f"{where}{name} is {kept:g}, but {said} keeps nothing; leave one of them out",
                Code.INVALID_FIELD,
                field=path_of(f"{where}{name}"),
                value=kept,
            )


def _check_on_dead(on_dead: OnDead, where: str) -> None:
    """Check a job that will be added later."""
    if on_dead.queue is not None and (problem := queue_name_problem(on_dead.queue)):
        field = path_of(f"{where}onDead.queue")
        raise CommandError(f"{where}onDead: {problem}", Code.INVALID_QUEUE, field=field, value=on_dead.queue)
    check_data(bytes(on_dead.data), f"{where}onDead: ")
    check_keeping(on_dead, f"{where}onDead.")


def options_of(fields: JobFields | Push) -> JobOptions:
    """The fields of a push that many jobs have in common."""
    backoff = fields.backoff
    as_map = isinstance(backoff, BackoffMap)
    delay, kind, jitter, most, delays = (
        _backoff_of(backoff) if isinstance(backoff, BackoffMap) else (backoff, EXPONENTIAL, *_NO_BOUNDS)
    )
    return JobOptions(
        max_attempts=fields.max_attempts,
        backoff=delay,
        backoff_kind=kind,
        backoff_jitter=jitter,
        backoff_given_as_map=as_map,
        backoff_max=most,
        backoff_delays=delays,
        backoff_retry_after=isinstance(backoff, BackoffMap) and backoff.retry_after is True,
        ttl=fields.ttl,
        timeout=fields.timeout,
        lifo=fields.lifo,
        remove_on_complete=fields.remove_on_complete,
        remove_on_fail=fields.remove_on_fail,
        durable=fields.durable,
        tags=tuple(fields.tags or ()),
    )


def _backoff_of(
    backoff: BackoffMap,
) -> tuple[float, str, float | None, float | None, tuple[float, ...]]:
    """Delay, kind, jitter, longest delay, and all delays."""
    delays = () if backoff.delays is UNSET else tuple(backoff.delays)
    jitter = None if backoff.jitter is UNSET else backoff.jitter
    most = None if backoff.max_delay is UNSET else backoff.max_delay
    return backoff.delay, backoff.type, jitter, most, delays


def extra_of(fields: JobFields | Push) -> Extra | None:
    """The fields of a push that few jobs set; None if this one sets none of them."""
    dedup = fields.dedup or NO_DEDUP
    extra = Extra(
        custom_id=fields.job_id or fields.custom_id,
        parent_id=fields.parent_id,
        group_id=fields.group_id,
        depends_on=fields.depends_on or [],
        children_ids=fields.children_ids or [],
        repeat=None if fields.repeat is None else repeating.as_map(fields.repeat),
        stall_timeout=fields.stall_timeout,
        keep_logs=fields.keep_logs,
        size_limit=fields.size_limit,
        stack_trace_limit=10 if fields.stack_trace_limit is None else fields.stack_trace_limit,
        fail_parent_on_failure=fields.fail_parent_on_failure,
        remove_dependency_on_failure=fields.remove_dependency_on_failure,
        continue_parent_on_failure=fields.continue_parent_on_failure,
        ignore_dependency_on_failure=fields.ignore_dependency_on_failure,
        deduplication_ttl=dedup.ttl,
        debounce_id=fields.debounce_id,
        debounce_ttl=fields.debounce_ttl,
        deduplication_extend=dedup.extend,
        deduplication_replace=dedup.replace,
        headers=fields.headers or None,
        retry_on=fields.retry_on or [],
        never_on=fields.never_on or [],
        on_dead=None if fields.on_dead is None else _encode(fields.on_dead),
        on_dead_dependency=fields.on_dead_dependency,
        keep_completed=fields.keep_completed,
        keep_failed=fields.keep_failed,
    )
    return None if extra == _NO_EXTRA else extra


def check_data(data: bytes, where: str = "") -> None:
    """Check that all clients can read the data, and that it is not too large.  Called for all incoming data.

    The limit applies to the JSON text; only payloads that could exceed it are measured.  Some values are much
    longer in MessagePack, so that has a limit as well: a job must be deliverable.
    """
    field = f"{where}data"
    if len(data) <= SURELY_SMALL:
        check_readable(data, field)
        return
    try:
        found = measure(data, MAX_DATA)
    except READ_ERRORS as error:
        raise unreadable(field, reason(error)) from None
    if found.characters > MAX_DATA:
        raise _too_large(data, where, "max 10MB", MAX_DATA)
    if len(data) > MAX_BYTES:
        raise _too_large(data, where, f"{len(data)} bytes of MessagePack, max {MAX_BYTES}", MAX_BYTES)
    if problem := excess(found):
        raise unreadable(field, problem)


def _too_large(data: bytes, where: str, why: str, bound: int) -> CommandError:
    return CommandError(
        f"{where}Job data too large ({why})",
        Code.DATA_TOO_LARGE,
        field=path_of(f"{where}data"),
        value=len(data),
        bound=bound,
    )


def check_arguments(data: bytes, where: str = "") -> None:
    """CommandError unless the data of a workflow is a map of its arguments by name, as every client and
    worker expects."""
    if data in (NIL, UNDEFINED) or is_map(data):
        return
    raise CommandError(
        f"{where}data of a workflow must be an object, its arguments by name",
        Code.INVALID_FIELD,
        field=path_of(f"{where}data"),
        value=shown(data),
        bound="an object",
    )
