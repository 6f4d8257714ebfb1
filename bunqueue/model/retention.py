"""How long finished jobs are kept."""

from __future__ import annotations

from msgspec import Struct

DAY_S = 86_400


class Retention(Struct, frozen=True, gc=False):
    """Completed jobs and their results go when they are too old, or too many in their queue."""

    max_age_s: int = 7 * DAY_S  # since they completed; 0: however old
    max_count: int = 1_000_000  # of one queue; beyond, those that came first go; 0: however many
