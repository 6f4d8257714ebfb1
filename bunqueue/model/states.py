"""The states of jobs by the names under which people look for them.

`waiting` are all jobs that only wait for their turn; `prioritized` and `paused` are those of them that have a
priority, and those of paused queues.
"""

from __future__ import annotations

STATES = (
    "waiting",
    "prioritized",
    "paused",
    "delayed",
    "active",
    "waiting-children",
    "waiting-signal",
    "completed",
    "failed",
    "cancelled",
    "stuck",
)
STORED = tuple(state for state in STATES if state not in ("prioritized", "paused"))
"""Those that a job itself is in."""
