"""SubscribeEvents and its end, and TrimEvents.  A client may subscribe to a queue that does not exist yet."""

from __future__ import annotations

from bunqueue.model.names import queue_name_problem
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Data, Ok
from bunqueue.protocol.commands.events import SubscribeEvents, TrimEvents, Trimmed

from ..lookup import known_queue
from ..registry import handles
from ..slices import Steps, sliced
from ..state import Client, State


@handles(SubscribeEvents)
def subscribe(state: State, client: Client, command: SubscribeEvents) -> Ok:
    if problem := queue_name_problem(command.queue):
        raise CommandError(problem, Code.INVALID_QUEUE, field="queue", value=command.queue)
    resume(state, client, command.queue)
    return Ok()


def resume(state: State, client: Client, name: str) -> None:
    """Send the client the events of this queue from now on, and of no other queue."""
    unsubscribe(state, client)
    client.listens_to = name
    listeners = state.listeners.setdefault(name, set())
    listeners.add(client.conn)
    if name in state.queues:
        state.queues[name].listeners = listeners


@handles(TrimEvents)
@sliced
def trim_events(state: State, client: Client, command: TrimEvents) -> Steps:
    queue = known_queue(state, command.queue)
    removed, keep, before = 0, command.max_length, None
    while queue is not None:
        more, keep, before = state.archive.trim_events(queue.id, keep, before)
        removed += more
        if before is None:
            break
        yield
    return Data(data=Trimmed(removed))


def unsubscribe(state: State, client: Client) -> None:
    """Stop sending events to the client."""
    name, client.listens_to = client.listens_to, None
    if name is None:
        return
    listeners = state.listeners[name]
    listeners.discard(client.conn)
    if listeners:
        return
    del state.listeners[name]
    if name in state.queues:
        state.queues[name].listeners = ()
