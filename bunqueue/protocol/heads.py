"""What the first bytes of a MessagePack value reveal, before anything is decoded."""

from __future__ import annotations

_CONTAINERS = frozenset([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
_MAPS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])

CONTAINERS = bytes(sorted(_CONTAINERS))
"""The first bytes of lists and maps."""

HEAD = 5  # bytes that are enough: the kind, and at most four bytes of length

# First byte -> number of bytes that follow; or the size of the length field, and of what else precedes the
# content.
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_FIXED |= {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}  # extensions, including the byte for their type
_LENGTH = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
_LENGTH |= {0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}


def is_container(data: bytes | memoryview) -> bool:
    """Whether a value is a list or a map."""
    return len(data) > 0 and data[0] in _CONTAINERS


def is_map(data: bytes | memoryview) -> bool:
    """Whether a value is a map."""
    return len(data) > 0 and data[0] in _MAPS


def parts(data: bytes | memoryview) -> int:
    """How many values a list or a map contains; in a map, names and values.  0 for any other value."""
    if not is_container(data):
        return 0
    first, start = data[0], first_part(data)
    count = first & 0x0F if start == 1 else int.from_bytes(data[1:start], "big")
    return 2 * count if first in _MAPS else count


def first_part(data: bytes | memoryview) -> int:
    """The offset of the first value in a list or a map."""
    if data[0] < 0xA0:
        return 1
    return 5 if data[0] & 1 else 3


def size_without_parts(data: bytes | memoryview) -> int:
    """The size in bytes of the value at the beginning of ``data``, which is neither a list nor a map."""
    first = data[0]
    if 0xA0 <= first < 0xC0:
        return 1 + (first & 0x1F)
    if first in _LENGTH:
        width, more = _LENGTH[first]
        return 1 + width + more + int.from_bytes(data[1 : 1 + width], "big")
    return 1 + _FIXED.get(first, 0)
