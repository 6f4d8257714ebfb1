"""The commands for circuit breakers, from SetBreaker on."""

from __future__ import annotations

from msgspec import json, to_builtins

from bunqueue.model.breaker import OPEN, BreakerConfig
from bunqueue.model.names import parts_of, record_key
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.breakers import (
    BreakerReply,
    BreakersReply,
    BreakerView,
    ClearBreaker,
    ListBreakers,
    ResetBreaker,
    SetBreaker,
    TripBreaker,
)
from bunqueue.protocol.configuration import changed
from bunqueue.protocol.numbers import number

from ..lifecycle import breakers
from ..lookup import known_queue
from ..ready import queue_limits
from ..ready.breaker import Breaker, BreakerRecord, Breakers
from ..registry import at_queue_in, handles, recovers, when_obliterated
from ..scoped import queues_of
from ..slices import Steps, sliced
from ..state import Client, QueueState, State
from .limits import named_queue

BREAKERS_A_SLICE, QUEUES_A_SLICE = 100, 1000  # for lists
MAX_BREAKERS = 1000  # per queue: pulls check each one while it is open

_decode = json.Decoder(BreakerRecord).decode


@handles(SetBreaker)
def set_breaker(state: State, client: Client, command: SetBreaker) -> BreakerReply:
    found = _find(state, command.queue, command.name)
    config = BreakerConfig() if found is None else found[1].record.config
    if command.config is not None:
        config = changed(config, command.config)
    if found is not None:
        queue, breaker = found
        breaker.record.config = config
    else:
        name = command.name or ""
        _admit(state, command.queue, name)
        queue = named_queue(state, command.queue)
        limits = queue_limits.limits_of(queue)
        if limits.breakers is None:
            limits.breakers = Breakers()
        breaker = Breaker(name, BreakerRecord(config))
        limits.breakers.put(breaker)
    breakers.keep(state, queue, breaker)
    return BreakerReply(breaker=_view(state, queue, breaker))


def _admit(state: State, queue: str, name: str) -> None:
    """CommandError unless the queue may have one more breaker."""
    field, value = ("name", name) if name else ("queue", queue)
    known = state.queues.get(queue)
    limits = known.limits if known is not None else None
    if limits is not None and limits.breakers is not None and len(limits.breakers.names) >= MAX_BREAKERS:
        text = f"the queue {queue} has {MAX_BREAKERS} circuit breakers already"
        raise CommandError(text, Code.TOO_MANY_SETTINGS, field=field, value=value, bound=MAX_BREAKERS)
    state.kept.admit(breakers.RECORD, record_key(queue, name), field, value)


@handles(ClearBreaker)
def clear_breaker(state: State, client: Client, command: ClearBreaker) -> Ok:
    found = _find(state, command.queue, command.name)
    if found is not None:
        _remove(state, *found)
    return Ok()


def _remove(state: State, queue: QueueState, breaker: Breaker) -> None:
    limits = queue_limits.limits_of(queue)
    assert limits.breakers is not None
    state.out.keep(breakers.RECORD, record_key(queue.name, breaker.name), None)
    limits.breakers.remove(breaker)
    for job in breaker.shelf.values():
        queue.ready.push(job)
    breaker.shelf.clear()
    if not list(limits.breakers):
        limits.breakers = None
        queue_limits.drop_if_empty(queue, limits)
    if queue.waiters:
        state.woken[queue] = None


@handles(TripBreaker)
def trip_breaker(state: State, client: Client, command: TripBreaker) -> BreakerReply:
    queue, breaker = _known(state, command.queue, command.name)
    breakers.trip(state, queue, breaker, command.reason or "opened by hand", command.pause)
    return BreakerReply(breaker=_view(state, queue, breaker))


@handles(ResetBreaker)
def reset_breaker(state: State, client: Client, command: ResetBreaker) -> BreakerReply:
    queue, breaker = _known(state, command.queue, command.name)
    breakers.close(state, queue, breaker, "closed by hand")
    return BreakerReply(breaker=_view(state, queue, breaker))


@handles(ListBreakers)
@sliced
def list_breakers(state: State, client: Client, command: ListBreakers) -> Steps:
    if command.queue is not None:
        queue = known_queue(state, command.queue)
        queues = [] if queue is None else [queue]
    else:
        queues = queues_of(state, client)
    found: list[BreakerView] = []
    for place, queue in enumerate(queues, 1):
        limits = queue.limits
        for breaker in () if limits is None or limits.breakers is None else list(limits.breakers):
            found.append(_view(state, queue, breaker))
            if len(found) % BREAKERS_A_SLICE == 0:
                yield
        if place % QUEUES_A_SLICE == 0:
            yield
    return BreakersReply(breakers=found)


def _find(state: State, name: str, of: str | None) -> tuple[QueueState, Breaker] | None:
    queue = known_queue(state, name)
    limits = None if queue is None else queue.limits
    breaker = None if limits is None or limits.breakers is None else limits.breakers.find(of or "")
    return None if queue is None or breaker is None else (queue, breaker)


def _known(state: State, queue: str, name: str | None) -> tuple[QueueState, Breaker]:
    found = _find(state, queue, name)
    if found is None:
        what = f"jobs called {name} of the queue {queue}" if name else f"the queue {queue}"
        raise CommandError(
            f"There is no circuit breaker of {what}",
            Code.BREAKER_NOT_FOUND,
            field="name",
            value=name or queue,
        )
    return found


def _view(state: State, queue: QueueState, breaker: Breaker) -> BreakerView:
    record = breaker.record
    shown = breaker.shown_state(state.now)
    settings = to_builtins(record.config)
    config = {name: number(each) if type(each) is int else each for name, each in settings.items()}
    return BreakerView(
        queue.name,
        breaker.name or None,
        shown,
        breaker.shown_failures(state.now),
        record.opened,
        float(record.until) if shown == OPEN else None,
        record.error,
        len(breaker.shelf),
        config,
    )


@recovers(breakers.RECORD, at_queue_in)
def recover(state: State, key: str, value: str) -> None:
    name, of = parts_of(key)
    queue = state.queues.get(name)
    if queue is not None:
        limits = queue_limits.limits_of(queue)
        limits.breakers = limits.breakers or Breakers()
        limits.breakers.put(Breaker(of, _decode(value)))


@when_obliterated
def forget(state: State, queue: QueueState) -> None:
    """Remove the breakers of a queue that is being obliterated."""
    if queue.limits is not None and queue.limits.breakers is not None:
        for breaker in list(queue.limits.breakers):
            _remove(state, queue, breaker)
