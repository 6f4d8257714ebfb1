"""The HTTP status of a refusal by the server, derived from its code.  Pure."""

from __future__ import annotations

from bunqueue.protocol.codes import TABLE

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 400, 401, 403, 404
CONFLICT, TOO_LARGE, WRONG_TYPE, INVALID = 409, 413, 415, 422
TOO_MANY, UNAVAILABLE, NO_JSON, FAILED = 429, 503, 406, 500

_ROWS = {str(code): row for code, row in TABLE.items()}


def status_of(code: str) -> int:
    """The status for an error reply with this code. 422 for a code of a newer server."""
    row = _ROWS.get(code)
    return INVALID if row is None else row.status
