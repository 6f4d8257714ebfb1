"""Payloads that MessagePack can carry but readers cannot decode: refused on input, and replaced in answers if
they were stored earlier.

A payload passes through the server as bytes. If it has text that is not UTF-8, or a time outside the
calendar, every answer that contains it would be unreadable, including all the good jobs in that answer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Raw
from msgspec.msgpack import Decoder

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.base import CommandError, path_of
from bunqueue.protocol.heads import CONTAINERS, is_container, is_map
from bunqueue.protocol.measure import MAX_DEPTH, MAX_PARTS, Measure, depth_of, measure
from bunqueue.protocol.pieces import WINDOW

MARK = "unreadable"
"""The field that says why another field of the same job is null. If the value is not a job, it is the only
field."""

READ_ERRORS = (ValueError, OverflowError, RecursionError, TypeError)  # msgspec's own are ValueErrors
_PAYLOADS = frozenset({"data", "returnvalue", "result"})  # from users: shown as a whole or not at all
_NAMES = ("id", "jobId", "name")  # a map with one of these is a record, and its payload can be left out
_LIST = b"\xdd"  # with a length of four bytes
_LEVELS = 8  # from an answer down to the payloads in it: a page, its entries, their jobs

_decode = Decoder().decode
_decode_map = Decoder(dict[str, Raw]).decode
_decode_list = Decoder(list[Raw]).decode


def is_readable(data: bytes) -> bool:
    """Whether every reader can decode a complete value. On the hot path: 0.1 to 1 us for most values."""
    if len(data) == 1:
        return True
    if len(data) > WINDOW:
        return _problem(data) is None
    try:
        value = _decode(data)
    except READ_ERRORS:
        return False
    # A value that is nested too deep has more than MAX_DEPTH of these bytes.
    if len(data) > MAX_DEPTH and len(data) - len(data.translate(None, CONTAINERS)) > MAX_DEPTH:
        return depth_of(value) <= MAX_DEPTH
    return True


def are_readable(values: Collection[bytes]) -> bool:
    """Whether every reader can decode each of these complete values: one call for all of them, for less than
    half of the time.  False also if that is more than can be decoded at once."""
    data = b"".join((_LIST, len(values).to_bytes(4, "big"), *values))
    if len(data) > WINDOW or max(map(len, values), default=0) > MAX_DEPTH:
        return False
    try:
        _decode(data)
    except READ_ERRORS:
        return False
    return True


def check_readable(data: bytes, field: str) -> None:
    """Raise CommandError for a value that some reader could not decode; its text names the field, as in
    "jobs[3]: data"."""
    if problem := _problem(data):
        raise unreadable(field, problem)


def unreadable(field: str, problem: str) -> CommandError:
    """The refusal of a value."""
    return CommandError(f"{field} cannot be read: {problem}", Code.INVALID_DATA, field=path_of(field))


def _problem(data: bytes) -> str | None:
    try:
        return excess(measure(data))
    except READ_ERRORS as error:
        return reason(error)


def excess(found: Measure) -> str | None:
    """Which limit of readers a value exceeds; None if it exceeds none."""
    if found.depth > MAX_DEPTH:
        return reason(RecursionError())
    return f"it has more than {MAX_PARTS} values in it" if found.parts > MAX_PARTS else None


def shown(data: bytes) -> object:
    """A value as a refusal shows it; for a nested value only its kind."""
    if is_container(data):
        return "a map" if is_map(data) else "a list"
    return _decode(data) if is_readable(data) else b""


def reason(error: Exception) -> str:
    """Why a value cannot be decoded."""
    if isinstance(error, UnicodeDecodeError):
        return f"it has text that is not UTF-8 (byte 0x{error.object[error.start]:02x}); send bytes as bytes"
    if isinstance(error, RecursionError):
        return f"it is nested deeper than {MAX_DEPTH} levels"
    text = str(error).strip()
    return f"{text[:1].lower()}{text[1:200]}" if text else type(error).__name__


def salvaged(payload: bytes | memoryview | Raw) -> Any:
    """Decode as much as possible of an answer that contains something undecodable.

    If that is the payload of a job, it becomes None, and the job's field `unreadable` says why. Elsewhere the
    value is replaced by a map with only that field. Raises ValueError if nothing can be read.
    """
    return _salvaged(Raw(payload), _LEVELS)


def _salvaged(raw: Raw, levels: int) -> Any:
    try:
        return _decode(raw)
    except READ_ERRORS as error:
        problem = reason(error)
    if not levels:
        return {MARK: problem}
    try:
        return _fields(_decode_map(raw), levels - 1)
    except READ_ERRORS:
        pass
    try:
        return [_salvaged(part, levels - 1) for part in _decode_list(raw)]
    except READ_ERRORS:
        return {MARK: problem}


def _fields(fields: dict[str, Raw], levels: int) -> dict[str, Any]:
    is_record = any(name in fields for name in _NAMES)
    found: dict[str, Any] = {}
    for name, raw in fields.items():
        if not (is_record and name in _PAYLOADS):
            found[name] = _salvaged(raw, levels)
            continue
        try:
            found[name] = _decode(raw)
        except READ_ERRORS as error:
            found[name] = None
            found[MARK] = f"{name} cannot be read: {reason(error)}"
    return found
