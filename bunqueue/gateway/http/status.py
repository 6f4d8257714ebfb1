"""Which HTTP status says what a refusal of the server says: its code if it has one, else its text.  Pure.

The texts are the server's, the same as over TCP; a status only sorts them.
"""

from __future__ import annotations

import re

from bunqueue.protocol.codes import Code

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 400, 401, 403, 404
CONFLICT, TOO_LARGE, WRONG_TYPE, INVALID = 409, 413, 415, 422
TOO_MANY, UNAVAILABLE, NO_JSON, FAILED = 429, 503, 406, 500

_CODES = frozenset(Code)
_DAMAGED = frozenset({Code.STORAGE_DAMAGED})  # no other refusal with a code lasts until somebody mends it

# The first that fits the beginning of a text.  What is none of these is said of a field: INVALID.
_KINDS: tuple[tuple[int, str], ...] = (
    (
        UNAVAILABLE,
        r"Shard unavailable|Outcome unknown|The disk is full|disk full|Storage"
        r"|Webhooks are not delivered",
    ),
    (UNAUTHORIZED, r"Not authenticated|Invalid token"),
    (TOO_MANY, r"Rate limit exceeded|Ids like .* are being taken|Job id .* try again"),
    (TOO_LARGE, r"(\S+: )?Job data too large|Frame too large|.* too large for one answer|The answer of"),
    (
        CONFLICT,
        r"Job not found or |Job is |Job \S+ (is|has) |Cannot |Lock |Invalid or expired lock",
    ),
    (CONFLICT, r"Parent job \S+ is|Duplicate unique_key|Group .* has reached|Too many (webhooks|workers)"),
    (NOT_FOUND, r"Unknown command|(Job|Cron job|Webhook|Worker|Child job|Parent job) not found"),
    (BAD_REQUEST, r"Invalid command"),
)
_COMPILED = tuple((status, re.compile(pattern)) for status, pattern in _KINDS)


def status_of(error: str, code: str | None = None) -> int:
    """The status for an error reply with this text and code."""
    if code == Code.FORBIDDEN:
        return FORBIDDEN
    if code in (Code.INVALID_DATA, Code.UNKNOWN_FIELD):
        return INVALID
    if code == Code.SCHEDULE_CONFLICT:
        return CONFLICT
    if code in _CODES:
        return FAILED if code in _DAMAGED else UNAVAILABLE
    return next((status for status, pattern in _COMPILED if pattern.match(error)), INVALID)
