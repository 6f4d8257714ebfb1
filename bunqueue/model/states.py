"""The names of job states that people search by.

`waiting` includes all jobs that only wait for their turn; `prioritized` and `paused` are the waiting jobs
with a priority, and the waiting jobs of paused queues.
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
"""The states that are stored in a job itself."""
