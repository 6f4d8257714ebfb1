"""How long finished jobs are kept."""

from __future__ import annotations

from msgspec import Struct

DAY_S = 86_400


class Retention(Struct, frozen=True, gc=False):
    """Completed jobs and their results are removed when they are too old or their queue has too many."""

    max_age_s: int = 7 * DAY_S  # since they completed; 0: no limit
    max_count: int = 1_000_000  # per queue; above this, the first to complete are removed; 0: no limit
