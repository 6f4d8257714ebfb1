"""Decides whether two errors are the same kind of failure: their class, and the shape of their text.

The only place that does: the shards, the command line, analytics and Spark all ask it.
"""

from __future__ import annotations

import hashlib
import re

MAX_LINE = 1_000  # characters of the first line that are read
MAX_PATTERN = 200  # characters of its shape that are compared

# 404 and 503 are different failures where they are HTTP statuses, as the words around them show. Everywhere
# else a number is a number. Lookbehinds have one length each, as Python wants it.
_BEFORE = (
    *("HTTP ", "HTTP/1.1 ", "HTTP/2 ", "HTTPError: ", "HTTP Error ", "HTTP error ", "HTTPException: "),
    *("status ", "status: ", "status=", "status_code=", "status code ", "status code: "),
    *("Status ", "Status: ", "Status code: ", "StatusCode: ", "StatusCode="),
    *("Error code: ", "error code: ", "response code ", "response code: "),
)
_AFTER = (
    r"Bad|Unauthorized|Payment|Forbidden|Not|Method|Proxy|Request|Conflict|Gone|Length|Precondition|Payload"
    r"|Content|URI|Unsupported|Range|Expectation|Unprocessable|Locked|Failed|Too|Upgrade|Unavailable|Internal"
    r"|Service|Gateway|HTTP|Client|Server|Insufficient|Loop|Network"
)
_CODE = r"[45][0-9]{2}(?![0-9])"
_REASON = rf"{_CODE} (?:{_AFTER})(?![a-z])"
_STATUS = f"(?:(?:{'|'.join(f'(?<={text})' for text in _BEFORE)}){_CODE}|{_REASON})"


def _quoted(mark: str) -> str:
    """A part in quotes, to the end of the line if it is cut off; not an apostrophe within a word."""
    inside = rf"(?:[^{mark}]|{mark}(?=[0-9a-zA-Z]))*"
    return rf"(?<![0-9a-zA-Z]){mark}(?!{_REASON}){inside}(?:{mark}|$)"


CHANGING = "|".join(
    (
        r"\$encoded:[0-9a-zA-Z+/=_-]*",  # a text that a codec has encrypted: no two are alike
        _quoted("'"),
        _quoted('"'),
        "`[^`]*`",
        r"[^\s@<>()=:,;]+@[^\s@<>()=:,;]+\.[a-zA-Z]+",  # an address
        r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
        r"0x[0-9a-fA-F]+",
        r"(?<![0-9a-zA-Z])(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}(?![0-9a-zA-Z])",
        # ids of other kinds: long ones with a digit, short ones with digits in two places
        r"(?<![0-9a-zA-Z_-])(?=[a-zA-Z_-]*[0-9])[0-9a-zA-Z_-]{16,}",
        r"(?<![0-9a-zA-Z])(?=[a-zA-Z]*[0-9]+[a-zA-Z]+[0-9])[0-9a-zA-Z]{6,}",
        rf"(?<![0-9])(?!{_STATUS})[0-9]+",
    )
)
"""What differs between errors of one kind: quoted parts, addresses, ids and numbers."""

_changing = re.compile(CHANGING)


def pattern_of(error: str | None) -> str:
    """The first line of an error with # in place of every number, id and quoted part. Empty when there is no
    error."""
    line = (error or "").partition("\n")[0][:MAX_LINE]
    return _changing.sub("#", line)[:MAX_PATTERN]


def kind_of(error_type: str | None, error: str | None) -> str:
    """The id of the kind of an error: 12 hexadecimal digits, the same in all queues and at all times."""
    return kind_of_pattern(error_type, pattern_of(error))


def kind_of_pattern(error_type: str | None, pattern: str) -> str:
    """The same, for a pattern that is known already."""
    return hashlib.blake2b(f"{error_type or ''}\n{pattern}".encode(), digest_size=6).hexdigest()
