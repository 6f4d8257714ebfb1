"""SetBounds and GetBounds: how much may wait in a queue, and how long completed jobs are kept."""

from __future__ import annotations

from msgspec.json import Decoder

from bunqueue.model.bounds import NO_BOUNDS, Bounds
from bunqueue.protocol.commands import Ok
from bunqueue.protocol.commands.bounds import BoundsReply, GetBounds, SetBounds, Space
from bunqueue.protocol.configuration import changed

from ..lookup import known_queue
from ..memory import queue_configs
from ..memory.queue_configs import of_queue
from ..ready import space
from ..registry import at_queue, handles, recovers, when_obliterated
from ..state import Client, QueueState, State

_decode = Decoder(Bounds).decode


@handles(SetBounds)
def set_bounds(state: State, client: Client, command: SetBounds) -> Ok:
    queue = known_queue(state, command.queue)
    bounds = changed(of_queue(state, command.queue, Bounds), command.config)
    queue_configs.store(state, command.queue, bounds)
    if queue is not None:
        space.bound(queue, bounds)
    return Ok()


@handles(GetBounds)
def get_bounds(state: State, client: Client, command: GetBounds) -> BoundsReply:
    queue = known_queue(state, command.queue)
    config = of_queue(state, command.queue, Bounds)
    if queue is None:
        empty = Space(0, None if config.max_waiting_bytes is None else 0, 0, 0)
        return BoundsReply(config=config, space=empty)
    return BoundsReply(config=config, space=space_of(queue))


def space_of(queue: QueueState) -> Space:
    """What waits in a queue, and how many jobs its bounds have refused or dropped."""
    turned_away = (0, 0) if queue.space is None else (queue.space.refused, queue.space.dropped)
    return Space(space.waiting(queue), space.waiting_bytes(queue), *turned_away)


@recovers("bounds", at_queue)
def recover(state: State, key: str, value: str) -> None:
    bounds = _decode(value)
    state.configs[Bounds, key] = bounds
    if key in state.queues:
        space.bound(state.queues[key], bounds)


@when_obliterated
def forget(state: State, queue: QueueState) -> None:
    space.bound(queue, NO_BOUNDS)
