"""How many values a body or an answer has, counted before they are built.

Values take much more memory than their text: 16 MiB of JSON are half a gigabyte if they are empty maps.  One
body or answer is decoded at a time, and is encoded again before anybody waits, so what counts is the largest.
"""

from __future__ import annotations

from bunqueue.protocol.measure import measure

MAX_VALUES = 2_000_000  # some 150 MB; data of 10 MiB with values of five characters each

_STRUCTURE = b"[{,:"
_OTHERS = bytes(set(range(256)) - {*_STRUCTURE, *b'"'})
_SLICE = 1024 * 1024  # bytes that are looked at at a time


def is_too_many(text: bytes) -> bool:
    """Whether a JSON text has more values, and names, than may be built."""
    if len(text) <= MAX_VALUES or sum(map(text.count, _marks())) <= MAX_VALUES:
        return False
    return _structure(text) > MAX_VALUES


def are_too_many(packed: bytes) -> bool:
    """The same of MessagePack."""
    return len(packed) > MAX_VALUES and measure(packed).parts > MAX_VALUES


def _marks() -> list[bytes]:
    return [bytes([mark]) for mark in _STRUCTURE]


def _structure(text: bytes) -> int:
    """Brackets, commas and colons outside of texts: one for each value, and one for each list and map."""
    if b"\\" in text:  # in texts only: a quote that ends none
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    found, inside = 0, False
    for start in range(0, len(text), _SLICE):
        marks = text[start : start + _SLICE].translate(None, _OTHERS)
        between = marks.split(b'"')
        found += sum(map(len, between[inside::2]))
        inside ^= len(between) % 2 == 0
    return found
