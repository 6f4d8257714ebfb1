"""Payloads that programs have compressed or encrypted before they sent them, as those see them who cannot
decode them. For the server they are values like any others; docs/codecs.md has the format.
"""

from __future__ import annotations

import re
from typing import Any

MARK = "$encoded"
"""The field of an envelope that says for people what it is."""
LEVELS = 64
"""Maps and lists in each other within which encoded values stand; an answer has some ten. What is deeper
belongs to a value that was not encoded, and stays as it is: Python may not get down all its levels."""
_NOISE = re.compile(r"\$encoded:[A-Za-z0-9+/]*={0,2}")


def is_envelope(value: object) -> bool:
    """Whether a value is an encoded one."""
    return type(value) is dict and type(value.get(MARK)) is str and "body" in value and "v" in value


def for_people(value: Any, levels: int = LEVELS) -> Any:
    """A value of an answer with words in the place of what is encoded in it."""
    if isinstance(value, str):
        return _NOISE.sub("", value) if MARK in value else value
    if levels and isinstance(value, list):
        return [for_people(each, levels - 1) for each in value]
    if levels and isinstance(value, dict):
        if is_envelope(value):
            return value[MARK]
        return {name: for_people(each, levels - 1) for name, each in value.items()}
    return value
