"""A command of the protocol from its name and fields, for programs and people who know it only as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec import UNSET, MsgspecError

from bunqueue.client.connection.options import shown
from bunqueue.client.options.checks import refusal
from bunqueue.errors import OptionError
from bunqueue.model.decoders import decoder
from bunqueue.model.names import hint
from bunqueue.protocol.codec import decode_command, encode_reply
from bunqueue.protocol.commands import COMMANDS, Command, CommandError, Spec
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.protocol.unknown_fields import check_fields

NAMES = tuple(sorted(name for name, spec in COMMANDS.items() if spec.is_offered))


def command_of(name: str, fields: Mapping[str, Any]) -> Command:
    """The command with these fields, by their names in PROTOCOL.md. Raises OptionError."""
    spec = COMMANDS.get(name)
    if spec is None or not spec.is_offered:
        advice = hint(name, NAMES, "bunqueue/protocol/PROTOCOL.md has all of them")
        raise OptionError(f"there is no command {shown(name)}; {advice}", field="command", value=name)
    try:
        check_fields(spec.request, fields)
        return _decoded(spec, encode_reply({"cmd": name, **fields}))
    except CommandError as error:
        value = fields.get(str(error.field)) if error.value is UNSET else error.value
        raise refusal(f"{name}: {error}", error, value) from None
    except (MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise OptionError(f"{name}: a value cannot be sent: {error}") from None


def _decoded(spec: Spec, payload: bytes) -> Command:
    try:
        return cast(Command, decoder(spec.request).decode(payload))
    except DECODE_ERRORS:
        return decode_command(payload)  # says what is wrong
