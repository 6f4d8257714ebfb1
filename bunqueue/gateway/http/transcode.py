"""JSON to MessagePack and back, for values of any type.

Values that JSON lacks are approximated: bytes become Base64, "undefined" and NaN become null, and keys that
are not text become text.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from bunqueue.gateway.http.json_memory import MAX_WEIGHT, is_too_heavy
from bunqueue.protocol.readable import salvaged
from bunqueue.text import json_problem

MAX_DEPTH = 200  # of values converted in Python; no job is nested so deeply

_TIME = re.compile(rb'":(?<=\w":)(\d{12,15})\.0(?=[,}])')
"""A time, epoch ms, as the value of a field.  On the wire it is a double, which every client can read, and in
JSON an integer.  Only after a field name does a colon follow a quote that follows a letter."""

_read_json = msgspec.json.Decoder().decode
_write_json = msgspec.json.Encoder().encode


class NotJson(ValueError):
    """The value cannot be read, or cannot be represented."""


class TooManyValues(NotJson):
    """The values would take too much memory."""


def _extension(code: int, data: memoryview) -> object:
    return Ext(code, bytes(data))


_write_packed = msgspec.msgpack.Encoder().encode
_read_packed = msgspec.msgpack.Decoder(ext_hook=_extension).decode


def read_json(body: bytes) -> Any:
    """The value of a JSON text.  Raises NotJson, which says what is wrong."""
    if is_too_heavy(body):
        text = f"the values of the body take more than {MAX_WEIGHT >> 20} MiB; send it in parts, or over TCP"
        raise TooManyValues(text)
    try:
        return _read_json(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise NotJson(f"the body is no JSON: {json_problem(body, error)}") from None


def read_packed(payload: bytes) -> Any:
    """The value of a MessagePack text.  A part that Python cannot read becomes null, or a note about it.
    Raises NotJson if nothing can be read."""
    try:
        return _read_packed(payload)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
        pass
    try:
        return salvaged(payload)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise NotJson(f"the answer cannot be shown as JSON: {error}") from None


def write_packed(value: Any) -> msgspec.Raw:
    """``value`` as MessagePack.  Raises the encoder's errors."""
    return msgspec.Raw(_write_packed(value))


def write_json(value: Any) -> bytes:
    """``value`` as JSON."""
    try:
        text = _write_json(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        text = _write_json(plain(value))
    return _TIME.sub(rb'":\1', text)


def plain(value: Any) -> Any:
    """``value`` with only JSON's lists and maps, and with "..." for parts that are nested deeper than
    MAX_DEPTH."""
    return _plain(value, 0)


def _plain(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        return "..."
    if isinstance(value, dict):
        return {_key(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, Ext):
        return None
    return value


def _key(key: Any) -> str:
    return key if isinstance(key, str) else _write_json(plain(key)).decode()
