"""Text about dead letters that were dropped, for ``doctor`` and ``dlq``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bunqueue.text import plural

if TYPE_CHECKING:
    from bunqueue.protocol.commands.dlq import Dropped

RECENT_S = 7 * 86_400
"""How long ``doctor`` reports them, in seconds."""
KEEP_MORE = "bunqueue dlq config QUEUE --max-entries N --max-age SPAN has more kept, and for longer"

_NAME = "queue_dead_letters_dropped"


def dropped_lately(samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]) -> list[tuple[str, int]]:
    """Queues that dropped dead letters within the last week, with the total number of each; the highest
    first."""
    counts: Counter[str] = Counter()
    begin = time.time() - RECENT_S
    for (name, labels), value in samples.items():
        queue = dict(labels).get("queue", "")
        last = samples.get((f"{_NAME}_last_timestamp_seconds", frozenset({("queue", queue)})), 0)
        if name == f"{_NAME}_total" and value and last >= begin:
            counts[queue] += int(value)
    return counts.most_common()


def dropped_text(queue: str, dropped: Dropped) -> str:
    """The text below the dead letters of a queue."""
    why = []
    if dropped.too_many:
        why.append(f"{dropped.too_many:,} as there were more than are kept (--max-entries)")
    if dropped.too_old:
        why.append(f"{dropped.too_old:,} as they were too old (--max-age)")
    since = f" since {dropped.first_at:%Y-%m-%d %H:%M} UTC" if dropped.first_at else ""
    were = "was" if dropped.count == 1 else "were"
    said = f"{plural(dropped.count, 'more dead letter')} of {queue} {were} dropped{since}: {', '.join(why)}"
    return f"{said}; {KEEP_MORE.replace('QUEUE', queue)}"
