"""The command table: every command is declared once, in one file a family."""

from __future__ import annotations

from bunqueue.protocol.commands import (
    core,
    cron,
    dedup,
    dlq,
    events,
    flows,
    limits,
    monitoring,
    query,
    server,
    stall,
    webhooks,
    workers,
)
from bunqueue.protocol.commands.base import (
    COMMANDS,
    Command,
    CommandError,
    ErrorReply,
    Merge,
    Ok,
    Reply,
    Route,
    Spec,
    is_slow,
)

__all__ = [
    "COMMANDS",
    "Command",
    "CommandError",
    "ErrorReply",
    "Merge",
    "Ok",
    "Reply",
    "Route",
    "Spec",
    "core",
    "cron",
    "dedup",
    "dlq",
    "events",
    "flows",
    "is_slow",
    "limits",
    "monitoring",
    "query",
    "server",
    "stall",
    "webhooks",
    "workers",
]
