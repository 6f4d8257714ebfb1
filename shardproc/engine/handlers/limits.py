"""The commands that set, clear and show the limits of a queue."""

from __future__ import annotations

from msgspec.json import Decoder

from bunqueue.model.names import queue_name_problem
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Data, Ok
from bunqueue.protocol.commands import limits as requests
from bunqueue.protocol.commands.limits import (
    ClearConcurrency,
    GetQueueLimits,
    LimitsOfQueue,
    Rate,
    RateLimit,
    RateLimitClear,
    SetConcurrency,
)
from bunqueue.protocol.numbers import number

from ..lookup import admit_queues, known_queue
from ..ready import queue_limits
from ..ready.queue_limits import Limits, TokenBucket
from ..registry import at_queue, handles, recovers, when_obliterated
from ..state import Client, QueueState, State

NO_LIMIT = -2  # rateLimitTtl without a limit

_decode = Decoder(Limits).decode


def named_queue(state: State, name: str) -> QueueState:
    """The queue with that name, created if necessary: settings create a queue just as a push does."""
    queue = state.queues.get(name)
    if queue is None and (problem := queue_name_problem(name)):
        raise CommandError(problem, Code.INVALID_QUEUE, field="queue", value=name)
    admit_queues(state, [name])
    return queue or state.queue(name)


def admit(state: State, kind: str, queue: str) -> None:
    """CommandError unless the queue may have a setting of this kind."""
    state.kept.admit(kind, queue, "queue", queue)


@handles(RateLimit)
def rate_limit(state: State, client: Client, command: RateLimit) -> Ok:
    most, duration = _limit(command.limit), command.duration
    until = state.now + int(command.ttl) if command.ttl else None
    bucket = TokenBucket(most, duration, state.now, max(most, 1) * duration, until, state.now)
    admit(state, queue_limits.RECORD, command.queue)
    return _change(state, named_queue(state, command.queue), bucket=bucket)


@handles(RateLimitClear)
def rate_limit_clear(state: State, client: Client, command: RateLimitClear) -> Ok:
    return _change(state, known_queue(state, command.queue), bucket=None)


@handles(SetConcurrency)
def set_concurrency(state: State, client: Client, command: SetConcurrency) -> Ok:
    most = _limit(command.limit)  # checked before the queue is created
    admit(state, queue_limits.RECORD, command.queue)
    return _change(state, named_queue(state, command.queue), concurrency=most)


@handles(ClearConcurrency)
def clear_concurrency(state: State, client: Client, command: ClearConcurrency) -> Ok:
    return _change(state, known_queue(state, command.queue), concurrency=None)


@handles(GetQueueLimits)
def get_queue_limits(state: State, client: Client, command: GetQueueLimits) -> Data[LimitsOfQueue]:
    queue = known_queue(state, command.queue)
    found = requests.Limits(None, NO_LIMIT, None, False)
    if queue is not None and queue.limits is not None:
        limits = queue.limits
        bucket, most = queue_limits.bucket_of(state, queue, limits), limits.own.concurrency
        if bucket is not None:
            found.rate_limit = Rate(number(bucket.max), number(bucket.duration))
            at = bucket.until or bucket.next_token_at(state.now)
            found.rate_limit_ttl = number(bucket.duration if at is None else at - state.now)
        found.concurrency_limit = None if most is None else number(most)
        found.maxed = most is not None and len(queue.active) >= most
    return Data(data=LimitsOfQueue(found))


@recovers(queue_limits.RECORD, at_queue)
def recover_limits(state: State, key: str, value: str) -> None:
    queue = state.queues.get(key)
    if queue is not None:
        queue_limits.limits_of(queue).own = _decode(value)


@when_obliterated
def forget_limits(state: State, queue: QueueState) -> None:
    if queue.limits is not None:
        _change(state, queue, bucket=None, concurrency=None)


def _limit(number: float) -> float | int:
    """A limit as stored and shown: 5.0 is 5."""
    if number < 0:
        raise CommandError(
            "limit must be at least 0", Code.INVALID_LIMIT, field="limit", value=number, bound=0
        )
    return int(number) if number == int(number) else number


def _change(state: State, queue: QueueState | None, **changes: TokenBucket | float | None) -> Ok:
    """Change the limits of a queue, and serve the parked pulls that these now allow."""
    if queue is None:
        return Ok()
    limits = queue_limits.limits_of(queue)
    for name, value in changes.items():
        setattr(limits.own, name, value)
    queue_limits.keep(state, queue, limits)
    if queue.waiters:
        state.woken[queue] = None
    return Ok()
