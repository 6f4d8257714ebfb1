"""Values formatted for people. Output to pipes stays raw: times in epoch ms, spans in ms."""

from __future__ import annotations

import json
import re
from datetime import datetime

# C0 and C1 control characters, line separators, and characters that change the direction of text.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
"""An escape in a JSON text: a surrogate pair, a lone surrogate, or any other."""
_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"))


def printable(text: str) -> str:
    """The text without anything that would move the cursor, colour the screen, or end a field or a line."""
    return CONTROL.sub(lambda found: _SHORT.get(found[0]) or f"\\x{ord(found[0]):02x}", text)


def harmless(text: str) -> str:
    """The same for a text of several lines; line breaks and tabs are kept."""
    if text.isprintable():
        return text
    return CONTROL.sub(lambda found: found[0] if found[0] in "\t\n" else printable(found[0]), text)


def time_of(ms: float) -> str:
    """A point in time, in the time zone of this machine."""
    try:
        return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{ms:.0f}"


def span_of(ms: float) -> str:
    """A span: 0 ms, 250 ms, 1.5 s, 3m 20s, 2h 5m, 3d 4h."""
    if ms < 1000:
        return f"{ms:.0f} ms" if ms >= 10 or ms == int(ms) else f"{ms:.1f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for index, (size, unit) in enumerate(_UNITS):
        if whole >= size:
            rest = whole % size
            smaller, name = _UNITS[index + 1] if index + 1 < len(_UNITS) else (1, "s")
            more = f" {rest // smaller}{name}" if rest // smaller else ""
            return f"{whole // size}{unit}{more}"
    return f"{whole} s"


def number_of(value: float) -> str:
    """A number: 1,234 or 12.5."""
    return f"{int(value):,}" if value == int(value) else f"{value:,.1f}"


def size_of(size: float) -> str:
    """Bytes: 512 B, 1.2 KB, 3.4 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def plural(count: int, word: str = "job") -> str:
    """1 job, 1,234 jobs."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def json_problem(source: bytes, error: Exception) -> str:
    """Why a text is not JSON: `error`, except for lone surrogates, which the parser reports as a text that
    ends too soon. Python's own parser accepts them."""
    try:
        json.loads(source.decode())
    except (ValueError, RecursionError):
        return str(error)
    half = next((found for found in _ESCAPE.finditer(source) if found[1]), None)
    where = "" if half is None else f": {half[0].decode()}, byte {half.start()}"
    return f"a text has half a character (a lone surrogate{where}), which no text may have"
