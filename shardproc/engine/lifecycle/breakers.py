"""Circuit breakers open and close as attempts of their jobs end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bunqueue.model.job import Job
from bunqueue.model.names import record_key

from ..ready import queue_limits
from ..ready.breaker import Breaker, Breakers
from ..state import QueueState, State
from .events import BREAKER, emit_queue

RECORD = "breaker"


def succeeded(state: State, queue: QueueState, breakers: Breakers, job: Job) -> None:
    """A job is about to complete."""
    for breaker in breakers.of(job):
        if breaker.succeeded(job, state.now):
            close(state, queue, breaker, "the trial succeeded")


def failed(
    state: State, queue: QueueState, breakers: Breakers, job: Job, error: str | None, types: Sequence[str]
) -> None:
    """An attempt is about to be booked as failed."""
    for breaker in breakers.of(job):
        if not breaker.counts(list(types)):
            if breaker.succeeded(job, state.now):  # the service it guards has answered
                close(state, queue, breaker, "the trial met no error that counts")
        elif breaker.failed(job, state.now):
            trip(state, queue, breaker, error)


def trip(
    state: State, queue: QueueState, breaker: Breaker, error: str | None, pause: float | None = None
) -> None:
    """Open a breaker."""
    breaker.open(state.now, error, pause)
    breakers = queue_limits.limits_of(queue).breakers
    if breakers is not None and breaker.name:
        breakers.restless[breaker.name] = breaker
    keep(state, queue, breaker)
    _emit(state, queue, breaker, "open", error)


def close(state: State, queue: QueueState, breaker: Breaker, why: str) -> None:
    """Close a breaker, and put back the jobs it holds."""
    breaker.close()
    keep(state, queue, breaker)
    _emit(state, queue, breaker, "closed", why)
    release(state, queue, breaker)


def keep(state: State, queue: QueueState, breaker: Breaker) -> None:
    """Store it."""
    state.out.keep(RECORD, record_key(queue.name, breaker.name), breaker.record)


def release(state: State, queue: QueueState, breaker: Breaker) -> None:
    """Put the jobs it holds back into the order, over several ticks if there are many."""
    state.background_work.setdefault((release, queue.name, breaker.name), _release(state, queue, breaker))
    if queue.waiters:
        state.woken[queue] = None


def _release(state: State, queue: QueueState, breaker: Breaker) -> Iterator[None]:
    while breaker.shelf and not breaker.record.is_open:
        if state.budget <= 0:
            yield
            continue
        state.budget -= 1
        seq = next(iter(breaker.shelf))
        queue.ready.push(breaker.shelf.pop(seq))
        if queue.waiters:
            state.woken[queue] = None
    limits = queue.limits
    if not breaker.record.is_open and limits is not None and limits.breakers is not None:
        limits.breakers.restless.pop(breaker.name, None)


def _emit(state: State, queue: QueueState, breaker: Breaker, status: str, reason: str | None) -> None:
    fields = {"status": status}
    if breaker.name:
        fields["name"] = breaker.name
    if reason:
        fields["reason"] = reason
    emit_queue(state, BREAKER, queue, **fields)
