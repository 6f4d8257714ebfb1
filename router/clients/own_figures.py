"""The router's own figures, for the answers that it completes."""

from __future__ import annotations

import time

from bunqueue import process_stats as vitals
from bunqueue.protocol.commands.backups import BackupStatusView, BackupView
from bunqueue.server.commands import prometheus as prometheus  # loaded now: no command shall wait for that
from bunqueue.server.commands.additions import Additions
from bunqueue.server.commands.router_figures import RouterFigures
from bunqueue.version import __version__

from .hub import Hub
from .own_commands import now_ms


def complete_answers(hub: Hub) -> None:
    """Have the answers of shards completed with what the router knows."""
    additions = Additions(lambda: figures(hub), lambda: hub.workers.listing(now_ms()))
    hub.tickets.additions = additions.by_command
    hub.commands.backup_status = lambda: BackupStatusView(backup_view(hub), hub.hosts.standby())


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
        secondary=[(row.memory_bytes, row.cpu_s, row.connections) for row in others],
        wrong_tokens=hub.unauthenticated.throttle.total,
        exposed=tuple(hub.health.exposed),
        identities=hub.limits.directory.by_time_left(time.time()),
        certificate_ends=hub.health.certificate_ends,
        client_certificate_ends=hub.health.client_certificate_ends,
        shards=len(shards.links),
        shards_up=[link.shard for link in shards.served],
        shards_damaged=list(shards.damaged),
        deaths=hub.health.deaths.often(),
        cluster=hub.hosts.status(),
        backup=backup_view(hub),
        standby=hub.hosts.standby(),
    )


def backup_view(hub: Hub) -> BackupView | None:
    """How far what changes is backed up; None if it is not."""
    shipping = hub.health.shipping
    if shipping is None:
        return None
    waits = shipping.pending or shipping.error
    # The clock may have been ahead when all was stored.
    waited = max(now_ms() - shipping.until, 1000 * (time.monotonic() - hub.health.shipped_at))
    lag = round(waited) if waits else 0
    return BackupView(shipping.until, shipping.base, lag, shipping.pending, shipping.error or None)
