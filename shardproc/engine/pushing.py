"""PUSH and PUSHB: a job comes in."""

from __future__ import annotations

from collections.abc import Sequence

from bunqueue.model.backoff import EXPONENTIAL
from bunqueue.model.job import (
    DEFAULT_BACKOFF_MS,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_NAME,
    NIL,
    UNDEFINED,
    Job,
    JobOptions,
    SharedOptions,
)
from bunqueue.model.names import queue_name_problem
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.core import (
    BackoffMap,
    JobFields,
    Push,
    PushBatch,
    PushBatchReply,
    PushReply,
)
from bunqueue.protocol.json_size import json_size

from . import lifecycle
from .registry import handles
from .state import DEFAULT_OPTIONS, Client, QueueState, State

MAX_DATA = 10 * 1024 * 1024  # characters of JSON text; the seeds' limit
SURELY_SMALL = MAX_DATA // 6  # bytes of MessagePack: no encoding grows more than sixfold in JSON


@handles(Push)
def push(state: State, client: Client, command: Push) -> PushReply:
    data = bytes(command.data)
    if len(data) > SURELY_SMALL:
        _check_size(data)
    queue = state.queues.get(command.queue) or _new_queue(state, command.queue)
    return PushReply(id=_push(state, queue, [command], [data])[0])


@handles(PushBatch)
def push_batch(state: State, client: Client, command: PushBatch) -> PushBatchReply:
    payloads = [bytes(fields.data) for fields in command.jobs]
    for index, data in enumerate(payloads):
        if len(data) > SURELY_SMALL:
            _check_size(data, f"jobs[{index}]: ")
    name = command.queue
    if not payloads:
        if name not in state.queues and (problem := queue_name_problem(name)):
            raise CommandError(problem)
        return PushBatchReply(ids=[])
    queue = state.queues.get(name) or _new_queue(state, name)
    return PushBatchReply(ids=_push(state, queue, command.jobs, payloads))


def _new_queue(state: State, name: str) -> QueueState:
    if problem := queue_name_problem(name):
        raise CommandError(problem)
    return state.queue(name)


def _push(
    state: State, queue: QueueState, pushed: Sequence[JobFields | Push], payloads: list[bytes]
) -> list[str]:
    """Add jobs; their ids, or those of the jobs that hold their unique keys."""
    now, seq, unique = state.now, state.next_seq, queue.unique
    prefix = state.ids.prefix(queue.slot, now)
    ids: list[str] = []
    jobs: list[Job] = []
    for fields, data in zip(pushed, payloads, strict=True):
        key = fields.unique_key
        if key is not None and (holder := unique.get(key)) is not None:
            ids.append(holder)
            continue
        shared = _options(state, fields)
        job = Job(
            seq,
            f"{prefix}{seq:012x}",
            queue.name,
            fields.name or DEFAULT_NAME,
            NIL if data == UNDEFINED else data,
            shared,
            fields.priority,
            now,
            now + int(fields.delay) if fields.delay else now,
        )
        if key is not None:
            job.unique_key = key
            job.holds_key = True
            unique[key] = job.id
        if shared.options.durable:
            state.out.durable = True
        seq += 1
        jobs.append(job)
        ids.append(job.id)
    state.next_seq = seq
    state.totals.pushed += len(jobs)
    lifecycle.add(state, queue, jobs)
    return ids


def _options(state: State, fields: JobFields | Push) -> SharedOptions:
    """The shared options of a push; nearly always the defaults, so these are looked for first."""
    backoff = fields.backoff
    if (
        backoff == DEFAULT_BACKOFF_MS
        and fields.max_attempts == DEFAULT_MAX_ATTEMPTS
        and fields.timeout is None
        and fields.ttl is None
        and fields.tags is None
        and not fields.lifo
        and not fields.remove_on_complete
        and not fields.remove_on_fail
        and not fields.durable
    ):
        return DEFAULT_OPTIONS
    as_map = isinstance(backoff, BackoffMap)
    return state.shared(
        JobOptions(
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
    )


def _check_size(data: bytes, where: str = "") -> None:
    """The limit is on the JSON text; only payloads that could be above it are measured."""
    if json_size(data, MAX_DATA) > MAX_DATA:
        raise CommandError(f"{where}Job data too large (max 10MB)")
