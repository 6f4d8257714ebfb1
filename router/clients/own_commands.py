"""The commands that the router answers itself."""

from __future__ import annotations

import time
from socket import gethostname
from typing import Protocol

from msgspec import UNSET

from bunqueue.model.scope import Scope
from bunqueue.protocol import namespaces
from bunqueue.protocol.codec import InvalidCommand, encode_frame, request_id
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS, Spec
from bunqueue.protocol.commands.base import CommandError, RequestId, refused
from bunqueue.protocol.commands.workers import RegisterWorker
from bunqueue.protocol.scoping import refusal as outside
from bunqueue.server.commands.server_commands import ServerCommands

from ..core.ports import Subscribed
from ..core.routing import Peek, decode
from ..processes.kernel_processes import born


class Session(Protocol):
    """What these commands see of a connection, and may change."""

    kind: int
    number: int
    subscription: Subscribed | None

    @property
    def limited(self) -> bool:
        """Whether it counts towards the limit of clients; the gateway does not."""

    @property
    def commands(self) -> ServerCommands:
        """Answers them."""

    @property
    def scope(self) -> Scope | None:
        """To which queues its commands are limited, and what it may not read."""

    def limit_to(self, scope: Scope | None) -> None:
        """What follows is limited to this."""

    def authenticate(self, token: str) -> bool:
        """It has presented a token; whether that is known."""


class _Client:
    """A connection in the form that `ServerCommands` takes."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def number(self) -> int:
        return self._session.number

    def agree(self, version: int) -> None:
        self._session.kind = version

    @property
    def scope(self) -> Scope | None:
        return self._session.scope

    def limit_to(self, scope: Scope | None) -> None:
        self._session.limit_to(scope)

    def authenticate(self, token: str) -> bool:
        return self._session.authenticate(token)

    def unsubscribe(self) -> None:
        session = self._session
        if session.subscription is not None:
            session.subscription.end()
            session.subscription = None

    def born(self, command: RegisterWorker) -> str | None:
        return born(command.pid) if command.hostname == gethostname() else None


def refusal(error: CommandError, req_id: RequestId = UNSET) -> bytes:
    """An error reply, as a frame."""
    return encode_frame(refused(error, req_id))


def first_shard(session: Session, peeked: Peek, payload: bytes | memoryview, out: list[bytes]) -> int | None:
    """The shard of a command that goes to the first one; None if it was refused, as clients may not use
    it."""
    if peeked.spec.internal and session.limited:
        out.append(refusal(_unknown(peeked.spec), request_id(payload)))
        return None
    return 0


def _unknown(spec: Spec) -> CommandError:
    return CommandError(f"Unknown command: {spec.name}", Code.UNKNOWN_COMMAND, field="cmd")


def answer(session: Session, payload: bytes) -> bytes:
    """Carry out a command of Route.ROUTER; returns the reply, as a frame."""
    try:
        command = decode(payload)
    except InvalidCommand as error:
        return refusal(error, error.req_id)
    spec = COMMANDS[str(command.__struct_config__.tag)]
    if spec.internal and session.limited:
        return refusal(_unknown(spec), command.req_id)
    scope = session.scope
    prefix = "" if scope is None else scope.prefix
    try:
        namespaces.enter(prefix, command)
        if scope is not None and (problem := outside(scope, spec, command)) is not None:
            raise problem
        reply = session.commands.answer(_Client(session), command)
    except CommandError as error:
        reply = refused(error)
    reply.req_id = command.req_id
    return encode_frame(namespaces.shown(prefix, reply))


def now_ms() -> int:
    """The wall clock, epoch ms."""
    return time.time_ns() // 1_000_000
