"""The router's own figures, for the answers that it completes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bunqueue import __version__, vitals
from bunqueue.server_commands import prometheus as prometheus  # loaded now: no command shall wait for that
from bunqueue.server_commands.router_figures import RouterFigures

from .local import now_ms

if TYPE_CHECKING:
    from .hub import Hub


def figures(hub: Hub) -> RouterFigures:
    """The present figures."""
    others = [] if hub.table is None else hub.table.rows[1:]
    return RouterFigures(
        version=__version__,
        uptime_s=time.monotonic() - hub.started,
        connections=len(hub.clients) + sum(row.connections for row in others),
        workers=hub.workers.stats(now_ms()),
        memory_bytes=vitals.memory(),
        cpu_s=vitals.cpu_s(),
        lag_s=max([hub.lag.longest(), *(row.lag_s for row in others)]),
        further=[(row.memory_bytes, row.cpu_s, row.connections) for row in others],
        wrong_tokens=hub.strangers.guesses.total,
        exposed=tuple(hub.exposed),
        shards=hub.shards,
        shards_up=[shard for shard, link in enumerate(hub.links) if link is not None],
        shards_damaged=list(hub.damaged),
        deaths=hub.deaths.often(),
        cluster=None if hub.cluster is None else hub.cluster.commands.status().data,
    )
