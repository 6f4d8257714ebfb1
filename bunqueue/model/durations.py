"""Units of time, in ms, and durations that people write: 90s, 1.5h, 1h30m."""

from __future__ import annotations

import re

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY_MS, "w": 7 * DAY_MS}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_SPAN = re.compile(rf"(?:{_PART.pattern})+")
_MS = re.compile(r"[0-9]+(\.[0-9]+)?")
MAX_CHARS = 100  # more than any duration needs; a longer text is refused before it is read
EXAMPLES = "500ms, 30s, 5m, 2h, 7d or 1h30m"


def span_ms(text: str) -> int | float | None:
    """The ms of a duration: a plain number of ms, or parts with units. None if the text is not a duration."""
    if len(text) > MAX_CHARS:
        return None
    if _MS.fullmatch(text):
        found = float(text)
    elif _SPAN.fullmatch(text):
        found = sum(float(amount) * _UNITS[unit] for amount, unit in _PART.findall(text))
    else:
        return None
    return int(found) if found.is_integer() else found
