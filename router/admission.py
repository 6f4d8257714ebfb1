"""Who may send, and how much: tokens, commands a minute, long polls in flight.  Pure."""

from __future__ import annotations

from bunqueue.model.admission import RateLimit, token_is_known

from .routing import Peek

__all__ = ["MAX_SLOW", "RateLimit", "may_wait", "token_is_known"]

MAX_SLOW = 50  # long polls and gathered commands in flight on one connection; the seeds' limit for all


def may_wait(look: Peek) -> bool:
    """Whether the shard may answer a command of the slow kinds late: it then counts as slow."""
    spec = look.spec
    return spec.heavy or spec.is_slow(look.timeout)  # what is heavy only has no timeout
