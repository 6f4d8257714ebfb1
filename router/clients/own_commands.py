"""Access checks for incoming commands, and the commands that the router answers itself."""

from __future__ import annotations

import time
from socket import gethostname
from typing import Protocol

from msgspec import UNSET

from bunqueue.protocol.codec import InvalidCommand, encode_frame, request_id
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.base import CommandError, RequestId, refused
from bunqueue.protocol.commands.workers import RegisterWorker
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.server.commands.commands import ServerCommands

from ..core.ports import Subscribed
from ..core.routing import Peek, decode, look_again, peek
from ..processes.kernel_processes import born
from .admission import RateLimit, Tokens, may_read, token_is_known

BEFORE_AUTH = frozenset({"Auth"})  # the commands that a connection may send before it has authenticated
ONLY_READS = "This token may only read: {} needs one of --auth-token"


class Session(Protocol):
    """What these commands see of a connection, and may change."""

    kind: int
    tokens: Tokens
    number: int
    subscription: Subscribed | None
    known: bool
    reader: bool

    @property
    def limited(self) -> bool:
        """Whether it counts among the clients of which there is a largest number; the gateway does not."""

    @property
    def commands(self) -> ServerCommands:
        """Answers them."""

    def admitted(self, *, reader: bool = False) -> None:
        """It has authenticated; ``reader``: with a read-only token."""

    def guessed(self) -> None:
        """It has presented a wrong token."""


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

    def authenticate(self, token: str) -> bool:
        session = self._session
        writes = token_is_known(token, session.tokens.full)
        reads = token_is_known(token, session.tokens.read_only)
        if writes or reads:
            session.admitted(reader=not writes)
        else:
            session.guessed()
        return writes or reads

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


class NotLetIn(CommandError, ValueError):  # like decoding errors, with which it is caught
    """A command that is refused whatever it contains."""


def guarded_peek(session: Session, payload: bytes | memoryview, rate: RateLimit | None) -> Peek:
    """`peek` for a connection that has a rate limit, may only read, or has not authenticated."""
    if rate is not None and not rate.admit(time.monotonic()):
        raise NotLetIn("Rate limit exceeded", Code.RATE_LIMITED)
    try:
        look: Peek = peek(payload)
    except DECODE_ERRORS:
        if session.known:
            raise
        raise NotLetIn("Not authenticated", Code.NOT_AUTHENTICATED) from None
    if not session.known and look.spec.name not in BEFORE_AUTH:
        raise NotLetIn("Not authenticated", Code.NOT_AUTHENTICATED)
    _check_reader(session, look)
    return look


def _check_reader(session: Session, look: Peek) -> None:
    """NotLetIn if a read-only client sends a command that it may not use."""
    if session.reader and not may_read(look.spec):
        raise NotLetIn(ONLY_READS.format(look.spec.name), Code.FORBIDDEN)


def second_look(session: Session, payload: bytes, error: Exception, out: list[bytes]) -> Peek | None:
    """Handle a payload that the peek refused. Returns None if it was answered."""
    try:
        if isinstance(error, NotLetIn):
            raise error
        look = look_again(payload)
        _check_reader(session, look)
        return look
    except NotLetIn as no:
        out.append(refusal(no, request_id(payload)))
        return None
    except InvalidCommand as problem:
        out.append(refusal(problem, problem.req_id))
        return None


def first_shard(session: Session, look: Peek, payload: bytes | memoryview, out: list[bytes]) -> int | None:
    """The shard of a command that goes to the first one; None if it was refused, as clients may not use
    it."""
    if look.spec.internal and session.limited:
        unknown = CommandError(f"Unknown command: {look.spec.name}", Code.UNKNOWN_COMMAND, field="cmd")
        out.append(refusal(unknown, request_id(payload)))
        return None
    return 0


def answer(session: Session, payload: bytes) -> bytes:
    """Carry out a command of Route.ROUTER; returns the reply, as a frame."""
    try:
        command = decode(payload)
    except InvalidCommand as error:
        return refusal(error, error.req_id)
    reply = session.commands.answer(_Client(session), command)
    reply.req_id = command.req_id
    return encode_frame(reply)


def now_ms() -> int:
    """The wall clock, epoch ms."""
    return time.time_ns() // 1_000_000
