"""Finds the error code for refusals from servers that send none, such as the reference server.

This is the only module that parses error texts. This project's own servers send a code with every refusal.
"""

from __future__ import annotations

from bunqueue.protocol.codes import Code

_BEGINNINGS: tuple[tuple[Code, tuple[str, ...]], ...] = (  # the first match counts
    (Code.NOT_AUTHENTICATED, ("Not authenticated",)),
    (Code.INVALID_TOKEN, ("Invalid token",)),
    (Code.SHARD_UNAVAILABLE, ("Shard unavailable",)),
    (Code.OUTCOME_UNKNOWN, ("Outcome unknown",)),
    (Code.RATE_LIMITED, ("Rate limit exceeded",)),
    (Code.STORAGE_FULL, ("The disk is full", "disk full")),
    (Code.LOCK_LOST, ("Invalid or expired lock token", "Job not found or not in processing")),
    (Code.LOCK_REQUIRED, ("Lock token required",)),
    (Code.JOB_STATE, ("Job not found or", "Job is ", "Cannot move job from state")),
    (Code.JOB_NOT_FOUND, ("Job not found", "Child job not found", "Parent job not found")),
    (Code.JOB_NOT_FOUND, ("Dependency job not found",)),
    (Code.SCHEDULE_NOT_FOUND, ("Cron job not found",)),
    (Code.WEBHOOK_NOT_FOUND, ("Webhook not found",)),
    (Code.WORKER_NOT_FOUND, ("Worker not found",)),
)


def code_of(text: str) -> Code | None:
    """The code that fits the text of a refusal, or None if the text is unknown."""
    return next((code for code, beginnings in _BEGINNINGS if text.startswith(beginnings)), None)
