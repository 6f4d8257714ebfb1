"""The commands that the router answers itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from importlib import metadata
from socket import gethostname
from typing import Any, Protocol

from msgspec import UNSET, UnsetType

from bunqueue.protocol.codec import InvalidCommand, encode_frame, request_id
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import Command, CommandError, ErrorReply, Ok, Reply, refused
from bunqueue.protocol.commands.base import RequestId
from bunqueue.protocol.commands.server import Auth, Hello, PingReply, Pong, agreement
from bunqueue.protocol.commands.workers import (
    Heartbeat,
    ListWorkers,
    ListWorkersReply,
    RegisterWorker,
    UnregisterWorker,
)
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.server_commands.workers import Workers

from .admission import RateLimit, Tokens, may_read, token_is_known
from .processes import born
from .routing import Peek, decode, look_again, peek
from .subscription import Subscription

BEFORE_AUTH = frozenset({"Auth"})  # all that a connection may say before it has shown a token
ONLY_READS = "This token may only read: {} needs one of --auth-token"


class Session(Protocol):
    """What these commands see of a connection, and may change."""

    kind: int
    tokens: Tokens
    number: int
    subscription: Subscription | None
    limited: bool
    known: bool
    reader: bool

    @property
    def workers(self) -> Workers:
        """The registered workers of all connections."""

    def admitted(self, *, reader: bool = False) -> None:
        """It has shown a token; ``reader``: one that may only read."""

    def guessed(self) -> None:
        """It has shown a wrong one."""


def refusal(text: str, req_id: RequestId, code: Code | UnsetType = UNSET) -> bytes:
    """An error reply, as a frame."""
    return encode_frame(ErrorReply(error=text, req_id=req_id, code=code))


class Refused(ValueError):
    """A command that is not let in, whatever it says."""

    def __init__(self, text: str, code: Code | UnsetType = UNSET) -> None:
        super().__init__(text)
        self.code = code


def guarded_peek(session: Session, payload: bytes | memoryview, rate: RateLimit | None) -> Peek:
    """`peek` for a connection that has a rate limit, may only read, or is not known to have a token."""
    if rate is not None and not rate.admit(time.monotonic()):
        raise Refused("Rate limit exceeded")
    try:
        look: Peek = peek(payload)
    except DECODE_ERRORS:
        if session.known:
            raise
        raise Refused("Not authenticated") from None
    if not session.known and look.spec.name not in BEFORE_AUTH:
        raise Refused("Not authenticated")
    _check_reader(session, look)
    return look


def _check_reader(session: Session, look: Peek) -> None:
    """Refused unless whoever may only read does just that."""
    if session.reader and not may_read(look.spec):
        raise Refused(ONLY_READS.format(look.spec.name), Code.FORBIDDEN)


def second_look(session: Session, payload: bytes, error: Exception, out: list[bytes]) -> Peek | None:
    """What to do with a payload that the peek refused: None if it was answered."""
    try:
        if isinstance(error, Refused):
            raise error
        look = look_again(payload)
        _check_reader(session, look)
        return look
    except Refused as no:
        out.append(refusal(str(no), request_id(payload), no.code))
        return None
    except InvalidCommand as problem:
        out.append(refusal(str(problem), problem.req_id, problem.code))
        return None


def first_shard(session: Session, look: Peek, payload: bytes | memoryview, out: list[bytes]) -> int | None:
    """Where a command for the first shard goes; None if it was answered, as it is not for everybody."""
    if look.spec.internal and session.limited:
        out.append(refusal(f"Unknown command: {look.spec.name}", request_id(payload)))
        return None
    return 0


def answer(session: Session, payload: bytes) -> bytes:
    """Carry out a command of Route.ROUTER; the reply, as a frame."""
    try:
        command = decode(payload)
    except InvalidCommand as error:
        return refusal(str(error), error.req_id, error.code)
    try:
        reply = HANDLERS[str(command.__struct_config__.tag)](session, command)
    except CommandError as error:
        reply = refused(error)
    reply.req_id = command.req_id
    return encode_frame(reply)


def now_ms() -> int:
    """The wall clock, epoch ms."""
    return time.time_ns() // 1_000_000


@cache
def version() -> str:
    """The version of the package; of a source tree that was never installed there is none."""
    try:
        return metadata.version("bunqueue")
    except metadata.PackageNotFoundError:
        return "unknown"


def _hello(session: Session, command: Hello) -> Reply:
    reply = agreement(command, version())
    session.kind = reply.protocol_version
    return reply


def _auth(session: Session, command: Auth) -> Reply:
    writes = token_is_known(command.token, session.tokens.full)
    reads = token_is_known(command.token, session.tokens.read_only)
    if not writes and not reads:
        session.guessed()
        return ErrorReply(error="Invalid token")
    session.admitted(reader=not writes)
    return Ok()


def _ping(session: Session, command: Command) -> Reply:
    # A float, as all times on the wire: some clients cannot read integers beyond 32 bits.
    return PingReply(data=Pong(pong=True, time=float(now_ms())))


def _register_worker(session: Session, command: RegisterWorker) -> Reply:
    here = command.hostname == gethostname()
    return session.workers.register(
        session.number, command, now_ms(), born=born(command.pid) if here else None
    )


def _unregister_worker(session: Session, command: UnregisterWorker) -> Reply:
    return session.workers.unregister(command.worker_id)


def _list_workers(session: Session, command: ListWorkers) -> Reply:
    return ListWorkersReply(data=session.workers.listing(now_ms()))


def _heartbeat(session: Session, command: Heartbeat) -> Reply:
    return session.workers.beat(command, now_ms())


def _unsubscribe(session: Session, command: Command) -> Reply:
    if session.subscription is not None:
        session.subscription.end()
        session.subscription = None
    return Ok()


HANDLERS: dict[str, Callable[[Session, Any], Reply]] = {
    "Hello": _hello,
    "Auth": _auth,
    "Ping": _ping,
    "RegisterWorker": _register_worker,
    "UnregisterWorker": _unregister_worker,
    "ListWorkers": _list_workers,
    "Heartbeat": _heartbeat,
    "UnsubscribeEvents": _unsubscribe,
}
