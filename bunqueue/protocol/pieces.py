"""Splits a large MessagePack value into pieces that each take little memory when decoded.

A list of millions of small parts takes gigabytes as Python objects, and walking over its bytes in Python
takes seconds.  So C code finds as many parts as fit into some kilobytes; together they are one piece.  Only a
part that is larger than that is opened in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import DecodeError, Raw
from msgspec.msgpack import Decoder

from .heads import HEAD, first_part, is_container, is_map, parts, size_without_parts

WINDOW = 64 * 1024  # bytes of the largest piece of several parts; decoded, some megabytes
_LEAST = 256  # bytes of the smallest window: an attempt costs as much as a few steps in Python

_LIST, _MAP = b"\xdd", b"\xdf"  # lists and maps with a length of four bytes
_skip = Decoder(Raw).decode
_rest = re.compile(r"trailing characters \(byte (\d+)\)").search


class Piece(NamedTuple):
    """``depth`` is the number of lists and maps around the piece.  ``body`` is a list or map of some parts of
    the innermost of these, or one part that has no parts itself.  It is empty when another list or map is
    opened, which has ``opened`` parts."""

    depth: int
    body: bytes
    opened: int = 0
    alone: bool = False  # the body is one part, not a list of parts


def pieces(data: bytes) -> Iterator[Piece]:
    """Split ``data``, one whole value, in order.  ValueError for a map key that is a large list or map."""
    around: list[tuple[int, bool]] = []  # the open lists and maps: parts left, and whether it is a map
    place, left, in_map = 0, 1, False
    window, most = WINDOW, max(2, WINDOW // 8)
    while True:
        while not left:
            if not around:
                return
            left, in_map = around.pop()
        is_name = in_map and left % 2 == 0
        count = _count(left, most, in_map)
        body = _fitting(data, place, window, count, is_name)
        if body:
            yield Piece(len(around), body)
            size = len(body) - HEAD
            place, left = place + size, left - count
            window = min(2 * window, WINDOW)
            most = max(2, count * window * 3 // (4 * size))
            continue
        if count > 2:
            most = max(2, count // 8)
            continue
        window = max(window // 4, _LEAST)
        head = data[place : place + HEAD]
        if is_name:
            body = _name(data, place, head)
            yield Piece(len(around), body, alone=True)
            place, left = place + len(body), left - 1
        elif is_container(head):
            around.append((left - 1, in_map))
            left, in_map = parts(head), is_map(head)
            place += first_part(head)
            yield Piece(len(around), b"", left)
        else:
            body = data[place : place + size_without_parts(head)]
            yield Piece(len(around), body, alone=True)
            place, left = place + len(body), left - 1


def _count(left: int, most: int, in_map: bool) -> int:
    """How many parts to try at once; in a map, a name and its value stay together."""
    if not in_map:
        return min(left, most)
    return min(left, most) // 2 * 2 if left % 2 == 0 else 1


def _fitting(data: bytes, place: int, window: int, count: int, pairs: bool) -> bytes:
    """The next ``count`` parts as a list, or a map of ``pairs``; empty if they are longer than the window."""
    head = _MAP + (count // 2).to_bytes(4, "big") if pairs else _LIST + count.to_bytes(4, "big")
    body = head + data[place : place + window]
    try:
        _skip(body)
    except DecodeError as error:
        rest = _rest(str(error))
        return body[: int(rest[1])] if rest else b""
    return body


def _name(data: bytes, place: int, head: bytes) -> bytes:
    """The name (map key) at a place.  A list can be a name if it is small."""
    size = size_without_parts(head)
    if is_container(head):
        size = len(_fitting(data, place, WINDOW, 1, False)) - HEAD
        if size <= 0:
            raise ValueError("a list or a map is a name")
    return data[place : place + size]
