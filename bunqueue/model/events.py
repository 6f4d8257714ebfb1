"""What can happen to a job or a queue: the kinds of entries in a shard's event log.

The numbers are stored and never change; a new kind gets the next one.
"""

from __future__ import annotations

# Published to subscribers, under the names that version 3 clients know
PUSHED = 0
PULLED = 1  # WAITING to ACTIVE
COMPLETED = 2
FAILED = 3  # an attempt; ``terminal``: no other follows, the job is a dead letter
RETRIED = 4  # after FAILED or STALLED: it waits for its next attempt
REMOVED = 5
DELAYED = 6
WAITING = 7
WAITING_CHILDREN = 8
PROGRESS = 9
DUPLICATED = 10  # a push met this job, which holds its unique key
STALLED = 11  # its worker sent no heartbeats: the attempt is over
PAUSED = 12  # a queue, no job
RESUMED = 13  # a queue, no job

# In the log alone, so that it covers a job's whole life
READY = 14  # DELAYED or BLOCKED to WAITING: time came, a promotion, the last dependency
RELEASED = 15  # ACTIVE to WAITING, nothing counted: its connection ended
REVIVED = 16  # FAILED or COMPLETED to WAITING, asked to run again
DISCARDED = 17  # to FAILED without an attempt
# Removed without another event: ttl (``reason`` is "expired"), removeOnComplete, removeOnFail, Drain, Clean.
# Dead letters that nobody removed, with their ``error``, are published as well: ``reason`` is "max_entries",
# "max_age" or "keep_failed"
DROPPED = 18
OBLITERATED = 19  # a queue with all its jobs, no job; ``queue`` is its name
# Finished jobs of a queue, no job: ``finished`` is their state, ``seqs`` what their ids end with; ``ids`` are
# those that do not end with their number, as clients chose them, say (absent if all do)
PURGED = 20
# Of workflows; published, too
STEP = 21  # a step has ended: ``step`` is its name, ``status`` how
SIGNALLED = 22  # a signal came: ``step`` is its name; ``status`` is "taken" or "kept"
SUSPENDED = 23  # ACTIVE to a state in which it waits: its run has ended, nothing counted
UNDOING = 24  # it is to fail or to be cancelled: ``reason``; what it has done is undone first
CONTINUED = 25  # it begins again, as something new
# A circuit breaker of a queue, no job: ``status`` is "open" or "closed", ``name`` that of the jobs that it is
# for, if it is not for all, ``reason`` why; published, too
BREAKER = 26

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
)
UNPUBLISHED = frozenset(range(READY, PURGED + 1)) - {DROPPED}  # but for the rest of DROPPED: in the log alone
LOST = "lost"  # sent where events are missing; no kind of the log
PUBLISHED = (*[name for kind, name in enumerate(NAMES) if kind not in UNPUBLISHED], LOST)
"""What listeners may receive."""
