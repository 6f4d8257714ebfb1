"""How large a MessagePack value is for those who read it: as JSON text, in parts, in depth.

It is decoded piece by piece, so millions of small parts take some megabytes and little time.  Counting ends
as soon as a limit is passed.
"""

from __future__ import annotations

from itertools import chain
from math import inf
from typing import Any, NamedTuple

import orjson
from msgspec.msgpack import Decoder, Ext

from .pieces import pieces

MAX_DATA = 10 * 1024 * 1024  # characters of JSON text that a job's data may have
MAX_BYTES = 4 * MAX_DATA  # of MessagePack: all that such a text may need, and it fits into an answer
SURELY_SMALL = MAX_DATA // 6  # bytes of MessagePack: no encoding grows more than sixfold in JSON
MAX_PARTS = MAX_DATA // 2  # values, and names of values, in one payload: as many as such a text can have
MAX_DEPTH = 500  # of lists and maps in each other: Python reads about 900, less from deep within a program

_NESTING = {list, dict}
_WITHOUT_TEXT = _NESTING | {bytes, Ext}
_decode = Decoder().decode


class Measure(NamedTuple):
    """``characters`` of compact JSON text; ``parts`` of lists and maps, names as well as values; ``depth`` of
    lists and maps in each other."""

    characters: int
    parts: int
    depth: int


def measure(data: bytes, characters: float = inf) -> Measure:
    """Measure a whole value; what is passed to the limits, of which ``characters`` is one, is at least.

    Raises what decoding raises.
    """
    found, number, depth = 1, 0, 0
    for piece in pieces(data):
        if piece.body:
            value = _decode(piece.body)
            more = _measured([value] if piece.alone else _within(value))
        else:  # a bracket, and of each part one character and what is between it and the next
            more = Measure(max(1, 2 * piece.opened), piece.opened, 0)
        found, number = found + more.characters, number + more.parts
        depth = max(depth, piece.depth + more.depth)
        if found > characters or number > MAX_PARTS or depth > MAX_DEPTH:
            break
    return Measure(found, number, depth)


def depth_of(value: Any) -> int:
    """How many lists and maps are in each other in a value that is decoded."""
    return _measured([value], texts=False).depth


def _within(value: Any) -> list[Any]:
    return [*value, *value.values()] if type(value) is dict else value


def _measured(level: list[Any], *, texts: bool = True) -> Measure:
    """Of values beside each other, level by level, without recursion.  One character of each, and its comma
    or colon, are counted with what is around it."""
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
    """Characters of the values that have no parts, beyond one of each."""
    kinds = set(map(type, level))
    blobs = _of(level, kinds, bytes)
    size = sum(map(len, blobs)) + len(blobs)  # as long as they are, in quotes
    if others := kinds - _WITHOUT_TEXT:
        values = level if others == kinds else [value for value in level if type(value) in others]
        text = orjson.dumps(values)
        size += len(text) if text.isascii() else len(text.decode())
        size -= 2 * len(values) + 1  # commas and brackets, and one of each
    # Whole numbers that could have a fraction: JSON has 5, and orjson 5.0.
    return size - 2 * sum(map(float.is_integer, _of(level, kinds, float)))
