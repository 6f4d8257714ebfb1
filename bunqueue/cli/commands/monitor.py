"""``bunqueue stats``, ``shards``, ``metrics``, ``health`` and ``ping``: the state of the server."""

from __future__ import annotations

from typing import Any

import typer

from ..framework import exits
from ..framework.session import Session
from ..framework.shared import verb
from ..output.output import Column, Kind, plain

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

STATS = (
    Column("waiting", Kind.NUMBER),
    Column("active", Kind.NUMBER),
    Column("delayed", Kind.NUMBER),
    Column("completed", Kind.NUMBER),
    Column("dlq", Kind.NUMBER, "dead letters"),
    Column("pushPerSec", Kind.NUMBER, "pushed a second"),
    Column("pullPerSec", Kind.NUMBER, "pulled a second"),
    Column("uptime", Kind.SPAN),
)
TOTALS = (
    Column("totalPushed", Kind.NUMBER),
    Column("totalPulled", Kind.NUMBER),
    Column("totalCompleted", Kind.NUMBER),
    Column("totalFailed", Kind.NUMBER),
    Column("avgLatencyMs", Kind.SPAN, "waited on average"),
    Column("avgProcessingMs", Kind.SPAN, "worked on average"),
    Column("memoryUsageMb", Kind.NUMBER, "memory, MB"),
    Column("sqliteSizeMb", Kind.NUMBER, "on disk, MB"),
    Column("activeConnections", Kind.NUMBER, "connections"),
)
SHARDS = (
    Column("shard", Kind.NUMBER),
    Column("queues", Kind.NUMBER),
    Column("jobs", Kind.NUMBER, "unfinished"),
    Column("memoryMb", Kind.NUMBER, "memory, MB"),
    Column("sqliteMb", Kind.NUMBER, "on disk, MB"),
    Column("uptime", Kind.SPAN, "up"),
    Column("error", Kind.PROSE),
)
OF_STORE = (
    Column("position", Kind.NUMBER),
    Column("phase", Kind.TEXT),
    Column("roundTripMs", Kind.SPAN, "commit"),
    Column("held", Kind.SIZE),
    Column("awaySince", Kind.TIME, "store unavailable since"),
)
"""With a store, these columns come before the error."""
SILENT = "it does not answer"
HEALTH = (
    Column("status", Kind.STATE),
    Column("address"),
    Column("version"),
    Column("ping", Kind.SPAN),
    Column("uptime", Kind.SPAN),
    Column("workers", Kind.NUMBER),
    Column("error"),
)


@verb(app, "bunqueue stats", "bunqueue stats --json | jq .waiting")
def stats(session: Session) -> None:
    """Print how many jobs are in each state, and how fast they are pushed and pulled."""
    session.out.record(session.admin.stats(), STATS)


@verb(app, "bunqueue shards")
def shards(session: Session) -> None:
    """List the shards: their queues, unfinished jobs, memory, files and errors; with a store, where each is
    in its log.

    Exit status: 1 when one does not answer or cannot store everything.
    """
    found = {each.shard: each for each in session.admin.list_shards()}
    number = max((each.of for each in found.values()), default=0)
    rows: list[dict[str, Any]] = [
        plain(found[each]) if each in found else {"shard": each, "error": SILENT} for each in range(number)
    ]
    columns = list(SHARDS)
    if any(row.get("store") for row in rows):
        columns[-1:-1] = OF_STORE
    shown = rows if session.out.as_json else [row | (row.get("store") or {}) for row in rows]
    session.out.rows(shown, columns, none="no shard answers")
    if any(row["error"] for row in rows) or not rows:
        raise typer.Exit(exits.FAILED)


@verb(app, "bunqueue metrics", "bunqueue metrics --json")
def metrics(session: Session) -> None:
    """Print all metrics in the Prometheus format; with --json, the totals since the server's start."""
    if session.out.as_json:
        session.out.record(session.admin.metrics(), TOTALS)
    else:
        session.out.text(session.admin.prometheus())


@verb(app, "bunqueue ping")
def ping(session: Session) -> None:
    """Print how many milliseconds the server takes to answer."""
    admin = session.admin
    admin.ping()  # the first one opens the connection
    ms = round(admin.ping(), 2)
    session.out.done(f"{session.endpoint.address} answers in {ms:g} ms", {"ping": ms}, "ping")


@verb(app, "bunqueue health", "until bunqueue health > /dev/null; do sleep 1; done")
def health(session: Session) -> None:
    """Check that the server is up, accepts the token, and can store everything.

    Exit status: 0 when all is well; 1 when it cannot store everything; 4 when it cannot be reached.
    """
    admin = session.admin
    info = admin.info()
    storage = admin.storage_status()
    row = {
        "status": "ok" if storage.error is None and not storage.disk_full else "problem",
        "address": session.endpoint.address,
        "version": info.version,
        "ping": round(admin.ping(), 2),
        "uptime": admin.stats().uptime,
        "workers": admin.worker_stats().active,
        "error": storage.error or ("the disk is full" if storage.disk_full else None),
    }
    session.out.record(plain(row), HEALTH)
    if row["status"] != "ok":
        raise typer.Exit(exits.FAILED)
