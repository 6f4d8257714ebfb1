"""The bounds of a queue: how much may wait in it, and how long its completed jobs are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from bunqueue.model.durations import YEAR_MS

REFUSE, DROP_OLDEST = "refuse", "drop-oldest"
WhenFull = Literal["refuse", "drop-oldest"]

_Most = Annotated[int, Meta(ge=1, le=2**53 - 1)]


class Bounds(Struct, rename="camel", frozen=True, gc=False):
    """At most ``max_waiting`` jobs, with ``max_waiting_bytes`` of data, may wait; beyond that, ``when_full``
    says what happens to a push.  Completed jobs are kept for ``keep_age`` ms, and at most ``keep_count`` of
    them.  None: the queue has no limit, so the server's applies; a ``keep_...`` of 0 lifts the server's
    limit.
    """

    max_waiting: _Most | None = None
    max_waiting_bytes: _Most | None = None
    when_full: WhenFull = "refuse"
    keep_age: Annotated[int, Meta(ge=0, le=10 * YEAR_MS)] | None = None
    keep_count: Annotated[int, Meta(ge=0, le=2**53 - 1)] | None = None

    @property
    def has_space_limit(self) -> bool:
        """Whether pushes may find the queue full."""
        return self.max_waiting is not None or self.max_waiting_bytes is not None


NO_BOUNDS = Bounds()
