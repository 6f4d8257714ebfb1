"""Whether a client may send, and how much: tokens, commands a minute, long polls in flight.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bunqueue.model.tokens import RateLimit, token_is_known
from bunqueue.protocol.commands import Spec

from .routing import Peek

__all__ = ["MAX_SLOW", "RateLimit", "Tokens", "may_read", "may_wait", "token_is_known"]

WITH_SECRETS = frozenset({"ListWebhooks"})  # in their addresses, which a shard shows to all alike
MAX_SLOW = 50  # long polls and gathered commands in flight on one connection; a limit of the specification


class Tokens(NamedTuple):
    """What clients may show."""

    full: tuple[bytes, ...]  # none: everybody may do everything
    read_only: tuple[bytes, ...]

    @classmethod
    def of(cls, full: Iterable[str], read_only: Iterable[str]) -> Tokens:
        """As the settings say."""
        return cls(tuple(token.encode() for token in full), tuple(token.encode() for token in read_only))


def may_read(spec: Spec) -> bool:
    """Whether it is for clients that may only read.  The gateway shows them webhooks, with masks."""
    return not spec.writes and spec.name not in WITH_SECRETS


def may_wait(look: Peek) -> bool:
    """Whether the shard may answer a command of the slow kinds late: it then counts as slow."""
    spec = look.spec
    return spec.heavy or spec.is_slow(look.timeout)  # what is heavy only has no timeout
