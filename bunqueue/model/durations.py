"""Units of time, in ms."""

from __future__ import annotations

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
