"""ListQueues and Stats: numbers about this shard, which the router merges with the others'."""

from __future__ import annotations

from bunqueue.protocol.commands.server import (
    ListQueues,
    ListQueuesReply,
    QueueInfo,
    ServerStats,
    Stats,
    StatsReply,
)

from .registry import handles
from .state import Client, State


@handles(ListQueues)
def list_queues(state: State, client: Client, command: ListQueues) -> ListQueuesReply:
    if client.version >= 3:
        return ListQueuesReply(queues=list(state.queues))
    return ListQueuesReply(
        queues=[
            QueueInfo(queue.name, queue.waiting, len(queue.delayed), len(queue.active), queue.paused)
            for queue in state.queues.values()
        ]
    )


@handles(Stats)
def stats(state: State, client: Client, command: Stats) -> StatsReply:
    queues = state.queues.values()
    waiting = sum(queue.waiting for queue in queues)
    active = sum(len(queue.active) for queue in queues)
    totals = state.totals
    push_rate, pull_rate = state.rates.per_second(state.now, totals.pushed, totals.pulled)
    dead = sum(queue.failed for queue in queues)
    return StatsReply(
        stats=ServerStats(
            queued=waiting,
            processing=active,
            waiting=waiting,
            active=active,
            delayed=sum(len(queue.delayed) for queue in queues),
            dlq=dead,
            completed=sum(queue.completed for queue in queues),
            failed=dead,
            uptime=float(state.now - state.started_at),
            push_per_sec=push_rate,
            pull_per_sec=pull_rate,
        )
    )
