"""What a client may send: nothing before it has authenticated, then what its identity may, and no more than
the rate limit allows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from bunqueue.model.quota import Usage
from bunqueue.model.rate_limit import RateLimit
from bunqueue.model.rights import Verb, may
from bunqueue.model.rights import refusal as right_is_missing
from bunqueue.model.scope import Scope, scope_of
from bunqueue.protocol.codec import InvalidCommand, request_id
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Spec
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.protocol.quotas import refusal as beyond
from bunqueue.protocol.scoping import of_queue, of_server
from bunqueue.server.identities.directory import FULL, Directory, Grant

from ..core.ports import Buffer
from ..core.routing import QUEUE, Peek, decode, enter, peek, peek_in_full
from .own_commands import refusal
from .quotas import Quotas

BEFORE_AUTH = frozenset({"Auth"})  # the commands that a connection may send before it has authenticated


class NotAllowed(CommandError, ValueError):  # like decoding errors, with which it is caught
    """A command that is refused whatever it contains."""


def _not_allowed(error: CommandError) -> NotAllowed:
    return NotAllowed(
        str(error),
        error.code,
        field=error.field,
        value=error.value,
        bound=error.bound,
        retry_after=error.retry_after,
    )


class Access:
    """The rights of one client."""

    __slots__ = ("_allowed", "_joined", "_quotas", "_rate", "_usage", "grant", "peek", "refused", "scope")

    def __init__(self, directory: Directory, rate_limit: int, quotas: Quotas) -> None:
        self._rate = RateLimit(rate_limit) if rate_limit else None
        self._quotas = quotas
        self._usage: Usage | None = None  # of its namespace, if it lives in one
        self._joined: Usage | None = None  # the one in which it is counted as a connection
        self.grant: Grant | None = FULL if directory.is_open else None
        """Who it is; None before it has authenticated."""
        self._allowed: set[str] = set()  # commands whose verbs it has, as verbs are slow to combine
        self.scope: Scope | None = None
        """Who it is, to which queues its commands are limited, and what it may not read; None: nothing of
        this."""
        self.refused = ""
        """The command that its identity may not use, and that was refused last; the trail empties it."""
        self.peek: Any = self._chosen
        """Decodes as much of a command as its route needs. Raises one of DECODE_ERRORS, also for what the
        client may not send."""

    @property
    def known(self) -> bool:
        """Whether it has authenticated, or need not."""
        return self.grant is not None

    @property
    def _chosen(self) -> Any:
        """Without any limit a command costs nothing here."""
        limited = self.grant is None or self.grant.identity.is_restricted
        limited = limited or (self.scope is not None and self.scope.limits) or self._rate is not None
        return self._peek if limited else peek

    def present_token(self, token: str, directory: Directory) -> bool:
        """The client presents a token; whether that is an identity's. CommandError if its namespace has as
        many connections as it may."""
        return self._become(directory.of_token(token, time.time()))

    def present_certificate(self, names: Iterable[str], directory: Directory) -> bool:
        """The client has a certificate with these names; whether that is an identity's. CommandError as
        above."""
        return self._become(directory.of_certificate(names, time.time()))

    def _become(self, grant: Grant | None) -> bool:
        if grant is not None:
            self._join(grant.identity.namespace)
            self.grant = grant
            self._allowed = set()
            self.limit_to(scope_of(grant.identity))
        return grant is not None

    def _join(self, namespace: str) -> None:
        usage = self._quotas.of(namespace) if namespace else None
        if usage is self._joined:
            return
        if usage is not None and (excess := usage.join()) is not None:
            raise beyond(namespace, excess)
        self.leave()
        self._joined = usage

    def leave(self) -> None:
        """The connection has ended; it may be called again."""
        if self._joined is not None:
            self._joined.leave()
            self._joined = None

    def limit_to(self, scope: Scope | None) -> None:
        """What follows is limited to this."""
        self.scope = scope
        namespace = "" if scope is None else scope.identity.namespace
        self._usage = self._quotas.of(namespace) if namespace else None
        self.peek = self._chosen

    def _peek(self, payload: Buffer) -> Peek:
        if self._rate is not None and not self._rate.admit(time.monotonic()):
            raise NotAllowed("Rate limit exceeded", Code.RATE_LIMITED)
        if self._usage is not None:
            self._take(self._usage, len(payload))
        try:
            peeked: Peek = peek(payload)
        except DECODE_ERRORS:
            if self.known:
                raise
            raise NotAllowed("Not authenticated", Code.NOT_AUTHENTICATED) from None
        if not self.known and peeked.spec.name not in BEFORE_AUTH:
            raise NotAllowed("Not authenticated", Code.NOT_AUTHENTICATED)
        self._authorise(peeked, payload)
        return peeked

    def _take(self, usage: Usage, size: int) -> None:
        """NotAllowed if the client's namespace may not send another command of so many bytes now."""
        excess = usage.take(size, time.monotonic())
        if excess is not None:
            assert self.scope is not None
            raise _not_allowed(beyond(self.scope.identity.namespace, excess))

    def _authorise(self, peeked: Peek, payload: Buffer) -> None:
        """NotAllowed if the client's identity may not use the command, or not on its queue."""
        if self.grant is None:
            return
        spec, scope = peeked.spec, self.scope
        if spec.name not in self._allowed:
            if self.grant.identity.is_restricted:
                self._check_verbs(spec, payload)
            if not spec.by_action:
                self._allowed.add(spec.name)
        if scope is None or scope.is_everywhere:
            return
        try:
            if scope.prefix:
                enter(scope.prefix, peeked)
            if peeked.way != QUEUE:
                error = of_server(scope, spec)
            else:
                error = of_queue(scope, spec, peeked.key)
        except CommandError as problem:
            error = problem
        if error is not None:
            self.refused = spec.name if error.code == Code.FORBIDDEN else ""
            raise _not_allowed(error)

    def _check_verbs(self, spec: Spec, payload: Buffer) -> None:
        self._need(spec.name, spec.verbs)
        if not spec.by_action:
            return
        try:
            action = decode(bytes(payload)).action  # type: ignore[attr-defined]
        except InvalidCommand:
            return  # the shard refuses it, as it reads it in the same way
        self._need(spec.name, spec.verbs_of(action))

    def _need(self, command: str, verbs: Verb) -> None:
        assert self.grant is not None
        if not may(self.grant.identity, verbs):
            self.refused = command
            raise NotAllowed(right_is_missing(self.grant.identity, command, verbs), Code.FORBIDDEN)

    def peek_again(self, payload: bytes, error: Exception, out: list[bytes]) -> Peek | None:
        """Decode in full what `peek` refused with ``error``; None if it is refused: then the reply is in
        ``out``."""
        try:
            if isinstance(error, NotAllowed):
                raise error
            peeked = peek_in_full(payload)
            self._authorise(peeked, payload)
            return peeked
        except NotAllowed as no:
            out.append(refusal(no, request_id(payload)))
        except InvalidCommand as problem:
            out.append(refusal(problem, problem.req_id))
        return None
