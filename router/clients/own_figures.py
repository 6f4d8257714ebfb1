"""The router's own figures, for the answers that it completes."""

from __future__ import annotations

import time

from bunqueue import __version__
from bunqueue import process_stats as vitals
from bunqueue.server.commands import prometheus as prometheus  # loaded now: no command shall wait for that
from bunqueue.server.commands.additions import Additions
from bunqueue.server.commands.router_figures import RouterFigures

from .hub import Hub
from .own_commands import now_ms


def complete_answers(hub: Hub) -> None:
    """Have the answers of shards completed with what the router knows."""
    additions = Additions(lambda: figures(hub), lambda: hub.workers.listing(now_ms()))
    hub.tickets.additions = additions.by_command


def figures(hub: Hub) -> RouterFigures:
    """As they are now."""
    others, shards = hub.siblings.others, hub.shards
    return RouterFigures(
        version=__version__,
        uptime_s=time.monotonic() - hub.health.started,
        connections=len(hub.clients) + sum(row.connections for row in others),
        workers=hub.workers.stats(now_ms()),
        memory_bytes=vitals.memory(),
        cpu_s=vitals.cpu_s(),
        lag_s=max([hub.health.lag.longest(), *(row.lag_s for row in others)]),
        further=[(row.memory_bytes, row.cpu_s, row.connections) for row in others],
        wrong_tokens=hub.unauthenticated.guesses.total,
        exposed=tuple(hub.health.exposed),
        shards=len(shards.links),
        shards_up=[link.shard for link in shards.served],
        shards_damaged=list(shards.damaged),
        deaths=hub.health.deaths.often(),
        cluster=hub.hosts.status(),
    )
