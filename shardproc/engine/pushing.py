"""PUSH and PUSHB: a job comes in."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import to_builtins

from bunqueue.model.backoff import EXPONENTIAL
from bunqueue.model.job import DEFAULT_NAME, NIL, UNDEFINED, Extra, Job, JobOptions
from bunqueue.model.names import queue_name_problem
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.core import (
    BackoffMap,
    JobFields,
    PlainFields,
    PlainPush,
    PlainPushBatch,
    Push,
    PushBatch,
    PushBatchReply,
    PushReply,
)
from bunqueue.protocol.json_size import json_size

from . import events, lifecycle
from .dedup import NO_DEDUP, Claims
from .registry import handles
from .state import DEFAULT_OPTIONS, Client, QueueState, State

MAX_DATA = 10 * 1024 * 1024  # characters of JSON text; the seeds' limit
_NO_EXTRA = Extra()
SURELY_SMALL = MAX_DATA // 6  # bytes of MessagePack: no encoding grows more than sixfold in JSON


@handles(PlainPush)
def push_plain(state: State, client: Client, command: PlainPush) -> PushReply:
    data = bytes(command.data)
    if len(data) > SURELY_SMALL:
        _check_size(data)
    queue = state.queues.get(command.queue) or _new_queue(state, command.queue)
    return PushReply(id=_add_plain(state, queue, (command,), (data,))[0])


@handles(PlainPushBatch)
def push_plain_batch(state: State, client: Client, command: PlainPushBatch) -> PushBatchReply:
    payloads = _payloads(command.jobs)
    queue = _queue_of_batch(state, command.queue, payloads)
    return PushBatchReply(ids=_add_plain(state, queue, command.jobs, payloads) if queue is not None else [])


@handles(Push)
def push(state: State, client: Client, command: Push) -> PushReply:
    data = bytes(command.data)
    if len(data) > SURELY_SMALL:
        _check_size(data)
    queue = state.queues.get(command.queue) or _new_queue(state, command.queue)
    return PushReply(id=_add(state, queue, [command], [data])[0])


@handles(PushBatch)
def push_batch(state: State, client: Client, command: PushBatch) -> PushBatchReply:
    payloads = _payloads(command.jobs)
    queue = _queue_of_batch(state, command.queue, payloads)
    return PushBatchReply(ids=_add(state, queue, command.jobs, payloads) if queue is not None else [])


def _payloads(jobs: Sequence[JobFields | PlainFields]) -> list[bytes]:
    payloads = [bytes(fields.data) for fields in jobs]
    for index, data in enumerate(payloads):
        if len(data) > SURELY_SMALL:
            _check_size(data, f"jobs[{index}]: ")
    return payloads


def _queue_of_batch(state: State, name: str, payloads: list[bytes]) -> QueueState | None:
    """The queue; an empty batch does not create it."""
    if payloads:
        return state.queues.get(name) or _new_queue(state, name)
    if name not in state.queues and (problem := queue_name_problem(name)):
        raise CommandError(problem)
    return None


def _new_queue(state: State, name: str) -> QueueState:
    if problem := queue_name_problem(name):
        raise CommandError(problem)
    return state.queue(name)


def _add_plain(
    state: State, queue: QueueState, pushed: Sequence[PlainFields | PlainPush], payloads: Sequence[bytes]
) -> list[str]:
    """`_add` for jobs without options: the hot path."""
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
    state.next_seq = seq
    state.totals.pushed += len(jobs)
    lifecycle.add(state, queue, jobs)
    return ids


def _add(
    state: State, queue: QueueState, pushed: Sequence[JobFields | Push], payloads: list[bytes]
) -> list[str]:
    """Add jobs; their ids, or those of the jobs that hold their unique keys."""
    now, claims = state.now, Claims(state, queue)
    ids: list[str] = []
    jobs: list[Job] = []
    met: list[str] = []  # holders of keys that were pushed again
    for fields, data in zip(pushed, payloads, strict=True):
        if (holder := claims.taken(fields)) is not None:
            ids.append(holder)
            met.append(holder)
            continue
        seq = state.next_seq
        state.next_seq += 1
        job = Job(
            seq,
            state.ids.job_id(queue.slot, now, seq),
            queue.name,
            fields.name or DEFAULT_NAME,
            NIL if data == UNDEFINED else data,
            state.shared(options_of(fields)),
            fields.priority,
            now,
            now + int(fields.delay) if fields.delay else now,
            unique_key=fields.unique_key or None,
            extra=extra_of(fields),
        )
        claims.claim(job, fields.dedup)
        if job.options.durable:
            state.out.durable = True
        jobs.append(job)
        ids.append(job.id)
    jobs = claims.settle(jobs)
    state.totals.pushed += len(jobs)
    lifecycle.add(state, queue, jobs)
    for holder in met:
        if holder in state.jobs:  # not if the same push then replaced it
            events.emit(state, events.DUPLICATED, state.jobs[holder])
    return ids


def options_of(fields: JobFields | Push) -> JobOptions:
    """What of a push many jobs have in common."""
    backoff = fields.backoff
    as_map = isinstance(backoff, BackoffMap)
    return JobOptions(
        max_attempts=fields.max_attempts,
        backoff=backoff.delay if isinstance(backoff, BackoffMap) else backoff,
        backoff_kind=backoff.type if isinstance(backoff, BackoffMap) else EXPONENTIAL,
        backoff_given_as_map=as_map,
        ttl=fields.ttl,
        timeout=fields.timeout or None,
        lifo=fields.lifo,
        remove_on_complete=fields.remove_on_complete,
        remove_on_fail=fields.remove_on_fail,
        durable=fields.durable,
        tags=tuple(fields.tags or ()),
    )


def extra_of(fields: JobFields | Push) -> Extra | None:
    """What of a push hardly any job has; None when this one has nothing of it."""
    dedup = fields.dedup or NO_DEDUP
    extra = Extra(
        custom_id=fields.job_id or fields.custom_id,
        parent_id=fields.parent_id,
        group_id=fields.group_id,
        depends_on=fields.depends_on or [],
        children_ids=fields.children_ids or [],
        repeat=None if fields.repeat is None else to_builtins(fields.repeat),
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
    )
    return None if extra == _NO_EXTRA else extra


def _check_size(data: bytes, where: str = "") -> None:
    """The limit is on the JSON text; only payloads that could be above it are measured."""
    if json_size(data, MAX_DATA) > MAX_DATA:
        raise CommandError(f"{where}Job data too large (max 10MB)")
