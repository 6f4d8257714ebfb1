"""MessagePack to typed commands and back.

The fast path decodes and checks in C.  A command that it refuses takes the lenient path.  That path accepts
what other languages' encoders send (null or "undefined" for an absent option, 5.0 for 5); for anything else
its error text says which field is wrong.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Union

from msgspec import UNSET, Raw, Struct
from msgspec.msgpack import Encoder

from bunqueue.model.decoders import decoder
from bunqueue.model.job import NIL
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS, Command, CommandError, ErrorReply, Reply, is_slow
from bunqueue.protocol.commands.base import MAX_SHOWN, RequestId, Slow
from bunqueue.protocol.framing import MAX_FRAME, frame
from bunqueue.protocol.lenient import DECODE_ERRORS, clean, decode_fields, scalar

_FullCommand: Any = Union[tuple(spec.request for spec in COMMANDS.values() if spec.plain)]  # noqa: UP007
_UsualCommand: Any = Union[tuple(spec.plain or spec.request for spec in COMMANDS.values())]  # noqa: UP007
_decode_usual: Any = decoder(_UsualCommand).decode
# What it refuses may be one of these, with options.
_decode_full: Any = decoder(_FullCommand).decode

encode_reply = Encoder().encode
_NOTHING = Raw(NIL)
NO_COMMAND = CommandError("Invalid command format", Code.INVALID_COMMAND)


class _RequestId(Struct, gc=False):
    reqId: RequestId = UNSET


_decode_request_id = decoder(_RequestId).decode
_decode_slow = decoder(Slow).decode


def request_id(payload: bytes | memoryview | Raw) -> RequestId:
    """The ``reqId`` of a request or a reply, undecoded; absent if it cannot be read."""
    try:
        return _decode_request_id(payload).reqId
    except DECODE_ERRORS:
        return UNSET


def is_slow_payload(payload: bytes) -> bool:
    """`is_slow` of an undecoded request; False if it cannot be read."""
    try:
        fields = _decode_slow(payload)
    except DECODE_ERRORS:
        return False
    return is_slow(fields.cmd, fields.timeout)


class InvalidCommand(CommandError):
    """A payload that is not a valid command.  ``req_id`` is its request id, if that could be read; ``slow``
    is whether it `is_slow`, if that is known."""

    def __init__(self, problem: CommandError, req_id: RequestId = UNSET, *, slow: bool | None = None) -> None:
        super().__init__(
            str(problem),
            problem.code,
            field=problem.field,
            value=problem.value,
            bound=problem.bound,
            retry_after=problem.retry_after,
        )
        self.req_id = req_id
        self.slow = slow


def decode_command(payload: bytes) -> Command:
    """The command in a frame's payload; InvalidCommand says what is wrong with it."""
    try:
        command: Command = _decode_usual(payload)
    except DECODE_ERRORS:
        try:
            found: Command = _decode_full(payload)
            return found
        except DECODE_ERRORS:
            return _decode_leniently(payload)
    return command


def _decode_leniently(payload: bytes) -> Command:
    try:
        fields = decode_fields(payload, "a command")
    except CommandError as error:
        problem = CommandError(str(error), Code.INVALID_COMMAND, bound=error.bound)
        raise InvalidCommand(problem, request_id(payload)) from None
    except DECODE_ERRORS:
        raise InvalidCommand(NO_COMMAND) from None
    req_id: RequestId = fields.pop("reqId", UNSET)
    slow = False
    try:
        name = scalar(fields.pop("cmd", _NOTHING), "cmd")
        if not isinstance(name, str) or not name:
            raise CommandError("Invalid command", Code.INVALID_COMMAND, field="cmd")
        spec = COMMANDS.get(name)
        if spec is None:
            raise CommandError(
                f"Unknown command: {name[:MAX_SHOWN]}", Code.UNKNOWN_COMMAND, field="cmd", value=name
            )
        slow = spec.is_slow(_timeout(fields))
        cleaned = encode_reply({"cmd": name, **clean(spec.request, fields)})
        try:
            command: Command = _decode_usual(cleaned)
        except DECODE_ERRORS:
            command = _decode_full(cleaned)
    except CommandError as error:
        raise InvalidCommand(error, req_id, slow=slow) from None
    except DECODE_ERRORS:
        raise InvalidCommand(NO_COMMAND, req_id, slow=slow) from None
    command.req_id = req_id
    return command


def _timeout(fields: dict[str, Raw]) -> object:
    with suppress(CommandError):
        return scalar(fields.get("timeout", _NOTHING), "timeout")
    return ""  # not a valid timeout


def encode_payload(reply: Reply | Raw | dict[str, Any]) -> bytes:
    """A reply as the payload of a frame.  A reply that is too large for a frame becomes an error reply."""
    payload = encode_reply(reply)
    if len(payload) > MAX_FRAME:
        text = f"The answer of {len(payload)} bytes does not fit into a frame (max {MAX_FRAME})"
        too_large = ErrorReply(
            error=text, code=Code.ANSWER_TOO_LARGE, bound=MAX_FRAME, req_id=request_id(payload)
        )
        payload = encode_reply(too_large)
    return payload


def encode_frame(reply: Reply | Raw | dict[str, Any]) -> bytes:
    """A reply as a frame, ready to send."""
    return frame(encode_payload(reply))
