"""The bounds of a queue: from the user's options to the wire format."""

from __future__ import annotations

from typing import get_args

from msgspec import UNSET, UnsetType

from bunqueue.client.connection.options import Duration, whole_milliseconds
from bunqueue.client.options import checks
from bunqueue.model.bounds import Bounds, WhenFull
from bunqueue.protocol.commands.bounds import BoundSettings


def bound_settings(
    max_waiting: int | UnsetType | None = UNSET,
    max_waiting_bytes: int | UnsetType | None = UNSET,
    when_full: WhenFull | UnsetType = UNSET,
    keep_age: Duration | UnsetType | None = UNSET,
    keep_count: int | UnsetType | None = UNSET,
) -> BoundSettings:
    """The changes to the bounds of a queue. Raises OptionError."""
    if not isinstance(when_full, UnsetType):
        checks.one_of("when_full", when_full, get_args(WhenFull))
    if keep_age is not None and not isinstance(keep_age, UnsetType):
        keep_age = whole_milliseconds(keep_age, "keep_age")
    changes = BoundSettings(
        max_waiting=max_waiting,
        max_waiting_bytes=max_waiting_bytes,
        when_full=when_full,
        keep_age=keep_age,
        keep_count=keep_count,
    )
    checks.settings(Bounds, changes)
    return changes
