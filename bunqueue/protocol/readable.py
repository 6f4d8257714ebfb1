"""Payloads that MessagePack can carry and no reader can show: kept out where they come in, and shown alone
where they were stored before.

A payload goes through the server as bytes. One with text that is not UTF-8, or a time that no calendar has,
would make every answer that holds it unreadable, with all the good jobs beside it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from msgspec.msgpack import Decoder

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.base import CommandError, path_of

MAX_DEPTH = 500  # of lists and maps in each other: Python reads about 900, less from deep within a program
MARK = "unreadable"
"""The field that says why another field of the same job is null; of what is no job, all that is there."""

_ERRORS = (ValueError, OverflowError, RecursionError, TypeError)  # msgspec's own are ValueErrors
_CONTAINERS = bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])  # how lists and maps begin
_MAPS = frozenset(bytes([first]) for first in (*range(0x80, 0x90), 0xDE, 0xDF))
_NESTING = frozenset({dict, list})
_PAYLOADS = frozenset({"data", "returnvalue", "result"})  # what users give: shown as a whole, or not at all
_NAMES = ("id", "jobId", "name")  # one of them makes a map a record, whose payload can be left out
_LEVELS = 8  # from an answer down to the payloads in it: a page, its entries, their jobs

_decode = Decoder().decode
_decode_map = Decoder(dict[str, Raw]).decode
_decode_list = Decoder(list[Raw]).decode


def is_readable(data: bytes) -> bool:
    """Whether every reader can show a value, which is whole. On the hot path: 0.1 to 1 us for most."""
    if len(data) == 1:
        return True
    try:
        value = _decode(data)
    except _ERRORS:
        return False
    # A value that is nested deeper has more bytes like these. Few others have; they are looked at by level.
    if len(data) > MAX_DEPTH and len(data) - len(data.translate(None, _CONTAINERS)) > MAX_DEPTH:
        return _is_flat(value)
    return True


def is_map(data: bytes | memoryview) -> bool:
    """Whether a value is an object: names, and a value for each."""
    return bytes(data[:1]) in _MAPS


def is_container(data: bytes | memoryview) -> bool:
    """Whether a value is a list or a map."""
    return data[0] in _CONTAINERS


def parts(data: bytes | memoryview) -> int:
    """How many values stand in a list or a map, by its first five bytes: in a map, names and values.  0 of
    what is neither."""
    first = data[0]
    if first not in _CONTAINERS:
        return 0
    each = 2 if is_map(data) else 1
    if first < 0xA0:
        return each * (first & 0x0F)
    width = 4 if first & 1 else 2
    return each * int.from_bytes(data[1 : 1 + width], "big")


def shown(data: bytes) -> object:
    """A value as a refusal shows it; of one that is nested only what it is."""
    if is_container(data):
        return "a map" if is_map(data) else "a list"
    return _decode(data) if is_readable(data) else b""


def check_readable(data: bytes, field: str) -> None:
    """CommandError for a value that some reader could not show; its text names the field: "jobs[3]: data"."""
    if is_readable(data):
        return
    try:
        _decode(data)
    except _ERRORS as error:
        problem = reason(error)
    else:
        problem = reason(RecursionError())
    raise CommandError(f"{field} cannot be read: {problem}", Code.INVALID_DATA, field=path_of(field))


def _is_flat(value: Any) -> bool:
    """Whether it is not too deep; looked at level by level, so without recursion."""
    level = [value] if type(value) in _NESTING else []
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for each in level:
            parts = each.values() if type(each) is dict else each
            deeper += [part for part in parts if type(part) in _NESTING]
        if not deeper:
            return True
        level = deeper
    return False


def reason(error: Exception) -> str:
    """What is wrong with a value that cannot be decoded."""
    if isinstance(error, UnicodeDecodeError):
        return f"it has text that is not UTF-8 (byte 0x{error.object[error.start]:02x}); send bytes as bytes"
    if isinstance(error, RecursionError):
        return f"it is nested deeper than {MAX_DEPTH} levels"
    text = str(error).strip()
    return f"{text[:1].lower()}{text[1:200]}" if text else type(error).__name__


def salvaged(payload: bytes | memoryview | Raw) -> Any:
    """An answer in which something cannot be decoded, and all the rest of it.

    The payload of a job is None then, and its field `unreadable` says why; elsewhere a map with that field
    alone stands in place of the value. Raises ValueError when nothing can be read.
    """
    return _salvaged(Raw(payload), _LEVELS)


def _salvaged(raw: Raw, levels: int) -> Any:
    try:
        return _decode(raw)
    except _ERRORS as error:
        problem = reason(error)
    if not levels:
        return {MARK: problem}
    try:
        return _fields(_decode_map(raw), levels - 1)
    except _ERRORS:
        pass
    try:
        return [_salvaged(part, levels - 1) for part in _decode_list(raw)]
    except _ERRORS:
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
        except _ERRORS as error:
            found[name] = None
            found[MARK] = f"{name} cannot be read: {reason(error)}"
    return found
