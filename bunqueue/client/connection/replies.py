"""From a reply's bytes to what was asked for, or to the error that fits the server's text."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder, Ext

from bunqueue.errors import (
    AuthError,
    BunqueueError,
    CommandFailed,
    ConnectionLost,
    JobNotFound,
    LockLost,
    NotFound,
    ScheduleConflict,
    ShardUnavailable,
    StorageDamaged,
    WrongState,
)
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import Reply, webhooks, workers
from bunqueue.protocol.lenient import DECODE_ERRORS, UNDEFINED
from bunqueue.protocol.readable import MARK, salvaged

R = TypeVar("R", bound=Reply)

UNAVAILABLE = "Shard unavailable"
"""How the text begins when a command was not carried out because its shard is away; repeating it is safe."""
UNKNOWN = "Outcome unknown"
"""How the text begins when a push was repeated so late that the server cannot tell whether it knows it."""
_IDS_OF_OTHERS = (webhooks.SetWebhookEnabled, workers.Heartbeat)  # their `id` is none of a job
_AUTH_TEXTS = ("Not authenticated", "Invalid token")
_LOCK_TEXTS = (
    "Invalid or expired lock token",
    "Lock token required",
    "Job not found or not in processing",
)
_STATE_TEXTS = ("Job not found or", "Job is ", "Cannot move job from state")
_JOB_TEXTS = ("Job not found", "Child job not found", "Parent job not found", "Dependency job not found")
_OTHER_TEXTS = ("Cron job not found", "Webhook not found", "Worker not found")
_KINDS: dict[type[CommandFailed], tuple[str, ...]] = {  # the first that fits
    ShardUnavailable: (UNAVAILABLE,),
    LockLost: _LOCK_TEXTS,
    WrongState: _STATE_TEXTS,
    JobNotFound: _JOB_TEXTS,
    NotFound: _OTHER_TEXTS,
}
_BY_CODE: dict[str, type[CommandFailed]] = {  # where the server gives a code, its text does not matter
    Code.STORAGE_DAMAGED: StorageDamaged,
    Code.SCHEDULE_CONFLICT: ScheduleConflict,
    Code.SHARD_UNAVAILABLE: ShardUnavailable,
}
_OWN_CODE = frozenset({Code.SHARD_UNAVAILABLE})  # their exception had a code before the server gave one
_HINTS: dict[type[CommandFailed], str] = {
    ShardUnavailable: "; nothing was changed, try again in a moment",
    JobNotFound: "; it was removed, or never added to this server",
    WrongState: "; look at its state",
}


class Head(Struct, rename="camel", gc=False):
    """What a connection must know of a reply to pass it on."""

    ok: bool = True
    req_id: int | None = None
    error: str | None = None
    code: str | None = None

    @property
    def may_pass(self) -> bool:
        """Whether the command was not carried out because its shard is away, but for a moment only."""
        text = self.error
        return text is not None and text.startswith(UNAVAILABLE) and self.code != Code.STORAGE_DAMAGED


class _Error(Struct, gc=False):
    ok: bool = True
    error: str = "no reason given"
    code: str | None = None


peek = Decoder(Head).decode
_decode_error = Decoder(_Error).decode
_decode_any = Decoder().decode
_encode = Encoder().encode


@cache
def _decoder(reply: type[R]) -> Decoder[R]:
    return Decoder(reply)


def decode_reply(payload: bytes, reply: type[R], command: Struct, address: str) -> R:
    """The typed reply. Raises what `refusal` makes of an error reply, BunqueueError for an unknown shape."""
    try:
        answer: R = _decoder(reply).decode(payload)
    except DECODE_ERRORS as error:  # an error reply lacks the fields of the answer
        answer = _second_look(payload, reply, error, command, address)
    if not answer.ok:
        refused = _decode_error(payload)
        raise refusal(refused.error, command, address, refused.code)
    return answer


def _second_look(payload: bytes, reply: type[R], problem: Exception, command: Struct, address: str) -> R:
    """An error reply, or one of a server that writes "undefined" for what is absent, as JavaScript's do."""
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
    raise refusal(refused.error, command, address, refused.code)


def _all_of(payload: bytes, command: Struct, address: str) -> Any:
    """The answer, with `unreadable` in jobs that have what cannot be decoded. BunqueueError if it is the
    answer itself."""
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


def refusal(text: str, command: Struct, address: str, code: str | None = None) -> BunqueueError:
    """The exception for the server's error `text`, and the `code` that it may have given with it."""
    message = f"{describe(command)}: {text}"
    if text.startswith(_AUTH_TEXTS):
        return AuthError(
            f"{address} refuses this client: {text}; give the token of that server (token=...)",
            address=address,
            **names(command),
        )
    if text.startswith(UNKNOWN):
        return ConnectionLost(f"{message}, before you add them again", address=address, **names(command))
    kind = _kind_of(text, code)
    told = None if code in _OWN_CODE else code
    return kind(message + _HINTS.get(kind, ""), reason=text, code=told, address=address, **names(command))


def _kind_of(text: str, code: str | None) -> type[CommandFailed]:
    if code is not None and code in _BY_CODE:
        return _BY_CODE[code]
    for kind, beginnings in _KINDS.items():
        if text.startswith(beginnings):
            return kind
    return CommandFailed


def in_queue(error: BunqueueError, queue: str) -> None:
    """Have an error about a command that names only a job say in which queue that is, as its caller knows."""
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
