"""The memory that the values of a JSON text take, computed before they are built.

16 MiB of JSON take half a gigabyte as Python objects if they are empty maps.  One body is decoded at a time,
and is encoded again before the next one, so only the largest body matters.
"""

from __future__ import annotations

MAX_WEIGHT = 192 * 1024 * 1024  # bytes; 16 MiB of records with three fields take less

# The bytes for each mark outside of texts: a list or map, a value, a name and its place.  They are those of
# typical objects; the smallest maps take one and a half times as much.
_WEIGHTS = {b"[": 72, b"{": 72, b",": 40, b":": 60}
_OTHERS = bytes(set(range(256)) - {*b"".join(_WEIGHTS), *b'"'})
_SLICE = 1024 * 1024  # bytes that are scanned at a time


def is_too_heavy(text: bytes) -> bool:
    """Whether the values of a JSON text would take more than MAX_WEIGHT."""
    return _weight(text) > MAX_WEIGHT and _weight_outside_texts(text) > MAX_WEIGHT


def _weight(text: bytes) -> int:
    """An upper estimate: marks within texts are counted as well."""
    return sum(weight * text.count(mark) for mark, weight in _WEIGHTS.items())


def _weight_outside_texts(text: bytes) -> int:
    if b"\\" in text:  # only in texts: a quote that does not end one
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    found, inside = 0, False
    for start in range(0, len(text), _SLICE):
        between = text[start : start + _SLICE].translate(None, _OTHERS).split(b'"')
        found += _weight(b"".join(between[inside::2]))
        inside ^= len(between) % 2 == 0
    return found
