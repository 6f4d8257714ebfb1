"""Long polls in flight on one connection. Pure."""

from __future__ import annotations

from ..core.routing import Peek

MAX_SLOW = 50  # long polls and gathered commands in flight on one connection; a limit of the specification


def may_wait(peeked: Peek) -> bool:
    """Whether the shard may answer a command of the slow kinds late; the command then counts as slow."""
    spec = peeked.spec
    return spec.heavy or spec.is_slow(peeked.timeout)  # some heavy commands have no timeout
