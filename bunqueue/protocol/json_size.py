"""How long a MessagePack value is as JSON text, found without building it.

A payload of millions of small parts would take gigabytes as Python objects; a walk over its bytes takes
none, and ends as soon as the limit is passed.
"""

from __future__ import annotations

import json
import struct

MAX_DATA = 10 * 1024 * 1024  # characters of JSON text that a job's data may have
MAX_BYTES = 4 * MAX_DATA  # of MessagePack: all that such a text may need, and it fits into an answer
SURELY_SMALL = MAX_DATA // 6  # bytes of MessagePack: no encoding grows more than sixfold in JSON

_float32 = struct.Struct(">f").unpack_from
_float64 = struct.Struct(">d").unpack_from

# First byte -> bytes in which the length or the number follows.
_UNSIGNED = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_SIGNED = {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_TEXT = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BINARY = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_ARRAY = {0xDC: 2, 0xDD: 4}
_MAP = {0xDE: 2, 0xDF: 4}
_WORD = {0xC0: 4, 0xC2: 5, 0xC3: 4}  # null, false, true


def _small(first: int) -> int:
    """The length of a number that is its own first byte, or of a word; 0 for all others."""
    if first < 0x80:
        return len(str(first))
    if first >= 0xE0:
        return len(str(first - 0x100))
    return _WORD.get(first, 0)


_SMALL = bytes(map(_small, range(256)))


def json_size(data: bytes, limit: int) -> int:
    """The length in characters of ``data``, a valid MessagePack value, as compact JSON text.

    Any number above ``limit`` when it is longer than that.
    """
    size, place, left = 0, 0, 1
    while left and size <= limit:
        left -= 1
        first = data[place]
        small = _SMALL[first]
        if small:
            size += small
            place += 1
            continue
        length, parts, place = _part(data, first, place + 1)
        size += length
        left += parts
    return size


def _part(data: bytes, first: int, place: int) -> tuple[int, int, int]:
    """Characters of what begins with ``first``, how many values are in it, and where it goes on."""
    if first < 0x90:
        return _container(first & 0x0F, 2, place)
    if first < 0xA0:
        return _container(first & 0x0F, 1, place)
    if first < 0xC0:
        return _text(data, place, first & 0x1F)
    if first in _ARRAY or first in _MAP:
        width = _ARRAY.get(first) or _MAP[first]
        count = int.from_bytes(data[place : place + width], "big")
        return _container(count, 1 if first in _ARRAY else 2, place + width)
    if first in _TEXT:
        width = _TEXT[first]
        return _text(data, place + width, int.from_bytes(data[place : place + width], "big"))
    return _scalar(data, first, place)


def _scalar(data: bytes, first: int, place: int) -> tuple[int, int, int]:
    if first in (0xCA, 0xCB):
        number = (_float32 if first == 0xCA else _float64)(data, place)[0]
        return len(repr(int(number) if number.is_integer() else number)), 0, place + (4 << (first & 1))
    if first in _UNSIGNED or first in _SIGNED:
        width = _UNSIGNED.get(first) or _SIGNED[first]
        value = int.from_bytes(data[place : place + width], "big", signed=first in _SIGNED)
        return len(str(value)), 0, place + width
    if first in _FIXED_EXT:
        return 0, 0, place + 1 + _FIXED_EXT[first]
    width = _BINARY[first]
    count = int.from_bytes(data[place : place + width], "big")
    return count, 0, place + width + count + (first >= 0xC7)  # extensions have a type byte, too


def _container(count: int, per_entry: int, place: int) -> tuple[int, int, int]:
    """Its brackets, commas and colons."""
    return 2 + max(0, count - 1) + (per_entry - 1) * count, per_entry * count, place


def _text(data: bytes, place: int, length: int) -> tuple[int, int, int]:
    end = place + length
    text = data[place:end].decode("utf-8", "replace")
    return len(json.dumps(text, ensure_ascii=False)), 0, end
