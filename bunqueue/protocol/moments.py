"""Points in time as Python datetimes, next to the epoch ms of the wire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Self, overload

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime.max.replace(tzinfo=UTC)


def moment(ms: float) -> datetime:
    """Epoch ms as a datetime in UTC.  The wire allows times after the year 9999; they become its end."""
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return _LATEST


class Moment:
    """An attribute of a reply: the datetime in UTC for the epoch ms in another field.

        created_at_ms: float = field(name="createdAt")
        created_at = Moment("created_at_ms")

    It is computed on access, so it adds nothing to the cost of decoding a reply.
    """

    def __init__(self, field: str) -> None:
        self._field = field

    @overload
    def __get__(self, reply: None, owner: type) -> Self: ...

    @overload
    def __get__(self, reply: object, owner: type) -> datetime: ...

    def __get__(self, reply: Any, owner: type) -> Any:
        return self if reply is None else moment(getattr(reply, self._field))


class MaybeMoment:
    """A `Moment` that may be missing: None for a field without a value."""

    def __init__(self, field: str) -> None:
        self._field = field

    @overload
    def __get__(self, reply: None, owner: type) -> Self: ...

    @overload
    def __get__(self, reply: object, owner: type) -> datetime | None: ...

    def __get__(self, reply: Any, owner: type) -> Any:
        if reply is None:
            return self
        ms = getattr(reply, self._field)
        return None if ms is None else moment(ms)
