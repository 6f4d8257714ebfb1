"""Replaces a state that is ahead of the disk by a new one: data that is not stored is carried over, all else
is read again.
"""

from __future__ import annotations

from collections.abc import Iterator

from bunqueue.protocol.commands.base import RequestId
from bunqueue.server.links.peers import Announce

from ..memory.parked_trials import ParkedTrial
from ..state import Client, JobWait, State, Waiter


def entangled(state: State, received: bool) -> bool:
    """Whether other shards know of something that is not stored, or wait for it."""
    if state.shards == 1:
        return bool(state.asked)
    asked = any(not isinstance(asked.message, Announce) for asked in state.asked.values())  # asked again
    waits = asked, state.answering, state.relays, state.granted, state.awaited, state.out.peer_messages
    flows = state.prepared, state.parts, state.undecided, state.decisions
    return received or any((*waits, *flows, state.moving))


def parked(state: State) -> list[tuple[Client, RequestId]]:
    """End the unanswered commands; returns each with its client."""
    found = [(waiter.client, waiter.req_id) for waiter in _waiters(state) if not waiter.done]
    for works in state.long_works.values():
        for work in works:
            work.steps.close()
            if work.command is not None:
                found.append((work.client, work.command.req_id))
    state.long_works.clear()
    return [(client, req_id) for client, req_id in found if not client.closed]


def _waiters(state: State) -> Iterator[Waiter | JobWait | ParkedTrial]:
    yield from {wait: None for waits in state.waits.values() for wait in waits}
    for queue in state.queues.values():
        yield from queue.waiters
    for pulls in state.early_pulls.values():
        yield from pulls
    yield from state.trials.parked.values()


class CarriedState:
    """The parts of a state that are not stored."""

    def __init__(self, old: State) -> None:
        self._clients = [client for client in old.clients.values() if not client.closed]
        self._counters = old.totals, old.rates, old.minute, old.started_at, old.figures
        self._ids, self._vitals, self._gone = old.ids, old.vitals, old.gone
        self._listeners, self._with_workers, self._away_until = (
            old.listeners,
            old.queues_with_workers,
            old.away_until,
        )
        self._queues = {
            queue.name: (queue.total_completed, queue.total_failed, queue.history, queue.names)
            for queue in old.queues.values()
        }

    def give(self, new: State) -> None:
        """Copy them into a state that has recovered and been started."""
        for client in self._clients:
            again = new.client(client.conn, client.version)
            again.slow, again.listens_to = client.slow, client.listens_to
            again.signals, again.own_timeouts = client.signals, client.own_timeouts
        new.totals, new.rates, new.minute, new.started_at, new.figures = self._counters
        new.ids, new.vitals, new.gone = self._ids, self._vitals, self._gone
        new.listeners, new.queues_with_workers, new.away_until = (
            self._listeners,
            self._with_workers,
            self._away_until,
        )
        for queue in new.queues.values():
            queue.listeners = new.listeners.get(queue.name, ())
            if queue.name in self._queues:
                (queue.total_completed, queue.total_failed, queue.history, queue.names) = self._queues[
                    queue.name
                ]
