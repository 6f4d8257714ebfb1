"""Whether a client may send, and how much: tokens, commands per minute, long polls in flight. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bunqueue.model.tokens import RateLimit, token_is_known
from bunqueue.protocol.commands import Spec

from ..core.routing import Peek

__all__ = ["MAX_SLOW", "RateLimit", "Tokens", "may_read", "may_wait", "token_is_known"]

WITH_SECRETS = frozenset({"ListWebhooks"})  # in their addresses, which a shard shows to every client
MAX_SLOW = 50  # long polls and gathered commands in flight on one connection; a limit of the specification


class Tokens(NamedTuple):
    """The tokens that clients may present."""

    full: tuple[bytes, ...]  # empty: every client may do everything
    read_only: tuple[bytes, ...]

    @classmethod
    def of(cls, full: Iterable[str], read_only: Iterable[str]) -> Tokens:
        """From the settings."""
        return cls(tuple(token.encode() for token in full), tuple(token.encode() for token in read_only))


NO_TOKENS = Tokens((), ())


def may_read(spec: Spec) -> bool:
    """Whether a read-only client may send this command. The gateway shows webhooks to them with secrets
    masked."""
    return not spec.writes and spec.name not in WITH_SECRETS


def may_wait(peeked: Peek) -> bool:
    """Whether the shard may answer a command of the slow kinds late; the command then counts as slow."""
    spec = peeked.spec
    return spec.heavy or spec.is_slow(peeked.timeout)  # some heavy commands have no timeout
