"""How large a MessagePack value is for its readers: as JSON text, in parts, in depth.

The value is decoded piece by piece, so even millions of small parts take only some megabytes and little time.
Counting stops as soon as a limit is exceeded.
"""

from __future__ import annotations

from itertools import chain
from math import inf
from typing import Any, NamedTuple

import orjson
from msgspec.msgpack import Decoder, Ext

from .pieces import pieces

MAX_DATA = 10 * 1024 * 1024  # characters of JSON text that a job's data may have
MAX_BYTES = 4 * MAX_DATA  # of MessagePack: the most that a text of this size can need; fits into an answer
SURELY_SMALL = MAX_DATA // 6  # bytes of MessagePack: no encoding grows more than sixfold in JSON
MAX_PARTS = MAX_DATA // 2  # values, and names of values, in one payload: the most that this text can have
MAX_DEPTH = 500  # of nested lists and maps: Python reads about 900, fewer when called from deep in a program

_NESTING = {list, dict}
_WITHOUT_TEXT = _NESTING | {bytes, Ext}
_decode = Decoder().decode


class Measure(NamedTuple):
    """``characters`` of compact JSON text; ``parts`` of lists and maps, both names and values; ``depth`` of
    nested lists and maps."""

    characters: int
    parts: int
    depth: int


def measure(data: bytes, characters: float = inf) -> Measure:
    """Measure a whole value.  Once a limit is exceeded (``characters`` is one), the result is a lower bound.

    Raises the errors of decoding.
    """
    found, number, depth = 1, 0, 0
    for piece in pieces(data):
        if piece.body:
            value = _decode(piece.body)
            more = _measured([value] if piece.alone else _within(value))
        else:  # a bracket, and for each part one character and the separator
            more = Measure(max(1, 2 * piece.opened), piece.opened, 0)
        found, number = found + more.characters, number + more.parts
        depth = max(depth, piece.depth + more.depth)
        if found > characters or number > MAX_PARTS or depth > MAX_DEPTH:
            break
    return Measure(found, number, depth)


def depth_of(value: Any) -> int:
    """The depth of nested lists and maps in a decoded value."""
    return _measured([value], texts=False).depth


def _within(value: Any) -> list[Any]:
    return [*value, *value.values()] if type(value) is dict else value


def _measured(level: list[Any], *, texts: bool = True) -> Measure:
    """Measure sibling values, level by level, without recursion.  One character of each value, and its comma
    or colon, are counted with the surrounding list or map."""
    characters = number = depth = 0
    while level:
        kinds = set(map(type, level))
        lists: list[list[Any]] = _of(level, kinds, list)
        maps: list[dict[Any, Any]] = _of(level, kinds, dict)
        if texts and kinds - _NESTING:
            characters += _text(level)
        if not lists and not maps:
            break
        depth += 1
        characters += len(lists) + len(maps)  # the second bracket
        lists, maps = list(filter(None, lists)), list(filter(None, maps))
        names: list[Any] = list(chain.from_iterable(maps))
        level = list(chain(chain.from_iterable(lists), chain.from_iterable(map(dict.values, maps))))
        inside = len(names) + len(level)
        number += inside
        characters += 2 * inside - len(lists) - len(maps)  # the last one has no comma
        if texts and names:
            characters += _text(names)
    return Measure(characters, number, depth)


def _of(level: list[Any], kinds: set[type], kind: type) -> list[Any]:
    if kind not in kinds:
        return []
    return level if len(kinds) == 1 else [value for value in level if type(value) is kind]


def _text(level: list[Any]) -> int:
    """Characters of the values without parts, not counting one character of each."""
    kinds = set(map(type, level))
    blobs = _of(level, kinds, bytes)
    size = sum(map(len, blobs)) + len(blobs)  # their length, plus quotes
    if others := kinds - _WITHOUT_TEXT:
        values = level if others == kinds else [value for value in level if type(value) in others]
        text = orjson.dumps(values)
        size += len(text) if text.isascii() else len(text.decode())
        size -= 2 * len(values) + 1  # commas and brackets, and one character of each
    # Floats with whole values: JSON has 5, orjson writes 5.0.
    return size - 2 * sum(map(float.is_integer, _of(level, kinds, float)))
