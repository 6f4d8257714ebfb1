"""PUSH and PUSHB: add jobs."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import count
from operator import attrgetter
from types import MappingProxyType

from msgspec import UNSET
from msgspec.msgpack import Encoder

from bunqueue.model.backoff import EXPONENTIAL
from bunqueue.model.dead_letters import QUEUE_FULL
from bunqueue.model.job import (
    DEFAULT_BACKOFF_MS,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_NAME,
    NIL,
    UNDEFINED,
    Extra,
    Job,
    JobOptions,
)
from bunqueue.model.job_options import RARE_OPTIONS
from bunqueue.model.names import SEPARATOR, outside
from bunqueue.model.workflow import UNAMBIGUOUS, Run
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Reply
from bunqueue.protocol.commands.base import path_of
from bunqueue.protocol.commands.core import (
    BackoffMap,
    Conflict,
    JobFields,
    PlainFields,
    PlainPush,
    PlainPushBatch,
    Push,
    PushBatch,
    PushBatchReply,
    PushReply,
)
from bunqueue.protocol.measure import SURELY_SMALL
from bunqueue.protocol.readable import are_readable, is_readable
from bunqueue.server.links.peers import DEAD_REMOVED, UNKNOWN, Outcome

from ..lifecycle import declared, events, repeating, transitions
from ..lifecycle.dedup import NO_DEDUP, Claims
from ..lookup import admit_queues, check_own_id, known_queue
from ..outbox import NEW_NAMED
from ..peer_calls import Steps, across
from ..peers import dependencies, directory, families, hidden_jobs
from ..ready import space
from ..registry import handles
from ..state import Client, QueueState, State
from . import idempotency
from .group_rules import GroupSpace
from .idempotency import Answer
from .old_names import lift_name
from .push_checks import check_data, check_fields

_NO_EXTRA = Extra()
_encode = Encoder().encode
_rare_options = attrgetter(*RARE_OPTIONS)  # the first fields of an Extra
_NO_BOUNDS: tuple[None, None, tuple[float, ...]] = (None, None, ())  # no maximum, no jitter, no delays


@handles(PlainPush)
def push_plain(state: State, client: Client, command: PlainPush) -> Reply | None:
    if command.idempotency_key is not None and (known := idempotency.answered(state, command)):
        return _reply(command, known)
    data = bytes(command.data)
    if len(data) > SURELY_SMALL or not is_readable(data):
        check_data(data)
    if client.version >= 3 and command.name is None:
        data = lift_name(command, data)
    queue = state.queues.get(command.queue) or _new_queue_for(state, command)
    if queue.functions is not None and queue.functions.concerns(command.name or DEFAULT_NAME):
        return push(state, client, _full(command))
    if queue.is_bounded:
        _make_room(state, queue, (data,))
    now, seq = state.now, state.next_seq
    job = Job(
        seq,
        state.ids.prefix(queue.slot, now) + seq.to_bytes(6).hex(),  # `ids.job_id`, inlined
        queue.name,
        command.name or DEFAULT_NAME,
        NIL if data == UNDEFINED else data,
        client.options,
        command.priority or 0,
        now,
        now + int(command.delay) if command.delay else now,
    )
    state.next_seq = seq + 1
    state.totals.pushed += 1
    transitions.add_new(state, queue, job)
    if client.by is not None:
        job.dirty = NEW_NAMED
    if command.idempotency_key is not None:
        idempotency.remember(state, command, Answer([job.id]))
    return PushReply(id=job.id)


@handles(PlainPushBatch)
def push_plain_batch(state: State, client: Client, command: PlainPushBatch) -> Reply | None:
    if command.idempotency_key is not None and (known := idempotency.answered(state, command)):
        return _reply(command, known)
    payloads = _payloads(command.jobs, client.version)
    functions = state.functions.get(command.queue)
    if functions is not None and any(
        functions.concerns(fields.name or DEFAULT_NAME) for fields in command.jobs
    ):
        return push_batch(state, client, _full_batch(command))
    queue = _queue_of_batch(state, command.queue, payloads)
    ids = _add_plain(state, client, queue, command.jobs, payloads) if queue is not None else []
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
    if client.version >= 3:
        data = lift_name(command, data)
    if is_linked(command):
        return push_linked(state, client, command)
    if command.queue in state.functions:
        return _push_declared(state, client, command, [data])
    check_fields(command, client.version, state.now)
    queue = state.queues.get(command.queue) or new_queue(state, command.queue)
    return _added(state, command, add(state, queue, [command], [data], by=client.by))


@handles(PushBatch)
def push_batch(state: State, client: Client, command: PushBatch) -> Reply | None:
    if command.idempotency_key is not None and idempotency.answered(state, command):
        return push_again(state, client, command)
    known_queue(state, command.queue)
    payloads = _payloads(command.jobs, client.version)
    if any(map(is_linked, command.jobs)):
        return push_linked(state, client, command)
    if command.queue in state.functions:
        return _push_declared(state, client, command, payloads)
    for index, fields in enumerate(command.jobs):
        check_fields(fields, client.version, state.now, f"jobs[{index}]: ")
    queue = _queue_of_batch(state, command.queue, payloads)
    by, jobs = client.by, command.jobs
    added = Answer([]) if queue is None else add(state, queue, jobs, payloads, many=True, by=by)
    return _added(state, command, added)


def _push_declared(state: State, client: Client, command: Push | PushBatch, payloads: list[bytes]) -> Reply:
    """Push jobs to a queue for which apps have declared functions."""
    warnings = _check(state, client, command, payloads)
    queue = _queue_of_batch(state, command.queue, payloads)
    many, entries, by = isinstance(command, PushBatch), _entries(command), client.by
    added = Answer([]) if queue is None else add(state, queue, entries, payloads, many=many, by=by)
    return _added(state, command, added, warnings)


def _check(state: State, client: Client, command: Push | PushBatch, payloads: Sequence[bytes]) -> list[str]:
    """Check the jobs of a push, and give them the options that apps have declared for them; returns
    warnings."""
    if isinstance(command, Push) and command.queue not in state.functions:
        check_fields(command, client.version, state.now)
        return []
    entries, where = _entries(command), "jobs[{}]: " if isinstance(command, PushBatch) else ""
    functions, warnings = state.functions.get(command.queue), []
    if functions is not None:
        warnings = declared.admit(functions, command.queue, entries, payloads, state.now, where)
    for index, fields in enumerate(entries):
        check_fields(fields, client.version, state.now, where.format(index))
    return warnings


def _full(command: PlainPush) -> Push:
    """The same push, with room for options."""
    return Push(
        queue=command.queue,
        data=command.data,
        name=command.name,
        priority=command.priority,
        delay=command.delay,
        idempotency_key=command.idempotency_key,
        idempotency_age=command.idempotency_age,
        req_id=command.req_id,
    )


def _full_batch(command: PlainPushBatch) -> PushBatch:
    return PushBatch(
        queue=command.queue,
        jobs=[
            JobFields(data=each.data, name=each.name, priority=each.priority, delay=each.delay)
            for each in command.jobs
        ],
        idempotency_key=command.idempotency_key,
        idempotency_age=command.idempotency_age,
        req_id=command.req_id,
    )


def _added(state: State, command: Push | PushBatch, added: Answer, warnings: Sequence[str] = ()) -> Reply:
    """The reply to a push that has been carried out."""
    if command.idempotency_key is not None:
        idempotency.remember(state, command, added)
    reply = _reply(command, added)
    if warnings:
        reply.warnings = list(warnings)
    return reply


def _reply(command: idempotency.AnyPush, outcome: Answer) -> PushReply | PushBatchReply:
    ids, existing, conflicts = outcome
    if not isinstance(command, Push | PlainPush):
        return PushBatchReply(ids=ids, existing=existing or UNSET, conflicts=conflicts or UNSET)
    reply = PushReply(id=ids[0], existing=True) if existing else PushReply(id=ids[0])
    if conflicts:
        reply.conflict = Conflict(conflicts[0].action, conflicts[0].holder)
    return reply


def push_fields(state: State, queue_name: str, fields: JobFields, by: str | None = None) -> tuple[str, bool]:
    """Push a job created by the server itself, for an identity; returns its id as a client would see it, and
    whether it is new."""
    queue = state.queues.get(queue_name) or new_queue(state, queue_name, own=True)
    added = add(state, queue, [fields], [bytes(fields.data)], own=True, by=by)
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
    warnings = _check(state, client, command, [bytes(fields.data) for fields in entries])
    own: dict[str, int] = {}  # ids given with the jobs -> the place of the first one
    for index, fields in enumerate(entries):
        if job_id := fields.job_id or fields.custom_id:
            own.setdefault(job_id, index)
    if SEPARATOR in command.queue:
        for job_id, index in own.items():
            check_own_id(command.queue, job_id, path_of(f"jobs[{index}]: jobId") if batch else "jobId")
    parents = [families.parent_of(fields) for fields in entries]
    for fields, parent in zip(entries, parents, strict=True):
        families.check_other(parent, fields.job_id or fields.custom_id)
    _check_no_circle(entries, own)
    wanted = [dep for fields in entries for dep in fields.depends_on or ()]
    unseen: frozenset[str] = frozenset()
    if client.scope is not None:
        unseen = yield from hidden_jobs.hidden(state, client, [*wanted, *parents])
        yield from hidden_jobs.check_own(state, client, own)
    durable = any(fields.durable is True for fields in entries)
    key = idempotency.begin(state, command)
    try:
        outcomes = yield from dependencies.look_up(state, wanted, durable=durable)
        if unseen:
            outcomes |= {job_id: Outcome(job_id, UNKNOWN) for job_id in unseen & outcomes.keys()}
        _check_dependencies(entries, outcomes, own, batch)
        places = yield from families.find_parents(state, parents, own, unseen)
        taken = yield from directory.claim(state, list(own), durable=durable)
        places.update({parent: shard for parent, shard in taken.items() if parent in places})
        queue = state.queues.get(command.queue) or new_queue(state, command.queue)
        payloads = [bytes(fields.data) for fields in entries]
        added = add(state, queue, entries, payloads, taken, outcomes, many=batch, by=client.by)
    finally:
        dependencies.release_lookup(state, wanted)
        state.pushed.underway.discard(key)
    reply = _added(state, command, added, warnings)
    yield families.join(places, parents, added.ids, durable=durable)
    return reply


@across
def push_again(state: State, client: Client, command: Push | PushBatch) -> Steps:
    """Return the first reply to a push with that key.  The parents of its jobs are notified again, because
    they may not know of them if this shard died at that moment."""
    known, entries = idempotency.answered(state, command), _entries(command)
    assert known is not None
    durable = any(fields.durable is True for fields in entries)
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
    if not are_readable(payloads):  # or too large to be sure
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
        admit_queues(state, [name], jobs=1)
    return state.queue(name)


def _new_queue_for(state: State, command: PlainPush) -> QueueState:
    """Create a queue for its first job; if that may be refused, only its functions are known as yet."""
    functions = state.functions.get(command.queue)
    if functions is None or not functions.concerns(command.name or DEFAULT_NAME):
        return new_queue(state, command.queue)
    queue = QueueState(0, command.queue)
    queue.functions = functions
    return queue


def _add_plain(
    state: State,
    client: Client,
    queue: QueueState,
    pushed: Sequence[PlainFields],
    payloads: Sequence[bytes],
) -> list[str]:
    """`add` for jobs without options: the hot path, as `push_plain` is."""
    if queue.is_bounded:
        _make_room(state, queue, payloads)
    if UNDEFINED in payloads:
        payloads = [NIL if data == UNDEFINED else data for data in payloads]
    now, name, first, options = state.now, queue.name, state.next_seq, client.options
    prefix = state.ids.prefix(queue.slot, now)
    jobs = [
        Job(
            seq,
            prefix + seq.to_bytes(6).hex(),
            name,
            fields.name or DEFAULT_NAME,
            data,
            options,
            fields.priority or 0,
            now,
            now + int(fields.delay) if fields.delay else now,
        )
        for seq, fields, data in zip(count(first), pushed, payloads)
    ]
    state.next_seq = first + len(jobs)
    state.totals.pushed += len(jobs)
    transitions.add_many_new(state, queue, jobs)
    if client.by is not None:
        for job in jobs:
            job.dirty = NEW_NAMED
    return [job.id for job in jobs]


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
    by: str | None = None,
) -> Answer:
    """Add jobs; the answer has their ids, or the ids of existing jobs with the same id or unique key.

    ``taken``: ids used by jobs on other shards.  ``outcomes``: the outcomes of their dependencies.  With
    ``many``, a refusal names the job that caused it.  The server's ``own`` jobs are accepted even if the
    queue is full.  ``by``: the identity that adds them.
    """
    claims, groups = Claims(state, queue), GroupSpace(queue)
    ids: list[str] = []
    jobs: dict[str, Job] = {}
    met: list[int] = []  # places of ids and keys that exist already
    conflicts: list[Conflict] = []
    for fields, data in zip(pushed, payloads, strict=True):
        if own and queue.functions is not None:
            declared.fill(queue.functions, fields, state.now)
        id_ = fields.job_id or fields.custom_id
        state.out.durable |= fields.durable is True  # the reply that a job exists is a promise as well
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
        job = new_job(state, queue, id_, fields, data, by)
        claims.claim(job, fields.dedup)
        jobs[job.id] = job
        ids.append(job.id)
    if queue.is_bounded and jobs and not own:
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
    """Make room for new jobs in a queue that is bounded, or in a namespace.  CommandError if that is full."""
    dropped = space.room_for(queue, payloads, leaving) if queue.space is not None else ()
    if queue.tenant is not None:
        queue.tenant.admit("jobs", queue.tenant.jobs, len(payloads) - len(leaving) - len(dropped))
    for job in dropped:
        job.error = f"dropped, as newer jobs came and the queue {outside(queue.name, queue.name)} was full"
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
    state: State, queue: QueueState, own_id: str | None, fields: JobFields | Push, data: bytes, by: str | None
) -> Job:
    """Create a job from the fields of a push by an identity, with a number of its own but in no table yet."""
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
        state.shared(options_of(fields, by)),
        fields.priority or 0,
        created,
        created + int(fields.delay) if fields.delay else created,
        unique_key=fields.unique_key or None,
        extra=extra,
        run=Run(declared=True, keys=UNAMBIGUOUS) if fields.workflow else None,
    )


def options_of(fields: JobFields | Push, by: str | None) -> JobOptions:
    """The fields of a push that many jobs have in common, and the identity that sent it."""
    backoff = fields.backoff
    if backoff is UNSET:
        backoff = DEFAULT_BACKOFF_MS
    as_map = isinstance(backoff, BackoffMap)
    delay, kind, jitter, most, delays = (
        _backoff_of(backoff) if isinstance(backoff, BackoffMap) else (backoff, EXPONENTIAL, *_NO_BOUNDS)
    )
    return JobOptions(
        fields.max_attempts or DEFAULT_MAX_ATTEMPTS,  # by place: calls with 16 names are much slower
        backoff=delay,
        backoff_kind=kind,
        backoff_jitter=jitter,
        backoff_given_as_map=as_map,
        backoff_max=most,
        backoff_delays=delays,
        backoff_retry_after=isinstance(backoff, BackoffMap) and backoff.retry_after is True,
        ttl=fields.ttl,
        timeout=fields.timeout,
        lifo=fields.lifo is True,
        remove_on_complete=fields.remove_on_complete is True,
        remove_on_fail=fields.remove_on_fail is True,
        durable=fields.durable is True,
        tags=tuple(fields.tags or ()),
        added_by=by,
    )


def _backoff_of(backoff: BackoffMap) -> tuple[float, str, float | None, float | None, tuple[float, ...]]:
    """Delay, kind, jitter, longest delay, and all delays."""
    delays = () if backoff.delays is UNSET else tuple(backoff.delays)
    jitter = None if backoff.jitter is UNSET else backoff.jitter
    most = None if backoff.max_delay is UNSET else backoff.max_delay
    return backoff.delay, backoff.type, jitter, most, delays


def extra_of(fields: JobFields | Push) -> Extra | None:
    """The fields of a push that few jobs set; None if this one sets none of them."""
    dedup = fields.dedup or NO_DEDUP
    extra = Extra(  # type: ignore[misc]  # mypy cannot know how many fields the star fills
        *_rare_options(fields),
        custom_id=fields.job_id or fields.custom_id,
        parent_id=fields.parent_id,
        group_id=fields.group_id,
        depends_on=fields.depends_on or [],
        children_ids=fields.children_ids or [],
        repeat=None if fields.repeat is None else repeating.as_map(fields.repeat),
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
    )
    return None if extra == _NO_EXTRA else extra
