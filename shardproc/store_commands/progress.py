"""Progress lines on standard error, for people who wait for a long command."""

from __future__ import annotations

import sys
import time

REPORT_S = 1.0  # between two lines


class Progress:
    """Call it as often as there is progress; it prints one line a second."""

    def __init__(self) -> None:
        self._next = time.monotonic() + REPORT_S

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REPORT_S
            print(text, file=sys.stderr, flush=True)
