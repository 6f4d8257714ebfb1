"""What a client may send: nothing before it has authenticated, reads only with a read-only token, and no more
than the rate limit allows."""

from __future__ import annotations

import time
from typing import Any

from bunqueue.protocol.codec import InvalidCommand, request_id
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.lenient import DECODE_ERRORS

from ..core.ports import Buffer
from ..core.routing import Peek, peek, peek_in_full
from .admission import RateLimit, Tokens, may_read, token_is_known
from .own_commands import refusal

BEFORE_AUTH = frozenset({"Auth"})  # the commands that a connection may send before it has authenticated
ONLY_READS = "This token may only read: {} needs one of --auth-token"


class NotAllowed(CommandError, ValueError):  # like decoding errors, with which it is caught
    """A command that is refused whatever it contains."""


class Access:
    """The rights of one client."""

    __slots__ = ("_rate", "_reads_only", "_tokens", "known", "peek")

    def __init__(self, tokens: Tokens, rate_limit: int = 0) -> None:
        self._tokens = tokens
        self._rate = RateLimit(rate_limit) if rate_limit else None
        self._reads_only = False
        self.known = not tokens.full
        """Whether it has authenticated, or need not."""
        self.peek: Any = self._peek if self._is_limited else peek
        """Decodes as much of a command as its route needs. Raises one of DECODE_ERRORS, also for what the
        client may not send."""

    @property
    def _is_limited(self) -> bool:
        return not self.known or self._reads_only or self._rate is not None

    def authenticate(self, token: str) -> bool:
        """The client presents a token; whether that is one of them."""
        writes = token_is_known(token, self._tokens.full)
        reads = token_is_known(token, self._tokens.read_only)
        if writes or reads:
            self.known, self._reads_only = True, not writes
            self.peek = self._peek if self._is_limited else peek
        return writes or reads

    def _peek(self, payload: Buffer) -> Peek:
        if self._rate is not None and not self._rate.admit(time.monotonic()):
            raise NotAllowed("Rate limit exceeded", Code.RATE_LIMITED)
        try:
            peeked: Peek = peek(payload)
        except DECODE_ERRORS:
            if self.known:
                raise
            raise NotAllowed("Not authenticated", Code.NOT_AUTHENTICATED) from None
        if not self.known and peeked.spec.name not in BEFORE_AUTH:
            raise NotAllowed("Not authenticated", Code.NOT_AUTHENTICATED)
        self._check_reads(peeked)
        return peeked

    def _check_reads(self, peeked: Peek) -> None:
        """NotAllowed if a read-only client sends a command that it may not use."""
        if self._reads_only and not may_read(peeked.spec):
            raise NotAllowed(ONLY_READS.format(peeked.spec.name), Code.FORBIDDEN)

    def peek_again(self, payload: bytes, error: Exception, out: list[bytes]) -> Peek | None:
        """Decode in full what `peek` refused with ``error``; None if it is refused: then the reply is in
        ``out``."""
        try:
            if isinstance(error, NotAllowed):
                raise error
            peeked = peek_in_full(payload)
            self._check_reads(peeked)
            return peeked
        except NotAllowed as no:
            out.append(refusal(no, request_id(payload)))
        except InvalidCommand as problem:
            out.append(refusal(problem, problem.req_id))
        return None
