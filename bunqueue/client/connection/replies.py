"""Decodes a reply's bytes to the expected type, or to the error that fits the server's refusal."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder, Ext

from bunqueue.client.connection import codeless
from bunqueue.errors import (
    AuthError,
    BunqueueError,
    CommandFailed,
    ConnectionLost,
    DuplicateJob,
    JobNotFound,
    LockLost,
    NotFound,
    QueueFull,
    ScheduleConflict,
    ShardUnavailable,
    StorageDamaged,
    WrongState,
)
from bunqueue.model.decoders import decoder
from bunqueue.protocol.codes import TABLE, Code, Kind
from bunqueue.protocol.commands import Reply, webhooks, workers
from bunqueue.protocol.lenient import DECODE_ERRORS, UNDEFINED
from bunqueue.protocol.readable import MARK, salvaged

R = TypeVar("R", bound=Reply)

PASSING = frozenset({Code.SHARD_UNAVAILABLE, Code.STORE_UNAVAILABLE})
"""Nothing was changed, and the same command may succeed shortly: it is sent again while there is time."""

_IDS_OF_OTHERS = (webhooks.SetWebhookEnabled, workers.Heartbeat)  # their `id` is not a job's
_KINDS: dict[Kind, type[CommandFailed]] = {
    Kind.REFUSED: CommandFailed,
    Kind.JOB_NOT_FOUND: JobNotFound,
    Kind.NOT_FOUND: NotFound,
    Kind.WRONG_STATE: WrongState,
    Kind.LOCK_LOST: LockLost,
    Kind.CONFLICT: ScheduleConflict,
    Kind.DUPLICATE: DuplicateJob,
    Kind.FULL: QueueFull,
    Kind.UNAVAILABLE: ShardUnavailable,
    Kind.DAMAGED: StorageDamaged,
}
_HINTS: dict[type[CommandFailed], str] = {
    ShardUnavailable: "; nothing was changed, try again in a moment",
    JobNotFound: "; it was removed, or never added to this server",
    WrongState: "; look at its state",
}


_EXPLAINED = "Job not found: "  # the server explains what happened to it


class Head(Struct, rename="camel", gc=False):
    """The part of a reply that a connection needs to route it."""

    ok: bool = True
    req_id: int | None = None
    error: str | None = None
    code: str | None = None

    @property
    def may_pass(self) -> bool:
        """Whether the command was not executed because its shard or store is briefly unavailable."""
        if self.error is None:
            return False
        return (self.code or codeless.code_of(self.error)) in PASSING


class Refusal(Struct, gc=False):
    """A server's refusal of a command."""

    ok: bool = True
    error: str = "no reason given"
    code: str | None = None
    field: str | None = None
    value: Any = None
    bound: Any = None
    retry_after: int | None = msgspec.field(name="retryAfter", default=None)


peek = decoder(Head).decode
_CODES = frozenset(map(str, Code))
_decode_error = decoder(Refusal).decode
_decode_any = Decoder().decode
_encode = Encoder().encode


@cache
def _decoder(reply: type[R]) -> Decoder[R]:
    return decoder(reply)


def decode_reply(payload: bytes, reply: type[R], command: Struct, address: str) -> R:
    """The typed reply. Raises `refusal` for an error reply, and BunqueueError for an unknown shape."""
    try:
        answer: R = _decoder(reply).decode(payload)
    except DECODE_ERRORS as error:  # an error reply lacks the fields of the expected one
        answer = _decode_fallback(payload, reply, error, command, address)
    if not answer.ok:
        refused = _decode_error(payload)
        raise refusal(refused, command, address)
    return answer


def fields_of_reply(payload: bytes, command: Struct, address: str) -> dict[str, Any]:
    """All fields of a reply. Raises BunqueueError, as `decode_reply` does."""
    decode_reply(payload, Reply, command, address)
    found = _defined(_all_of(payload, command, address))
    return {name: value for name, value in found.items() if name not in ("ok", "reqId")}


def _decode_fallback(payload: bytes, reply: type[R], problem: Exception, command: Struct, address: str) -> R:
    """An error reply, or one from a JavaScript server that writes "undefined" for absent values."""
    try:
        refused = _decode_error(payload)
        if refused.ok:
            found = _defined(_all_of(payload, command, address))
            answer: R = _decoder(reply).decode(_encode(found))
            return answer
    except DECODE_ERRORS as error:
        raise BunqueueError(
            f"{describe(command)}: the answer of {address} has an unknown shape ({problem}); "
            f"do client and server have the same version?",
            address=address,
            **names(command),
        ) from error
    raise refusal(refused, command, address)


def _all_of(payload: bytes, command: Struct, address: str) -> Any:
    """The whole reply, with `unreadable` in jobs that have undecodable parts. Raises BunqueueError if the
    reply itself is undecodable.
    """
    try:
        return _decode_any(payload)
    except DECODE_ERRORS:
        found = salvaged(payload)
    if MARK in found:
        raise BunqueueError(f"{describe(command)}: the {found[MARK]}", address=address, **names(command))
    return found


def _defined(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _defined(item) for key, item in value.items() if not _undefined(item)}
    if isinstance(value, list):
        return [None if _undefined(item) else _defined(item) for item in value]
    return value


def _undefined(value: Any) -> bool:
    return isinstance(value, Ext) and value.code == UNDEFINED


def refusal(refused: Refusal, command: Struct, address: str) -> BunqueueError:
    """The exception for a server's refusal, chosen by its code."""
    text = refused.error
    code = refused.code or codeless.code_of(text)
    row = TABLE.get(Code(code)) if code in _CODES else None
    kind = row.kind if row is not None else Kind.REFUSED
    message, about = f"{describe(command)}: {text}", names(command)
    if kind is Kind.AUTH:
        text = f"{address} refuses this client: {text}; give the token of that server (token=...)"
        return AuthError(text, address=address, **about)
    if kind is Kind.UNKNOWN:
        return ConnectionLost(f"{message}, before you add them again", address=address, **about)
    made = _KINDS[kind]
    hint = "" if code == Code.HOST_STATE else _HINTS.get(made, "")  # the hint is about jobs
    if text.startswith(_EXPLAINED):
        hint = ""
    error = made(message + hint, reason=refused.error, address=address, **about)
    if made is CommandFailed and refused.code is not None:
        error.code = refused.code
    if refused.field is not None:
        error.field, error.value, error.bound = refused.field, refused.value, refused.bound
    error.retry_after = refused.retry_after
    if code is not None:
        error.server_code = code
    return error


def in_queue(error: BunqueueError, queue: str) -> None:
    """Add the queue, which the caller knows, to an error about a command that names only a job."""
    if error.queue is None and error.job_id is not None:
        error.queue = queue
        about = f" of job {error.job_id}"
        error.args = (str(error).replace(about, f"{about} in queue {queue!r}", 1),)


def describe(command: Struct) -> str:
    """A command in words: its name and the queue or job it is about."""
    about = names(command)
    if about["job_id"]:
        return f"{about['command']} of job {about['job_id']}"
    return f"{about['command']} for queue {about['queue']!r}" if about["queue"] else str(about["command"])


def names(command: Struct) -> dict[str, Any]:
    """The attributes of an error about `command`."""
    return {
        "command": str(command.__struct_config__.tag),
        "queue": getattr(command, "queue", None),
        "job_id": None if isinstance(command, _IDS_OF_OTHERS) else getattr(command, "id", None),
    }
