"""Refuses unknown names in requests, as `protocol.unknown_fields` does, with the refusals of the gateway."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct

from bunqueue.protocol import unknown_fields
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError

from . import status
from .problems import Problem


def check_names(given: Iterable[str], known: Collection[str]) -> None:
    """Raise Problem for the first unknown name."""
    try:
        unknown_fields.check_names(given, known)
    except CommandError as error:
        raise _problem(error) from None


def check_fields(request: type[Struct], fields: Mapping[str, Any]) -> None:
    """Raise Problem for a field that the command, or one of its options, does not have."""
    try:
        unknown_fields.check_fields(request, fields)
    except CommandError as error:
        raise _problem(error) from None


def _problem(error: CommandError) -> Problem:
    return Problem(status.INVALID, str(error), reason=Code.UNKNOWN_FIELD, field=str(error.field))
