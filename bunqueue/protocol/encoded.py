"""Payloads that a client compressed or encrypted before sending, as shown to readers that cannot decode them.

For the server they are ordinary values; docs/codecs.md has the format.
"""

from __future__ import annotations

import re
from typing import Any

MARK = "$encoded"
"""The field of an envelope that tells people what it is."""
LEVELS = 64
"""How many levels of nested maps and lists are searched for encoded values; an answer has about ten. Anything
deeper belongs to a value that was not encoded, and is left alone: it may exceed Python's recursion limit."""
_NOISE = re.compile(r"\$encoded:[A-Za-z0-9+/]*={0,2}")


def is_envelope(value: object) -> bool:
    """Whether a value is an encoded one."""
    return type(value) is dict and type(value.get(MARK)) is str and "body" in value and "v" in value


def for_people(value: Any, levels: int = LEVELS) -> Any:
    """A value of an answer, with each encoded value in it replaced by a description."""
    if isinstance(value, str):
        return _NOISE.sub("", value) if MARK in value else value
    if levels and isinstance(value, list):
        return [for_people(each, levels - 1) for each in value]
    if levels and isinstance(value, dict):
        if is_envelope(value):
            return value[MARK]
        return {name: for_people(each, levels - 1) for name, each in value.items()}
    return value
