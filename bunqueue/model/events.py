"""What can happen to a job or a queue: the kinds of entries in a shard's event log.

The numbers are stored and never change; a new kind gets the next one.
"""

from __future__ import annotations

# Published to subscribers, under the names that version 3 clients know
PUSHED = 0
PULLED = 1  # WAITING to ACTIVE
COMPLETED = 2
FAILED = 3  # an attempt; ``terminal``: it was the last one, and the job is a dead letter
RETRIED = 4  # after FAILED or STALLED: it waits for its next attempt
REMOVED = 5
DELAYED = 6
WAITING = 7
WAITING_CHILDREN = 8
PROGRESS = 9
DUPLICATED = 10  # a push had the same unique key as this job
STALLED = 11  # its worker sent no heartbeats: the attempt is over
PAUSED = 12  # about a queue, not a job
RESUMED = 13  # about a queue, not a job

# Only in the log, so that it covers a job's whole life
READY = 14  # DELAYED or BLOCKED to WAITING: its time, a promotion, or its last dependency
RELEASED = 15  # ACTIVE to WAITING, not counted as an attempt: its connection ended
REVIVED = 16  # FAILED or COMPLETED to WAITING, asked to run again
DISCARDED = 17  # to FAILED without an attempt
# Removed without another event: ttl (``reason`` is "expired"), removeOnComplete, removeOnFail, Drain, Clean.
# For dead letters that were dropped automatically, it has their ``error`` and is also published; ``reason``
# is then "max_entries", "max_age" or "keep_failed"
DROPPED = 18
OBLITERATED = 19  # about a queue with all its jobs, not a job; ``queue`` is its name
# About finished jobs of a queue, not one job: ``finished`` is their state, ``seqs`` the numbers at the end of
# their ids; ``ids`` has the ids that do not end with a number, e.g. client-chosen ones (absent if all do)
PURGED = 20
# Of workflows; also published
STEP = 21  # a step has ended: ``step`` is its name, ``status`` its outcome
SIGNALLED = 22  # a signal arrived: ``step`` is its name; ``status`` is "taken" or "kept"
SUSPENDED = 23  # ACTIVE to a waiting state: its run has ended, without counting as an attempt
UNDOING = 24  # it will fail or be cancelled (``reason``), but its steps are undone first
CONTINUED = 25  # it begins again with new data
# About a circuit breaker of a queue, not a job: ``status`` is "open" or "closed", ``name`` the job name that
# it applies to, unless it applies to all, ``reason`` why; also published
BREAKER = 26
# About a queue, not a job: a kind of error is back that had been over, and that somebody watches; ``group``
# is its id, ``error`` the text, ``reason`` its shape; also published
ERROR_RETURNED = 27

NAMES = (
    "pushed",
    "pulled",
    "completed",
    "failed",
    "retried",
    "removed",
    "delayed",
    "waiting",
    "waiting-children",
    "progress",
    "duplicated",
    "stalled",
    "paused",
    "resumed",
    "ready",
    "released",
    "revived",
    "discarded",
    "dropped",
    "obliterated",
    "purged",
    "step",
    "signalled",
    "suspended",
    "undoing",
    "continued",
    "breaker",
    "error-returned",
)
UNPUBLISHED = frozenset(range(READY, PURGED + 1)) - {DROPPED}  # only in the log, like most of DROPPED
LOST = "lost"  # sent where events are missing; not a kind of log entry
PUBLISHED = (*[name for kind, name in enumerate(NAMES) if kind not in UNPUBLISHED], LOST)
"""The names of the events that listeners may receive."""
